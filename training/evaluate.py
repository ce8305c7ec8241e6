"""Voices the held-out sentences with the teacher, the codec and the model, for training.score.

    python -m training.evaluate omnitts/checkpoints/mini --out EVAL
    python -m training.score EVAL

Kinds of clips: teacher (flite itself), copy (the teacher's clip encoded and decoded), designed (instruct male or
female), cloned (a teacher's clip of another sentence as reference) and plain (neither), each as a manifest line would
be made. clips.jsonl has a line a clip: file, kind, speaker, text.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import soundfile
import torch

from omnitts.audio import SAMPLE_RATE, postprocess
from omnitts.model.voice import prepare_reference
from omnitts.tts import TTS, load
from training.teacher import GENDERS, RATE, SPEAKERS, Teacher
from training.text import heldout

KINDS = ("teacher", "copy", "designed", "cloned", "plain")


def main() -> None:
    parser = argparse.ArgumentParser(description="Voice the held-out sentences.")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=60, help="sentences")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--recipe", default="default")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the recipe, as key=value")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    settings = {key: json.loads(value) for key, value in (item.split("=") for item in args.set)}
    start = time.time()
    tts = load(args.checkpoint)
    print(f"loaded in {time.time() - start:.2f} s")
    with (args.out / "clips.jsonl").open("w", encoding="utf-8") as clips:
        for kind in args.kinds:
            start, seconds = time.time(), 0.0
            for number, speaker, text, wave, rate in make(kind, tts, heldout()[: args.count], args.recipe, settings):
                file = f"{kind}-{SPEAKERS[speaker]}-{number:03d}.wav"
                soundfile.write(args.out / file, wave, rate)
                row = {"file": file, "kind": kind, "speaker": SPEAKERS[speaker], "text": text}
                clips.write(json.dumps(row) + "\n")
                seconds += len(wave) / rate
            elapsed = time.time() - start
            print(f"{kind}: {seconds:.0f} s of audio in {elapsed:.0f} s, real-time factor {elapsed / seconds:.2f}")


def make(kind: str, tts: TTS, texts: list[str], recipe: str, settings: dict):
    """Yields number, speaker, text, waveform and its rate of each clip; speakers take turns, for the kinds that have
    one both say each text."""
    teacher = Teacher()
    for number, text in enumerate(texts):
        for speaker in range(len(SPEAKERS)):
            if kind in ("teacher", "copy"):
                wave = teacher.speak(text, speaker).wave.astype(np.float32) / 32768
                if kind == "copy":
                    yield number, speaker, text, copied(tts, wave), SAMPLE_RATE
                else:
                    yield number, speaker, text, wave, RATE
                continue
            item = {"text": text, "id": f"{number}-{speaker}"}
            if kind == "designed":
                item |= {"language": "en", "instruct": GENDERS[speaker]}
            if kind == "cloned":
                other = texts[(number + 7) % len(texts)]
                wave = teacher.speak(other, speaker).wave.astype(np.float32) / 32768
                soundfile.write("/tmp/reference.wav", wave, RATE)
                item |= {"ref_audio": "/tmp/reference.wav", "ref_text": other}
                tts._reference_voice.cache_clear()
            made = tts.synthesize(item, recipe=recipe, **settings)[0]
            yield number, speaker, text, made.audio, SAMPLE_RATE


def copied(tts: TTS, wave: np.ndarray) -> np.ndarray:
    reference = prepare_reference(wave, RATE, "x", preprocess=False)
    return postprocess(tts.codec.decode(tts.codec.encode(reference.wave)), ref_rms=None, postprocess_output=False)


if __name__ == "__main__":
    with torch.inference_mode():
        main()

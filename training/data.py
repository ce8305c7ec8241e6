"""The teacher reads the training text: shards of clips, each with its phones.

    python -m training.data corpus.txt --out DATA --hours 30 --workers 15

Each shard depends on the text and its number alone, so that any machine makes the same ones, and a run that was cut
short goes on where it was. Training may start while shards are still being made.
"""

import argparse
import math
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from omnitts.model.duration import FRAME_RATE, estimate_frames, text_weight
from training.teacher import PHONE_RATE, RATE, SPEAKERS, Spoken, Teacher

LINES_A_SHARD = 64
FRAME = RATE // FRAME_RATE  # samples of a frame at the teacher's rate
LABELS = PHONE_RATE // FRAME_RATE  # phone labels a frame
RMS = 0.1  # of every clip: omnitts brings quiet references to this too
EDGE = FRAME * 5 // 2  # silence before and after the speech: 0.1 s
QUIET = 200  # of 32768: below this a clip's edge is silent

# Frames that a text takes by the voices' own pace: a + b * text_weight. Fitted on 150 lines.
_PACE = ((4.2, 1.585), (-2.2, 1.925))
_PACE_SPREAD = 0.1  # of the logarithm, around the length that omnitts will ask for
_STRETCH = (0.75, 1.4)


@dataclass(frozen=True)
class Clip:
    """A line of the text as one speaker said it."""

    line: int
    speaker: int
    wave: np.ndarray  # int16 [frames * 640] at 16 kHz
    phones: np.ndarray  # uint8 [frames * 2]
    order: np.ndarray  # int16 [frames * 2]: which phone of the line it is

    @property
    def frames(self) -> int:
        return len(self.wave) // FRAME


def main() -> None:
    parser = argparse.ArgumentParser(description="Let the teacher read the training text.")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="folder of the shards")
    parser.add_argument("--hours", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    lines = read_lines(args.corpus)
    start, made = time.time(), 0.0
    with multiprocessing.Pool(args.workers, _keep_text, (lines, args.out)) as pool:
        for seconds in pool.imap_unordered(_make_and_save, range(len(lines) // LINES_A_SHARD)):
            made += seconds
            if made >= args.hours * 3600:
                pool.terminate()
                break
    (args.out / "done").touch()
    print(f"{made / 3600:.1f} h of speech in {time.time() - start:.0f} s")


def read_lines(corpus: Path) -> list[str]:
    return corpus.read_text(encoding="utf-8").splitlines()


def _keep_text(lines: list[str], out: Path) -> None:
    global _lines, _out, _teacher
    _lines, _out, _teacher = lines, out, Teacher()


def _make_and_save(shard: int) -> float:
    """Makes a shard, unless it is there. Returns its seconds."""
    file = _out / f"{shard:05d}.npz"
    if not file.exists():
        clips = make_shard(_teacher, _lines, shard)
        temporary = _out / f"{shard:05d}.part"
        with temporary.open("wb") as stream:
            np.savez(
                stream,
                line=np.array([clip.line for clip in clips]),
                speaker=np.array([clip.speaker for clip in clips]),
                frames=np.array([clip.frames for clip in clips]),
                wave=np.concatenate([clip.wave for clip in clips]),
                phones=np.concatenate([clip.phones for clip in clips]),
                order=np.concatenate([clip.order for clip in clips]),
            )
        temporary.rename(file)
    with np.load(file) as content:
        return int(content["frames"].sum()) / FRAME_RATE


def load_shard(file: Path) -> list[Clip]:
    with np.load(file) as content:
        parts = {name: content[name] for name in content.files}
    ends = np.cumsum(parts["frames"])[:-1]
    waves = np.split(parts["wave"], ends * FRAME)
    phones, order = np.split(parts["phones"], ends * LABELS), np.split(parts["order"], ends * LABELS)
    columns = parts["line"].tolist(), parts["speaker"].tolist(), waves, phones, order
    return [Clip(*clip) for clip in zip(*columns, strict=True)]


def make_shard(teacher: Teacher, lines: list[str], shard: int) -> list[Clip]:
    rng = np.random.default_rng([1, shard])
    clips = []
    for line in range(shard * LINES_A_SHARD, (shard + 1) * LINES_A_SHARD):
        speaker = int(rng.integers(len(SPEAKERS)))
        wanted = estimate_frames(lines[line]) * math.exp(_PACE_SPREAD * rng.standard_normal())
        base, slope = _PACE[speaker]
        natural = max(base + slope * text_weight(lines[line]), 8.0)
        stretch = np.clip((wanted - 2 * EDGE / FRAME) / natural, *_STRETCH)
        spoken = teacher.speak(lines[line], speaker, float(stretch))
        clip = fit(spoken, round(wanted), line, speaker)
        if clip is not None:
            clips.append(clip)
    return clips


def fit(spoken: Spoken, frames: int, line: int = 0, speaker: int = 0) -> Clip | None:
    """Cuts the silence at the edges to 0.1 s, sets the loudness, and fills up to `frames`; None if all is silent."""
    loud = np.flatnonzero(np.abs(spoken.wave) > QUIET)
    if not len(loud):
        return None
    step = RATE // PHONE_RATE
    # In whole labels, so that those move with the samples.
    start = max(0, loud[0] - EDGE) // step
    stop = min(len(spoken.phones), -(-(loud[-1] + EDGE) // step))
    frames = max(frames, -(-(stop - start) // LABELS))
    wave = np.zeros(frames * FRAME)
    spoken_wave = spoken.wave[start * step : stop * step] / 32768
    wave[: len(spoken_wave)] = spoken_wave * RMS / np.sqrt(np.mean(spoken_wave**2))
    fill = (0, frames * LABELS - (stop - start))
    order = spoken.order[start:stop] - spoken.order[start]
    return Clip(
        line,
        speaker,
        np.rint(wave * 32767).clip(-32768, 32767).astype(np.int16),
        np.pad(spoken.phones[start:stop], fill),
        np.pad(order, fill, mode="edge").astype(np.int16),
    )


if __name__ == "__main__":
    main()

"""Scores the clips of training.evaluate: word errors by an off-the-shelf recognizer, pitch, and signs of trouble.

    python -m training.score EVAL --recognizer FOLDER

needs faster-whisper and soundfile; FOLDER is a Whisper model in its format. The figures of this project are of
Whisper tiny.
"""

import argparse
import json
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import soundfile

SPLIT_HZ = 140.0  # between the median pitch of the two speakers
FEMALE = "slt"


def main() -> None:
    parser = argparse.ArgumentParser(description="Score the clips of training.evaluate.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recognizer", required=True, help="a Whisper model's folder or name")
    parser.add_argument("--show", type=int, default=0, help="print this many of the worst")
    args = parser.parse_args()
    from faster_whisper import WhisperModel

    recognizer = WhisperModel(args.recognizer, device="cpu", compute_type="int8", cpu_threads=2)
    totals: dict = defaultdict(lambda: np.zeros(6))
    worst = []
    for line in (args.folder / "clips.jsonl").read_text(encoding="utf-8").splitlines():
        clip = json.loads(line)
        wave, rate = soundfile.read(args.folder / clip["file"], dtype="float32")
        segments, _ = recognizer.transcribe(
            resampled(wave, rate), language="en", beam_size=5, condition_on_previous_text=False
        )
        heard = " ".join(segment.text for segment in segments)
        reference = words(clip["text"])
        errors = edit_distance(reference, words(heard))
        hertz = median_pitch(wave, rate)
        right = (hertz > SPLIT_HZ) == (clip["speaker"] == FEMALE)
        totals[clip["kind"], clip["speaker"]] += (errors, len(reference), right, 1, trouble(wave, rate), hertz)
        worst.append((errors / len(reference), clip["file"], clip["text"], heard, round(hertz)))
    for (kind, speaker), (errors, count, right, clips, troubles, hertz) in totals.items():
        print(
            f"{kind:9} {speaker}: word errors {errors / count:6.1%}, pitch as the speaker's {right:.0f}/{clips:.0f} "
            f"(median {hertz / clips:.0f} Hz), in trouble {troubles:.0f}"
        )
    for kind in dict.fromkeys(kind for kind, _ in totals):
        errors, count = sum(value[:2] for (k, _), value in totals.items() if k == kind)
        print(f"{kind:9} both: word errors {errors / count:6.1%}")
    for share, file, text, heard, hertz in sorted(worst, reverse=True)[: args.show]:
        print(f"{share:.0%} {file} {hertz} Hz | {text} |{heard}")


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def edit_distance(a: list[str], b: list[str]) -> int:
    """Words to insert, delete and replace."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(previous + (x != y), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def resampled(wave: np.ndarray, rate: int, to: int = 16_000) -> np.ndarray:
    """By the spectrum: good enough for a recognizer."""
    if rate == to:
        return wave
    spectrum = np.fft.rfft(wave)
    length = len(wave) * to // rate
    return (np.fft.irfft(spectrum[: length // 2 + 1], n=length) * (length / len(wave))).astype(np.float32)


def median_pitch(wave: np.ndarray, rate: int) -> float:
    """Median fundamental frequency of the voiced frames, by autocorrelation, between 60 and 320 Hz; 0 if none are."""
    size, hop = rate // 20, rate // 100
    lags = np.arange(rate // 320, rate // 60)
    pitches = []
    loud = 0.1 * np.abs(wave).max()
    for start in range(0, len(wave) - 2 * size, hop):
        frame = wave[start : start + 2 * size] - wave[start : start + 2 * size].mean()
        if np.abs(frame).max() < loud:
            continue
        power = np.abs(np.fft.rfft(frame, 4 * size)) ** 2
        correlation = np.fft.irfft(power)
        # The autocorrelation of a window falls with the lag, which keeps it from halving the pitch.
        shares = correlation[lags] / max(correlation[0], 1e-9)
        if shares.max() > 0.4:
            pitches.append(rate / lags[shares.argmax()])
    return float(np.median(pitches)) if pitches else 0.0


def trouble(wave: np.ndarray, rate: int) -> bool:
    """Silent, clipped, or in its last 0.05 s as loud as in the whole."""
    tail = wave[-rate // 20 :]
    loudness = np.sqrt(np.mean(wave**2))
    return bool(loudness < 0.005 or (np.abs(wave) >= 0.999).mean() > 1e-4 or np.sqrt(np.mean(tail**2)) > loudness)


if __name__ == "__main__":
    main()

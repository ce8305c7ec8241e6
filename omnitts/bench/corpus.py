"""A job to measure with: a manifest and its recordings on disk, as large as asked, and the same every time."""

import json
from pathlib import Path

import numpy as np

from omnitts.audio import SAMPLE_RATE
from omnitts.encoding import AudioOptions, write_audio

RECORDINGS = 32
REFERENCE_SECONDS = (3.0, 8.0)
TARGET_SECONDS = (2.0, 15.0)
WORDS_PER_SECOND = 2.7

_COMMON = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know"
)
WORDS = tuple(_COMMON.split())


def write_corpus(folder: Path, utterances: int, seed: int) -> Path:
    """Writes folder/lines.jsonl, and returns its path: so many lines, each with a reference and a duration.

    Up to RECORDINGS recordings of REFERENCE_SECONDS are taken in turn; durations are of TARGET_SECONDS, and texts and
    transcripts as long as they take to say. All of it follows from the seed.
    """
    random = np.random.default_rng(seed)
    folder.mkdir()
    references = []
    for number in range(min(RECORDINGS, utterances)):
        seconds = random.uniform(*REFERENCE_SECONDS)
        path = folder / f"reference-{number:02d}.wav"
        write_audio(path, _speech_like(random, seconds), SAMPLE_RATE, AudioOptions())
        references.append({"ref_audio": path.name, "ref_text": _words(random, seconds)})
    lines = []
    for number in range(utterances):
        seconds = round(random.uniform(*TARGET_SECONDS), 2)
        line = {"id": f"{number:06d}", "text": _words(random, seconds), "duration": seconds, "seed": number}
        lines.append(json.dumps(line | references[number % len(references)]) + "\n")
    manifest = folder / "lines.jsonl"
    manifest.write_text("".join(lines), encoding="utf-8")
    return manifest


def _words(random: np.random.Generator, seconds: float) -> str:
    return " ".join(random.choice(WORDS, max(1, round(seconds * WORDS_PER_SECOND)))) + "."


def _speech_like(random: np.random.Generator, seconds: float) -> np.ndarray:
    """Float32 [N]: harmonics of a gliding pitch and a breath of noise, swelling four times a second, never silent."""
    time = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    pitch = random.uniform(90, 220) * (1 + 0.1 * np.sin(2 * np.pi * random.uniform(0.2, 0.5) * time))
    phase = 2 * np.pi * np.cumsum(pitch) / SAMPLE_RATE
    voiced = sum(np.sin(k * phase + random.uniform(0, 2 * np.pi)) / k for k in range(1, 16))
    swell = 0.55 + 0.45 * np.sin(2 * np.pi * 4 * time + random.uniform(0, 2 * np.pi))
    wave = swell * (voiced + 0.1 * random.standard_normal(len(time)))
    return (0.5 * wave / np.abs(wave).max()).astype(np.float32)

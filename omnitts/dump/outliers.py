"""Utterances that want a second look: those that are far less certain than the others, or for long stretches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from omnitts.model.duration import FRAME_RATE

_FEWEST = 5  # utterances: of fewer, none is unlike the others
_FEWEST_FRAMES = 100
_SPREADS = 4.0  # below the median: of 200 normally distributed numbers none is expected there
_FRAME_SPREADS = 2.5  # a single frame is there now and then, a run of them is not
_TO_SIGMA = 1.4826  # a normal distribution's standard deviation over its median absolute deviation
_LEAST_SPREAD = 0.05  # nats: what lies nearer together than this is alike
_SMOOTHED = 5  # frames
_LONG_RUN = 0.5  # seconds


@dataclass(frozen=True)
class Certainty:
    """Of an utterance: the mean logprob of its cells at reveal, and that of each frame, float64 [T]; NaN: not known."""

    mean: float
    frames: np.ndarray


def doubts(utterances: Sequence[Certainty]) -> list[list[str]]:
    """Of each utterance, in words, why it is to be checked; mostly nothing.

    "Far below" is by the median absolute deviation, which a few bad utterances do not move.
    """
    typical = _centre_and_spread(np.array([u.mean for u in utterances]), _FEWEST)
    frames = np.concatenate([np.zeros(0), *(_smoothed(u.frames) for u in utterances)])
    typical_frame = _centre_and_spread(frames, _FEWEST_FRAMES)
    return [[*_low_mean(u.mean, typical), *_low_run(u.frames, typical_frame)] for u in utterances]


def _centre_and_spread(values: np.ndarray, fewest: int) -> tuple[float, float] | None:
    """Median, and the standard deviation that the median absolute deviation stands for; None of too few values."""
    known = values[np.isfinite(values)]
    if len(known) < fewest:
        return None
    centre = float(np.median(known))
    return centre, max(float(np.median(np.abs(known - centre))) * _TO_SIGMA, _LEAST_SPREAD)


def _low_mean(value: float, typical: tuple[float, float] | None) -> list[str]:
    if typical is None or math.isnan(value) or value >= typical[0] - _SPREADS * typical[1]:
        return []
    times = (typical[0] - value) / typical[1]
    return [f"mean logprob far below the others: median {typical[0]:.2f}, and {times:.1f} times their spread lower"]


def _low_run(frames: np.ndarray, typical: tuple[float, float] | None) -> list[str]:
    if typical is None:
        return []
    start, length = _longest_run(_smoothed(frames) < typical[0] - _FRAME_SPREADS * typical[1])
    if length < _LONG_RUN * FRAME_RATE:
        return []
    return [f"low certainty for {length / FRAME_RATE:.1f} s, from {start / FRAME_RATE:.1f} s on"]


def _smoothed(frames: np.ndarray) -> np.ndarray:
    """Means over a few neighbours, so that one good frame does not break a run; NaN where a neighbour is."""
    if len(frames) < _SMOOTHED:
        return frames
    padded = np.pad(frames, _SMOOTHED // 2, mode="edge")
    return np.lib.stride_tricks.sliding_window_view(padded, _SMOOTHED).mean(axis=1)


def _longest_run(low: np.ndarray) -> tuple[int, int]:
    """Where the longest run of true values starts, and its length."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], low, [False]]).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    if not len(starts):
        return 0, 0
    longest = int((ends - starts).argmax())
    return int(starts[longest]), int(ends[longest] - starts[longest])

"""What comes out: an utterance's audio, or why there is none."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from omnitts.audio import SAMPLE_RATE
from omnitts.manifest import Utterance
from omnitts.recipe import Recipe
from omnitts.trace import Trace


class SynthesisError(RuntimeError):
    """Utterances could not be made; the message names each and says why.

    `results`: what `synthesize` would have returned, Speech in the order of its items; the failed ones have an `error`.
    """

    def __init__(self, message: str, results: Sequence["Speech"] = ()):
        super().__init__(message)
        self.results = list(results)


@dataclass(frozen=True)
class Watched:
    """What was seen of an utterance's loops, one a piece; for `dump.record`."""

    utterance: Utterance
    traces: list[Trace]
    codes: list[np.ndarray]  # int16 [codebooks, T] of each
    seeds: list[int]
    engine_seconds: float  # of its batches' time, the share of its positions


@dataclass(frozen=True)
class Speech:
    """One utterance's result. On failure `error` says why, and `audio` and `codes` are None."""

    id: str
    recipe: Recipe
    seed: int  # as a line's `seed`, it makes this clip again
    sample_rate: int = SAMPLE_RATE
    audio: np.ndarray | None = None  # float32 [samples]
    codes: np.ndarray | None = None  # int16 [codebooks, frames]; the chunks of a long text end to end
    error: str | None = None
    line: int | None = None  # in the manifest, or the number among the items, from 1
    watched: Watched | None = None  # if it was, and its loops came to their end

    @property
    def seconds(self) -> float:
        return 0.0 if self.audio is None else len(self.audio) / self.sample_rate

    @property
    def frames(self) -> int:
        return 0 if self.codes is None else self.codes.shape[1]

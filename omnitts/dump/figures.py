"""What the commands compute of a dump: certainty in the mean, over the cells that count."""

import math

import numpy as np

from omnitts.dump.format import Dump

_NATS = math.log(2)  # in a bit


def open_cells(dump: Dump) -> np.ndarray:
    """Cells that a step could still reveal: masked when it began, in a piece that ran it. bool [S, C, T]."""
    return dump.masked() & (dump.tokens >= 0)


def mean(values: np.ndarray) -> float:
    """In float64, of those that are not NaN; NaN when there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean(dtype=np.float64)) if known.size else math.nan


def lowest(values: np.ndarray) -> float:
    """Of those that are not NaN; NaN when there are none."""
    known = values[~np.isnan(values)]
    return float(known.min()) if known.size else math.nan


def surprisal_bits(logprobs: np.ndarray) -> float:
    """The mean of -log2 p over logprobs [K] in nats."""
    return -mean(logprobs.astype(np.float64)) / _NATS


def entropy_bits(top_logprobs: np.ndarray) -> float:
    """The mean entropy of distributions [K, N], logprobs in nats (-inf: no token) that are taken to sum to 1."""
    shares = np.exp(top_logprobs.astype(np.float64))
    total = shares.sum(axis=-1, keepdims=True)
    shares = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
    terms = shares * np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    return -mean(terms.sum(axis=-1))


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - b as float32 [K], of the places where both are finite, flattened."""
    finite = np.isfinite(a) & np.isfinite(b)
    return a[finite].astype(np.float32) - b[finite].astype(np.float32)


def by_step_and_codebook(dump: Dump) -> np.ndarray:
    """The mean logprob of the cells that a step could still reveal: float64 [C, num_step].

    NaN where a step was not dumped, or found no such cell.
    """
    means = np.full((dump.codebooks, dump.num_step), np.nan)
    cells = open_cells(dump)
    for index, step in enumerate(dump.steps):
        for codebook in range(dump.codebooks):
            means[codebook, step] = mean(dump.logprobs[index, codebook][cells[index, codebook]])
    return means


def reveal_order(dump: Dump) -> np.ndarray:
    """The share of the cells that were there by the middle of each step, from 0 to 1: float64 [num_step]."""
    counts = dump.revealed_per_step()
    return (np.cumsum(counts) - counts / 2) / max(counts.sum(), 1)


def thinned(values: np.ndarray, columns: int) -> np.ndarray:
    """Values [C, T] as float64 [C, at most `columns`]: where there are more, means of neighbours, but for NaN."""
    size = max(1, -(-values.shape[1] // columns))
    starts = np.arange(0, values.shape[1], size)
    known = np.isfinite(values)
    counts = np.add.reduceat(known, starts, axis=1, dtype=np.int64)
    sums = np.add.reduceat(np.where(known, values, 0), starts, axis=1, dtype=np.float64)
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def real_time_factor(dump: Dump) -> float:
    """Seconds of the loop a second of audio; NaN without frames."""
    return dump.engine_seconds / dump.seconds if dump.frames else math.nan

"""Ranking and commit of `canvas.py` in one Triton kernel, a program a request, without a sort or a host sync.

The number of cells to reveal gives a threshold: scores become whole numbers of the same order, and a search, two bits
at a time, finds the largest number that enough cells reach.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from omnitts.model.canvas import RankingParams
from omnitts.sampler import POSITION_STREAM
from omnitts.sampler.kernels import gumbel_of_cells

BLOCKS = (1024, 4096)  # cells at once: a canvas of 5 s or of 20 s is one block

_STREAM = tl.constexpr(POSITION_STREAM)
_LEAST = tl.constexpr(-(2**31))
_MOST_CELLS = tl.constexpr(2**20 - 1)  # of a request: over an hour


def reveal(
    canvas: Tensor,
    tokens: Tensor,
    confidence: Tensor,
    params: RankingParams,
    offsets: Tensor,
    step: Tensor,
    count: Tensor,
    mask_id: int,
    revealed: Tensor | None = None,
) -> Tensor:
    """Writes the tokens of each request's `count[r]` best masked cells into the canvas, in place.

    canvas: int32 [N, C]; tokens: int64 [N, C]; confidence: float32 [N, C]; offsets: int64 [R + 1], where requests'
    rows begin and end; step, count: int64 [R]. Scores and ties are those of `canvas.rank_scores` and `top_cells`.
    revealed: int32 [N, C], is given the step's number where a cell is revealed.

    Returns the scores as `score_of_key` reads them, int32 [N, C]; those of requests that reveal nothing are not set.
    """
    keys = torch.empty_like(canvas)
    # Any block does for any canvas; one of about a canvas's size is the fastest, and each is compiled for itself.
    block = BLOCKS[canvas.numel() // max(1, len(step) // 2) > BLOCKS[0]]
    _reveal_kernel[(len(step),)](
        canvas, tokens, confidence, keys, params.layer_penalty_factor, params.position_temperature, params.seed,
        offsets, step, count, mask_id, canvas if revealed is None else revealed,
        CODEBOOKS=canvas.shape[1], BLOCK=block, RECORD=revealed is not None,
        num_warps=min(8, block // 256), enable_fp_fusion=False,
    )  # fmt: skip
    return keys


@triton.jit
def _reveal_kernel(
    canvas, tokens, confidence, keys, penalties, temperatures, seeds, offsets, steps, counts, mask_id, revealed,
    CODEBOOKS: tl.constexpr, BLOCK: tl.constexpr, RECORD: tl.constexpr,
):  # fmt: skip
    request = tl.program_id(0)
    count = tl.load(counts + request).to(tl.int32)
    if count > 0:
        start = tl.load(offsets + request) * CODEBOOKS
        cells = (tl.load(offsets + request + 1) * CODEBOOKS - start).to(tl.int32)
        canvas += start
        tokens += start
        confidence += start
        keys += start
        revealed += start
        penalty, temperature = tl.load(penalties + request), tl.load(temperatures + request)
        seed, step = tl.load(seeds + request), tl.load(steps + request)
        for first in range(0, cells, BLOCK):
            cell = first + tl.arange(0, BLOCK)
            inside = cell < cells
            score = tl.load(confidence + cell, inside, 0.0) - penalty * (cell % CODEBOOKS).to(tl.float32)
            if temperature > 0:
                noise = gumbel_of_cells(seed, step, cell, _STREAM)
                score = tl.div_rn(score, temperature + tl.zeros_like(score)) + noise
            masked = tl.load(canvas + cell, inside, 0) == mask_id
            tl.store(keys + cell, tl.where(masked, _key(score), _LEAST), inside)
        tl.debug_barrier()
        threshold = tl.full([], _LEAST, tl.int64)
        for pair in tl.static_range(16):
            reached = _reaching(keys, cells, threshold, 30 - 2 * pair, BLOCK)
            threshold += _times(reached, count) << (30 - 2 * pair)
        _commit(canvas, tokens, keys, cells, threshold, count, mask_id, revealed, step, RECORD, BLOCK)


@triton.jit
def _key(score):
    """A float32 as an int32 of the same order; 0 and -0 are one."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def score_of_key(key):
    """The ranking score, float32, of a whole number that `reveal` gave; -inf where a cell was revealed before."""
    score = tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)
    return tl.where(key == _LEAST, -float("inf"), score)


@triton.jit
def _reaching(keys, cells, base, shift, BLOCK: tl.constexpr):
    """How many cells reach base + 1, 2 and 3 times 2**shift: 20 bits each."""
    total = tl.zeros([BLOCK], tl.int64)
    for first in range(0, cells, BLOCK):
        cell = first + tl.arange(0, BLOCK)
        inside = cell < cells
        key = tl.load(keys + cell, inside, _LEAST).to(tl.int64)
        for multiple in tl.static_range(3):
            reached = inside & (((key - base) >> shift) > multiple)
            total += reached.to(tl.int64) << (20 * multiple)
    return tl.sum(total, 0)


@triton.jit
def _times(reached, count):
    """Of the three numbers in `reached`, which fall, how many are at least `count`: int64."""
    first, second, third = reached & _MOST_CELLS, (reached >> 20) & _MOST_CELLS, (reached >> 40) & _MOST_CELLS
    return (first >= count).to(tl.int64) + (second >= count).to(tl.int64) + (third >= count).to(tl.int64)


@triton.jit
def _commit(
    canvas, tokens, keys, cells, threshold, count, mask_id, revealed, step, RECORD: tl.constexpr, BLOCK: tl.constexpr
):
    """All above the threshold, and of those at it the first ones."""
    spare = count - (_reaching(keys, cells, threshold, 0, BLOCK) & _MOST_CELLS).to(tl.int32)
    for first in range(0, cells, BLOCK):
        cell = first + tl.arange(0, BLOCK)
        inside = cell < cells
        key = tl.load(keys + cell, inside, _LEAST).to(tl.int64)
        equal = inside & (key == threshold)
        chosen = (key > threshold) | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= spare))
        chosen = chosen & inside & (tl.load(canvas + cell, inside, 0) == mask_id)
        tl.store(canvas + cell, tl.load(tokens + cell, chosen, 0).to(tl.int32), chosen)
        if RECORD:
            tl.store(revealed + cell, step.to(tl.int32), chosen)
        spare -= tl.sum(equal.to(tl.int32), 0)

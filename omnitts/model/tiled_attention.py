"""Attention within the documents of a packed row, in Triton: a program for some rows of a document and one key head.

Query heads that share a key head are taken together, so that its keys and values are read once. Rows are counted from
their document's start: what surrounds a document does not change its bits.
"""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from omnitts.model.kernels import begin, early_launch

_TILE = 64  # rows of queries, over the heads taken together
_KEYS = 64
LOG2E = 1.4426950408889634


Span = tuple[int, int]
"""Rows from one to before another."""


def tile_table(queries: Sequence[Span], keys: Sequence[Span], rows: int, capacity: int) -> np.ndarray:
    """Documents' queries cut into tiles of rows, those of the longest documents first: int32 [1 + 4 * capacity].

    The number of tiles, then of each its first row, the end of its document's queries, and the span of its document's
    keys. Longest first, for those programs take longest. capacity: see `tile_capacity`.
    """
    documents = sorted(zip(queries, keys, strict=True), key=lambda document: document[1][0] - document[1][1])
    tiles = [(row, last, *span) for (first, last), span in documents for row in range(first, last, rows)]
    table = np.zeros(1 + 4 * capacity, np.int32)
    table[0] = len(tiles)
    table[1 : 1 + 4 * len(tiles)] = np.ravel(tiles)
    return table


def tile_capacity(positions: int, documents: int, rows: int) -> int:
    """The most tiles that so many documents with so many queries in all can come to."""
    return positions // rows + documents


def rows_of_a_tile(q_heads: int, k_heads: int) -> int:
    """Positions in a tile."""
    return max(16, _TILE // _together(q_heads, k_heads))


def _together(q_heads: int, k_heads: int) -> int:
    """How many query heads a program takes: a power of two that divides those of a key head."""
    group = q_heads // k_heads
    return min(_TILE // 16, group & -group)


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor) -> Tensor:
    """Attention of every query to its whole document; half precision, sums in float32.

    q: [P, heads, D]; k, v: [M, key heads, D], heads side by side, with one stride of rows; tiles: a `tile_table` of
    `rows_of_a_tile` rows, on the device -> [P, heads, D], where rows of no document are left as memory has them
    """
    positions, heads, width = q.shape
    members, block = _together(heads, k.shape[1]), max(16, triton.next_power_of_2(width))
    out = torch.empty(positions, heads, width, dtype=q.dtype, device=q.device)
    _tiled_attention_kernel[(heads // members, len(tiles) // 4)](
        q, k, v, out, tiles, q.stride(0), k.stride(0), width**-0.5 * LOG2E,
        HEADS=heads, GROUP=heads // k.shape[1], MEMBERS=members, ROWS=rows_of_a_tile(heads, k.shape[1]), KEYS=_KEYS,
        WIDTH=width, BLOCK=block, num_warps=4, num_stages=2, **early_launch(q.device),
    )  # fmt: skip
    return out


@triton.jit
def _tiled_attention_kernel(
    q, k, v, out, tiles, q_stride, k_stride, scale,
    HEADS: tl.constexpr, GROUP: tl.constexpr, MEMBERS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    head, tile = tl.program_id(0) * MEMBERS, tl.program_id(1)
    begin(EARLY)
    if tile < tl.load(tiles):
        first, last = tl.load(tiles + 1 + 4 * tile), tl.load(tiles + 2 + 4 * tile)
        start, end = tl.load(tiles + 3 + 4 * tile), tl.load(tiles + 4 + 4 * tile)
        columns, keys, rows = tl.arange(0, BLOCK), tl.arange(0, KEYS), tl.arange(0, ROWS * MEMBERS)
        position = first.to(tl.int64) + rows // MEMBERS
        heads = head + rows % MEMBERS
        inside = (position < last)[:, None] & (columns < WIDTH)[None, :]
        queries = tl.load(q + (position * q_stride + heads * WIDTH)[:, None] + columns[None, :], inside, 0.0)
        top = tl.full([ROWS * MEMBERS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS * MEMBERS], tl.float32)
        result = tl.zeros([ROWS * MEMBERS, BLOCK], tl.float32)
        document = start.to(tl.int64) * k_stride + head // GROUP * WIDTH
        length = end - start
        for key in range(0, length, KEYS):
            here = key + keys < length
            at = document + (key + keys)[:, None] * k_stride + columns[None, :]
            # Rows of another document count for nothing, and are not read: 0 times what overflowed there is no 0.
            known = here[:, None] & (columns < WIDTH)[None, :]
            found = tl.load(k + at, known, 0.0)
            scores = tl.dot(queries, tl.trans(found)) * scale + tl.where(here, 0.0, float("-inf"))[None, :]
            highest = tl.maximum(top, tl.max(scores, 1))
            weights = tl.exp2(scores - highest[:, None])
            shrink = tl.exp2(top - highest)
            total = total * shrink + tl.sum(weights, 1)
            values = tl.load(v + at, known, 0.0)
            result = tl.dot(weights.to(values.dtype), values, result * shrink[:, None])
            top = highest
        result = (result / total[:, None]).to(out.dtype.element_ty)
        tl.store(out + (position * HEADS * WIDTH + heads * WIDTH)[:, None] + columns[None, :], result, inside)

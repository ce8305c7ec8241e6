"""Attention within the documents of a packed row, for Hopper GPUs, in Gluon: bfloat16, heads of 128, two query heads to
a key head.

A program works through tiles of 64 rows, one key head at a time: one warp loads queries, keys and values with the bulk
copy engine, and of two warp groups each takes one of the query heads, at a pace of its own, so that one of them
multiplies while the other takes exponentials. Rows of a block that belong to the next document are read, and count for
nothing.
"""

from functools import cache
from itertools import pairwise

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from omnitts.model.hopper import HEAD, begin, described, early_launch, multiprocessors
from omnitts.model.tiled_attention import LOG2E, rows_of_a_tile, tile_table, tiled_attention

ROWS = 64  # of a tile

_MANY_ROWS = 4096  # from here on, keys come in larger blocks
_HEAD, _ROWS = gl.constexpr(HEAD), gl.constexpr(ROWS)


@cache
def attention_works(device: torch.device) -> bool:
    """Whether this kernel runs here, found out by trying it beside the portable one."""
    generator = torch.Generator(device).manual_seed(0)
    try:
        for positions in (300, _MANY_ROWS + 40):
            documents = list(pairwise([0, 100, 100, 290, positions]))
            qkv = torch.randn(positions, 8, HEAD, device=device, generator=generator).bfloat16()
            q, k, v = qkv.split((4, 2, 2), 1)
            tables = (tile_table(documents, documents, rows, positions) for rows in (ROWS, rows_of_a_tile(4, 2)))
            ours, portable = (torch.from_numpy(table).to(device) for table in tables)
            expected = tiled_attention(q, k, v, portable).float()
            error = (hopper_attention(q, k, v, ours).float() - expected).abs().mean()
            if not (error < 0.01 * expected.abs().mean()).item():
                return False
    except Exception:  # a version of Triton or a driver that does not know it; there are kernels for that
        return False
    return True


def hopper_attention(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor) -> Tensor:
    """`tiled_attention` in bfloat16, for twice as many query heads as key heads, of 128; tiles of `ROWS` rows."""
    positions, heads, _ = q.shape
    k_heads = k.shape[1]
    out = torch.empty(positions, heads, HEAD, dtype=q.dtype, device=q.device)
    keys, stages = (128, 4) if len(k) >= _MANY_ROWS else (64, 6)

    def blocks(tensor: Tensor, rows: int) -> object:
        count, heads, _ = tensor.shape
        return described(tensor.as_strided((count, heads * HEAD), (tensor.stride(0), 1)), [rows, HEAD])

    _attention_kernel[(min(multiprocessors(q.device), len(tiles) // 4 * k_heads),)](
        blocks(q, ROWS), blocks(k, keys), blocks(v, keys), blocks(out, ROWS), out, tiles, HEAD**-0.5 * LOG2E,
        K_HEADS=k_heads, KEYS=keys, STAGES=stages, num_warps=4, **early_launch(q.device),
    )  # fmt: skip
    return out


@gluon.jit
def _attention_kernel(
    q, k, v, stored, out, tiles, scale,
    K_HEADS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    queries = gl.allocate_shared_memory(gl.bfloat16, [2, _ROWS, _HEAD], q.layout)
    ring = gl.allocate_shared_memory(gl.bfloat16, [STAGES, KEYS, _HEAD], k.layout)  # keys and values in turn
    stage0 = gl.allocate_shared_memory(gl.bfloat16, [_ROWS, _HEAD], stored.layout)
    stage1 = gl.allocate_shared_memory(gl.bfloat16, [_ROWS, _HEAD], stored.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    asked = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())  # queries are there; are used up
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=2)
    mbarrier.init(asked.index(0), count=1)
    mbarrier.init(asked.index(1), count=2)
    fence_async_shared()
    begin(EARLY)
    gl.warp_specialize(
        [
            (_attend, (stored, out, queries, ring, stage0, full, empty, asked, tiles, scale, 0, K_HEADS, KEYS, STAGES)),
            (_attend, (stored, out, queries, ring, stage1, full, empty, asked, tiles, scale, 1, K_HEADS, KEYS, STAGES)),
            (_load, (q, k, v, queries, ring, full, empty, asked, tiles, K_HEADS, KEYS, STAGES)),
        ],
        [4, 1],
        [240, 24],
    )


@gluon.jit
def _load(
    q, k, v, queries, ring, full, empty, asked, tiles,
    K_HEADS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    s = 0
    phase = 1  # fresh barriers let the first round pass
    turn = 1
    for work in range(gl.program_id(0), gl.load(tiles) * K_HEADS, gl.num_programs(0)):
        head = work % K_HEADS
        tile = tiles + 4 * (work // K_HEADS)
        first, start, end = gl.load(tile + 1), gl.load(tile + 3), gl.load(tile + 4)
        mbarrier.wait(asked.index(1), turn)
        mbarrier.expect(asked.index(0), 2 * _ROWS * _HEAD * 2)
        tma.async_copy_global_to_shared(q, [first, 2 * head * _HEAD], asked.index(0), queries.index(0))
        tma.async_copy_global_to_shared(q, [first, (2 * head + 1) * _HEAD], asked.index(0), queries.index(1))
        turn ^= 1
        for key in range(start, end, KEYS):
            mbarrier.wait(empty.index(s), phase)
            mbarrier.expect(full.index(s), KEYS * _HEAD * 2)
            tma.async_copy_global_to_shared(k, [key, head * _HEAD], full.index(s), ring.index(s))
            mbarrier.wait(empty.index(s + 1), phase)
            mbarrier.expect(full.index(s + 1), KEYS * _HEAD * 2)
            tma.async_copy_global_to_shared(v, [key, head * _HEAD], full.index(s + 1), ring.index(s + 1))
            s += 2
            if s == STAGES:
                s = 0
                phase ^= 1


@gluon.jit
def _attend(
    stored, out, queries, ring, stage, full, empty, asked, tiles, scale, HALF: gl.constexpr,
    K_HEADS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    SCORES: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    RESULT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, _HEAD, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=RESULT, k_width=2)
    s = 0
    phase = 0
    turn = 0
    for work in range(gl.program_id(0), gl.load(tiles) * K_HEADS, gl.num_programs(0)):
        head = 2 * (work % K_HEADS) + HALF
        tile = tiles + 4 * (work // K_HEADS)
        first, last = gl.load(tile + 1), gl.load(tile + 2)
        start, end = gl.load(tile + 3), gl.load(tile + 4)
        top = gl.full([_ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, SCORES))
        total = gl.zeros([_ROWS], gl.float32, gl.SliceLayout(1, SCORES))
        result = gl.zeros((_ROWS, _HEAD), gl.float32, RESULT)
        mbarrier.wait(asked.index(0), turn)
        turn ^= 1
        for key in range(start, end, KEYS):
            mbarrier.wait(full.index(s), phase)
            scores = gl.zeros((_ROWS, KEYS), gl.float32, SCORES)
            scores = warpgroup_mma(
                queries.index(HALF), ring.index(s).permute((1, 0)), scores, use_acc=False, is_async=True
            )
            scores = warpgroup_mma_wait(num_outstanding=0, deps=(scores,))
            mbarrier.arrive(empty.index(s), count=1)
            if key + KEYS >= end:
                mbarrier.arrive(asked.index(1), count=1)
                inside = key + gl.arange(0, KEYS, gl.SliceLayout(0, SCORES)) < end
                scores = gl.where(gl.expand_dims(inside, 0), scores, float("-inf"))
            highest = gl.maximum(top, gl.max(scores, 1) * scale)
            weights = gl.exp2(scores * scale - gl.expand_dims(highest, 1))
            shrink = gl.exp2(top - highest)
            total = total * shrink + gl.sum(weights, 1)
            top = highest
            result = result * gl.expand_dims(gl.convert_layout(shrink, gl.SliceLayout(1, RESULT)), 1)
            weights = gl.convert_layout(weights.to(gl.bfloat16), WEIGHTS)
            mbarrier.wait(full.index(s + 1), phase)
            result = warpgroup_mma(weights, ring.index(s + 1), result, is_async=True)
            result = warpgroup_mma_wait(num_outstanding=0, deps=(result,))
            mbarrier.arrive(empty.index(s + 1), count=1)
            s += 2
            if s == STAGES:
                s = 0
                phase ^= 1
        result = result / gl.expand_dims(gl.convert_layout(total, gl.SliceLayout(1, RESULT)), 1)
        if first + _ROWS <= last:
            tma.store_wait(0)
            stage.store(result.to(gl.bfloat16))
            fence_async_shared()
            tma.async_copy_shared_to_global(stored, [first, head * _HEAD], stage)
        else:  # the copy engine would write over the next document's rows
            rows = first + gl.arange(0, _ROWS, gl.SliceLayout(1, RESULT))
            columns = head * _HEAD + gl.arange(0, _HEAD, gl.SliceLayout(0, RESULT))
            at = gl.expand_dims(rows.to(gl.int64), 1) * (2 * K_HEADS * _HEAD) + gl.expand_dims(columns, 0)
            gl.store(out + at, result.to(gl.bfloat16), gl.expand_dims(rows < last, 1))
    tma.store_wait(0)

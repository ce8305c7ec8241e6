"""Matrix products with what follows them, for Hopper GPUs: q/k norm and rotary embedding after the one for queries,
keys and values, SwiGLU after gates and ups. The products' results never go to memory and back.

Written in Gluon, which comes with Triton. A program works on tiles of 128 rows: one warp loads operands with the bulk
copy engine into a ring, two warp groups multiply, 64 rows each, at a pace of their own, so that loads go on while one
of them is in its epilogue. An element's sum is taken in the same order whatever the number of rows.
"""

from functools import cache

import torch
import triton
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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from omnitts.model.kernels import norm_and_rotate, swiglu

HEAD = 128  # the only width of heads that these kernels know
ALTERNATE = 8  # rows of gates, then as many of ups
FEW_ROWS = 1024  # below, tiles are narrower, or there would be too few for all multiprocessors

_DEPTH = 64  # of a tile of operands
_NEIGHBOURS = 16  # tiles of rows that share a tile of the matrix before the next one is loaded
_REGISTERS = (240, 24)  # of a thread that multiplies, and of one that loads


def fused_products_work(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether these kernels run here, found out by trying."""
    if device.type != "cuda" or dtype != torch.bfloat16:
        return False
    return torch.cuda.get_device_capability(device)[0] == 9 and _tried(device)


@cache
def _tried(device: torch.device) -> bool:
    """Both kernels against the separate passes, on a few rows more than a tile has and on many."""
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    def close(made: Tensor, expected: Tensor) -> bool:
        return bool(((made.float() - expected.float()).abs().mean() < 0.01 * expected.float().abs().mean()).item())

    try:
        for rows in (200, FEW_ROWS + 200):
            x, gate, up = (random(count, 128).bfloat16() for count in (rows, 512, 512))
            if not close(swiglu_product(x, alternated(gate, up)), swiglu(x @ torch.cat([gate, up]).t())):
                return False
            weight = random(8 * HEAD, 128).bfloat16()
            q_weight, k_weight = random(HEAD).bfloat16(), random(HEAD).bfloat16()
            angle, place = random(50, HEAD // 2), torch.arange(rows, dtype=torch.int32, device=device) % 50
            rotation = q_weight, k_weight, angle.cos(), angle.sin(), place
            expected = (x @ weight.t()).unflatten(-1, (-1, HEAD))
            norm_and_rotate(expected, *rotation, 4, 1e-6)
            if not close(rotated_product(x, weight, *rotation, (4, 2), 1e-6), expected):
                return False
    except Exception:  # a version of Triton or a driver that does not know it; there are kernels for that
        return False
    return True


def fits(*matrices: Tensor) -> bool:
    """Whether weights [N, K] have sizes that the tiles divide."""
    return all(matrix.shape[0] % 256 == 0 and matrix.shape[1] % _DEPTH == 0 for matrix in matrices)


def alternated(gate: Tensor, up: Tensor) -> Tensor:
    """Weights [F, K] of gates and ups -> [2 * F, K], eight rows of one and eight of the other in turn."""
    parts = (weight.unflatten(0, (-1, ALTERNATE)) for weight in (gate, up))
    return torch.stack(tuple(parts), 1).flatten(0, 2).contiguous()


def swiglu_product(x: Tensor, weight: Tensor) -> Tensor:
    """silu(x @ gate.T) * (x @ up.T): x [P, K], weight as `alternated` gives it -> [P, F]; bfloat16."""
    out = torch.empty(len(x), weight.shape[0] // 2, dtype=x.dtype, device=x.device)
    tile = 256 if len(x) >= FEW_ROWS else 128
    _launch(x, weight, out, tile, (x, x, x, x, x), 0.0, (0, 0), ROTATE=False)
    return out


def rotated_product(
    x: Tensor,
    weight: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    place: Tensor,
    heads: tuple[int, int],
    eps: float,
) -> Tensor:
    """x @ weight.T with `kernels.norm_and_rotate`: x [P, K] -> [P, q heads + 2 * k heads, 128]; bfloat16.

    heads: numbers of query and of key heads, both even; the other arguments are `norm_and_rotate`'s.
    """
    out = torch.empty(len(x), weight.shape[0], dtype=x.dtype, device=x.device)
    _launch(x, weight, out, 256, (q_weight, k_weight, cos, sin, place), eps, (heads[0], sum(heads)), ROTATE=True)
    return out.unflatten(-1, (-1, HEAD))


def _launch(
    x: Tensor, weight: Tensor, out: Tensor, tile: int, rotation: tuple, eps: float, ends: tuple[int, int], ROTATE: bool
) -> None:
    positions, depth = x.shape
    width = 128 if ROTATE else tile // 2  # of the parts in which a tile is stored
    layout = gl.NVMMASharedLayout.get_default_for
    blocks = [64, _DEPTH], [tile, _DEPTH], [64, width]
    tensors = (
        TensorDescriptor(tensor, list(tensor.shape), [tensor.stride(0), 1], block, layout(block, gl.bfloat16))
        for tensor, block in zip((x, weight, out), blocks, strict=True)
    )
    tiles = triton.cdiv(positions, 128) * (len(weight) // tile)
    _product_kernel[(min(tiles, _multiprocessors(x.device)),)](
        *tensors, *rotation, eps, positions,
        N=len(weight), K=depth, TILE=tile, STAGES=4 if tile == 256 else 6, ROTATE=ROTATE, Q_END=ends[0], K_END=ends[1],
        num_warps=4,
    )  # fmt: skip


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@gluon.jit(do_not_specialize=["positions"])
def _product_kernel(
    x, weight, out, q_weight, k_weight, cos, sin, place, eps, positions,
    N: gl.constexpr, K: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr, ROTATE: gl.constexpr,
    Q_END: gl.constexpr, K_END: gl.constexpr,
):  # fmt: skip
    rows = gl.allocate_shared_memory(gl.bfloat16, [2 * STAGES, 64, _DEPTH_], x.layout)
    columns = gl.allocate_shared_memory(gl.bfloat16, [STAGES, TILE, _DEPTH_], weight.layout)
    stage0 = gl.allocate_shared_memory(gl.bfloat16, out.block_type.shape, out.layout)
    stage1 = gl.allocate_shared_memory(gl.bfloat16, out.block_type.shape, out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=2)
    fence_async_shared()
    gl.warp_specialize(
        [
            (_multiply, (out, rows, columns, stage0, full, empty, q_weight, k_weight, cos, sin, place, eps, positions,
                         0, N, K, TILE, STAGES, ROTATE, Q_END, K_END)),
            (_multiply, (out, rows, columns, stage1, full, empty, q_weight, k_weight, cos, sin, place, eps, positions,
                         1, N, K, TILE, STAGES, ROTATE, Q_END, K_END)),
            (_load, (x, weight, rows, columns, full, empty, positions, N, K, TILE, STAGES)),
        ],
        [4, 1],
        [_MULTIPLIER_REGISTERS, _LOADER_REGISTERS],
    )  # fmt: skip


_DEPTH_ = gl.constexpr(_DEPTH)
_NEIGHBOURS_ = gl.constexpr(_NEIGHBOURS)
_MULTIPLIER_REGISTERS, _LOADER_REGISTERS = (gl.constexpr(count) for count in _REGISTERS)


@gluon.jit
def _tile_place(tile, row_tiles, COLUMN_TILES: gl.constexpr):
    """Row and column of a tile, in an order in which neighbours in time share operands in the cache."""
    group = tile // (_NEIGHBOURS_ * COLUMN_TILES)
    first = group * _NEIGHBOURS_
    size = gl.minimum(row_tiles - first, _NEIGHBOURS_)
    inside = tile - group * (_NEIGHBOURS_ * COLUMN_TILES)
    return first + inside % size, inside // size


@gluon.jit
def _load(
    x, weight, rows, columns, full, empty, positions,
    N: gl.constexpr, K: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    row_tiles = (positions + 127) // 128
    s = 0
    phase = 1  # fresh barriers let the first round pass
    for tile in range(gl.program_id(0), row_tiles * (N // TILE), gl.num_programs(0)):
        i, j = _tile_place(tile, row_tiles, N // TILE)
        for k in range(K // _DEPTH_):
            bar = full.index(s)
            mbarrier.wait(empty.index(s), phase)
            mbarrier.expect(bar, (128 + TILE) * _DEPTH_ * 2)
            tma.async_copy_global_to_shared(x, [i * 128, k * _DEPTH_], bar, rows.index(2 * s))
            tma.async_copy_global_to_shared(x, [i * 128 + 64, k * _DEPTH_], bar, rows.index(2 * s + 1))
            tma.async_copy_global_to_shared(weight, [j * TILE, k * _DEPTH_], bar, columns.index(s))
            s += 1
            if s == STAGES:
                s = 0
                phase ^= 1


@gluon.jit
def _multiply(
    out, rows, columns, stage, full, empty, q_weight, k_weight, cos, sin, place, eps, positions, HALF: gl.constexpr,
    N: gl.constexpr, K: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr, ROTATE: gl.constexpr,
    Q_END: gl.constexpr, K_END: gl.constexpr,
):  # fmt: skip
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, 16])
    row_tiles = (positions + 127) // 128
    s = 0
    phase = 0
    for tile in range(gl.program_id(0), row_tiles * (N // TILE), gl.num_programs(0)):
        i, j = _tile_place(tile, row_tiles, N // TILE)
        row = i * 128 + 64 * HALF
        column = j * TILE
        sums = gl.zeros((64, TILE), gl.float32, L)
        mbarrier.wait(full.index(s), phase)
        sums = warpgroup_mma(
            rows.index(2 * s + HALF), columns.index(s).permute((1, 0)), sums, use_acc=False, is_async=True
        )
        sums = warpgroup_mma_wait(num_outstanding=1, deps=(sums,))  # nothing to wait for: for the type
        last = s
        s += 1
        if s == STAGES:
            s = 0
            phase ^= 1
        for _k in range(1, K // _DEPTH_):
            mbarrier.wait(full.index(s), phase)
            sums = warpgroup_mma(rows.index(2 * s + HALF), columns.index(s).permute((1, 0)), sums, is_async=True)
            sums = warpgroup_mma_wait(num_outstanding=1, deps=(sums,))
            mbarrier.arrive(empty.index(last), count=1)
            last = s
            s += 1
            if s == STAGES:
                s = 0
                phase ^= 1
        sums = warpgroup_mma_wait(num_outstanding=0, deps=(sums,))
        mbarrier.arrive(empty.index(last), count=1)
        if ROTATE:
            head = column // 128
            a, b = _halves(sums, TILE)
            if head < K_END:
                heads_weight = q_weight if head < Q_END else k_weight
                a = _normed_and_rotated(a, row, positions, heads_weight, cos, sin, place, eps)
                b = _normed_and_rotated(b, row, positions, heads_weight, cos, sin, place, eps)
            _put(out, stage, a, row, column)
            _put(out, stage, b, row, column + 128)
        else:
            _put(out, stage, _swiglu(sums, TILE), row, column // 2)
    tma.store_wait(0)


@gluon.jit
def _halves(x, COLUMNS: gl.constexpr):
    """Left and right half of the columns of [64, COLUMNS], in the tensor cores' layout; nothing moves."""
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS // 2, 16])
    a, b = x.reshape((64, 2, COLUMNS // 2)).permute((0, 2, 1)).split()
    return gl.convert_layout(a, L, assert_trivial=True), gl.convert_layout(b, L, assert_trivial=True)


@gluon.jit
def _put(out, stage, x, row, column):
    tma.store_wait(0)
    stage.store(x.to(gl.bfloat16))
    fence_async_shared()
    tma.async_copy_shared_to_global(out, [row, column], stage)


@gluon.jit
def _normed_and_rotated(x, row, positions, weight, cos, sin, place, eps):
    """One head [64, 128], float32. Columns i and i + 64 lie in the same thread."""
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    WHOLE: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
    pairs = gl.arange(0, 64, layout=gl.SliceLayout(0, L))
    rows = gl.minimum(row + gl.arange(0, 64, layout=gl.SliceLayout(1, L)), positions - 1)
    first, second = _halves(x, 128)
    scale = gl.expand_dims(gl.rsqrt(gl.sum(first * first + second * second, 1) * (1.0 / 128) + eps), 1)
    first = first * scale * gl.expand_dims(gl.load(weight + pairs).to(gl.float32), 0)
    second = second * scale * gl.expand_dims(gl.load(weight + 64 + pairs).to(gl.float32), 0)
    angle = gl.expand_dims(gl.load(place + rows), 1) * 64 + gl.expand_dims(pairs, 0)
    c, s = gl.load(cos + angle), gl.load(sin + angle)
    turned = gl.join(first * c - second * s, second * c + first * s).permute((0, 2, 1)).reshape((64, 128))
    return gl.convert_layout(turned, WHOLE, assert_trivial=True)


@gluon.jit
def _swiglu(x, COLUMNS: gl.constexpr):
    """[64, COLUMNS] of 8 gates, 8 ups and so on, float32 -> [64, COLUMNS // 2]."""
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS // 2, 16])
    gate, up = x.reshape((64, COLUMNS // 16, 2, 8)).permute((0, 1, 3, 2)).split()
    made = gate * up / (1.0 + gl.exp(-gate))
    return gl.convert_layout(made.reshape((64, COLUMNS // 2)), L, assert_trivial=True)

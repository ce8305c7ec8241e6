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

from omnitts.model.kernels import begin, early_launch, norm_and_rotate, swiglu, to_float8

HEAD = 128  # the only width of heads that these kernels know
ALTERNATE = 8  # rows of gates, then as many of ups
FEW_ROWS = 1024  # below, tiles are narrower, or there would be too few for all multiprocessors

Scales = tuple[Tensor, Tensor]
"""Of float8 operands: float32, one for each row of x, and one for each row of a weight."""

_DEPTH = 128  # bytes of a row of a tile of operands
_NEIGHBOURS = 16  # tiles of rows that share a tile of the matrix before the next one is loaded
_REGISTERS = (240, 24)  # of a thread that multiplies, and of one that loads


@cache
def fused_products_work(device: torch.device, float8: bool) -> bool:
    """Whether these kernels run here, found out by trying both beside the separate passes.

    They are tried on a few rows more than a tile has, and on many; with operands in bfloat16, or in float8.
    """
    generator = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, generator=generator).bfloat16()

    def close(made: Tensor, expected: Tensor) -> bool:
        return bool(((made.float() - expected.float()).abs().mean() < 0.01 * expected.float().abs().mean()).item())

    try:
        for rows in (200, FEW_ROWS + 200):
            x, gate, up, weight = (random(count, 128) for count in (rows, 512, 512, 8 * HEAD))
            expected = swiglu(_plain_product(*_operands(x, torch.cat([gate, up]), float8)))
            if not close(swiglu_product(*_operands(x, alternated(gate, up), float8)), expected):
                return False
            angle, place = random(50, HEAD // 2).float(), torch.arange(rows, dtype=torch.int32, device=device) % 50
            rotation = random(HEAD), random(HEAD), angle.cos(), angle.sin(), place
            operands = _operands(x, weight, float8)
            expected = _plain_product(*operands).unflatten(-1, (-1, HEAD))
            norm_and_rotate(expected, *rotation, 4, 1e-6)
            if not close(rotated_product(*operands, *rotation, (4, 2), 1e-6), expected):
                return False
    except Exception:  # a version of Triton or a driver that does not know it; there are kernels for that
        return False
    return True


def _operands(x: Tensor, weight: Tensor, float8: bool) -> tuple[Tensor, Tensor, Scales | None]:
    if not float8:
        return x, weight, None
    (x, row_scale), (weight, column_scale) = to_float8(x), to_float8(weight)
    return x, weight, (row_scale, column_scale)


def _plain_product(x: Tensor, weight: Tensor, scales: Scales | None) -> Tensor:
    if scales is None:
        return x @ weight.t()
    return ((x.float() * scales[0]) @ (weight.float() * scales[1]).t()).bfloat16()


def fits(*matrices: Tensor) -> bool:
    """Whether weights [N, K] have sizes that the tiles divide, in any type."""
    return all(matrix.shape[0] % 256 == 0 and matrix.shape[1] % _DEPTH == 0 for matrix in matrices)


def alternated(gate: Tensor, up: Tensor) -> Tensor:
    """Weights [F, K] of gates and ups -> [2 * F, K], eight rows of one and eight of the other in turn."""
    parts = (weight.unflatten(0, (-1, ALTERNATE)) for weight in (gate, up))
    return torch.stack(tuple(parts), 1).flatten(0, 2).contiguous()


def swiglu_product(x: Tensor, weight: Tensor, scales: Scales | None) -> Tensor:
    """silu(x @ gate.T) * (x @ up.T): x [P, K], weight as `alternated` gives it -> [P, F] in bfloat16.

    x and weight are bfloat16 without scales, or float8 with them.
    """
    out = torch.empty(len(x), weight.shape[0] // 2, dtype=torch.bfloat16, device=x.device)
    tile = 256 if len(x) >= FEW_ROWS else 128
    _launch(x, weight, scales, out, tile, (x, x, x, x, x), 0.0, (0, 0), ROTATE=False)
    return out


def rotated_product(
    x: Tensor,
    weight: Tensor,
    scales: Scales | None,
    q_weight: Tensor,
    k_weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    place: Tensor,
    heads: tuple[int, int],
    eps: float,
) -> Tensor:
    """x @ weight.T with `kernels.norm_and_rotate`: x [P, K] -> [P, q heads + 2 * k heads, 128] in bfloat16.

    heads: numbers of query and of key heads, both even; x, weight and scales: see `swiglu_product`; the other
    arguments are `norm_and_rotate`'s.
    """
    out = torch.empty(len(x), weight.shape[0], dtype=torch.bfloat16, device=x.device)
    rotation = q_weight, k_weight, cos, sin, place
    _launch(x, weight, scales, out, 256, rotation, eps, (heads[0], sum(heads)), ROTATE=True)
    return out.unflatten(-1, (-1, HEAD))


def _launch(
    x: Tensor,
    weight: Tensor,
    scales: Scales | None,
    out: Tensor,
    tile: int,
    rotation: tuple[Tensor, ...],
    eps: float,
    ends: tuple[int, int],
    ROTATE: bool,
) -> None:
    positions, depth = x.shape
    step = _DEPTH // x.element_size()
    width = 128 if ROTATE else tile // 2  # of the parts in which a tile is stored
    tensors = (described(x, [64, step]), described(weight, [tile, step]), described(out, [64, width]))
    tiles = triton.cdiv(positions, 128) * (len(weight) // tile)
    _product_kernel[(min(tiles, multiprocessors(x.device)),)](
        *tensors, *(scales or (out, out)), *rotation, eps, positions,
        N=len(weight), K=depth, DEPTH=step, TILE=tile, STAGES=4 if tile == 256 else 6, SCALED=scales is not None,
        ROTATE=ROTATE, Q_END=ends[0], K_END=ends[1], num_warps=4, **early_launch(x.device),
    )  # fmt: skip


def described(tensor: Tensor, block: list[int]) -> TensorDescriptor:
    """A matrix for the copy engine, in blocks."""
    kind = gl.bfloat16 if tensor.dtype == torch.bfloat16 else gl.float8e4nv
    layout = gl.NVMMASharedLayout.get_default_for(block, kind)
    return TensorDescriptor(tensor, list(tensor.shape), [tensor.stride(0), 1], block, layout)


@cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@gluon.jit(do_not_specialize=["positions"])
def _product_kernel(
    x, weight, out, row_scale, column_scale, q_weight, k_weight, cos, sin, place, eps, positions,
    N: gl.constexpr, K: gl.constexpr, DEPTH: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr,
    SCALED: gl.constexpr, ROTATE: gl.constexpr, Q_END: gl.constexpr, K_END: gl.constexpr,
    EARLY: gl.constexpr,
):  # fmt: skip
    rows = gl.allocate_shared_memory(x.dtype, [2 * STAGES, 64, DEPTH], x.layout)
    columns = gl.allocate_shared_memory(x.dtype, [STAGES, TILE, DEPTH], weight.layout)
    stage0 = gl.allocate_shared_memory(gl.bfloat16, out.block_type.shape, out.layout)
    stage1 = gl.allocate_shared_memory(gl.bfloat16, out.block_type.shape, out.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=2)
    fence_async_shared()
    begin(EARLY)
    gl.warp_specialize(
        [
            (_multiply, (out, rows, columns, stage0, full, empty, row_scale, column_scale, q_weight, k_weight, cos, sin,
                         place, eps, positions, 0, N, K, DEPTH, TILE, STAGES, SCALED, ROTATE, Q_END, K_END)),
            (_multiply, (out, rows, columns, stage1, full, empty, row_scale, column_scale, q_weight, k_weight, cos, sin,
                         place, eps, positions, 1, N, K, DEPTH, TILE, STAGES, SCALED, ROTATE, Q_END, K_END)),
            (_load, (x, weight, rows, columns, full, empty, positions, N, K, DEPTH, TILE, STAGES)),
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
    N: gl.constexpr, K: gl.constexpr, DEPTH: gl.constexpr, TILE: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    row_tiles = (positions + 127) // 128
    s = 0
    phase = 1  # fresh barriers let the first round pass
    for tile in range(gl.program_id(0), row_tiles * (N // TILE), gl.num_programs(0)):
        i, j = _tile_place(tile, row_tiles, N // TILE)
        for k in range(K // DEPTH):
            bar = full.index(s)
            mbarrier.wait(empty.index(s), phase)
            mbarrier.expect(bar, (128 + TILE) * _DEPTH_)
            tma.async_copy_global_to_shared(x, [i * 128, k * DEPTH], bar, rows.index(2 * s))
            tma.async_copy_global_to_shared(x, [i * 128 + 64, k * DEPTH], bar, rows.index(2 * s + 1))
            tma.async_copy_global_to_shared(weight, [j * TILE, k * DEPTH], bar, columns.index(s))
            s += 1
            if s == STAGES:
                s = 0
                phase ^= 1


@gluon.jit
def _multiply(
    out, rows, columns, stage, full, empty, row_scale, column_scale, q_weight, k_weight, cos, sin, place, eps,
    positions, HALF: gl.constexpr, N: gl.constexpr, K: gl.constexpr, DEPTH: gl.constexpr, TILE: gl.constexpr,
    STAGES: gl.constexpr, SCALED: gl.constexpr, ROTATE: gl.constexpr, Q_END: gl.constexpr, K_END: gl.constexpr,
):  # fmt: skip
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE, DEPTH // 4])
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
        for _k in range(1, K // DEPTH):
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
        if SCALED:
            sums = _scaled(sums, row_scale, column_scale, row, column, positions, TILE)
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
def _scaled(x, row_scale, column_scale, row, column, positions, COLUMNS: gl.constexpr):
    """Sums of float8 products times both scales, in the layout of bfloat16 products; nothing moves."""
    L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    x = gl.convert_layout(x, L, assert_trivial=True)
    rows = gl.minimum(row + gl.arange(0, 64, layout=gl.SliceLayout(1, L)), positions - 1)
    columns = column + gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, L))
    return x * gl.expand_dims(gl.load(row_scale + rows), 1) * gl.expand_dims(gl.load(column_scale + columns), 0)


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

"""What lies between the backbone's matrix products, in Triton: one pass over memory each.

Sums are taken in float32, whatever the rows' dtype. Each kernel has a program a row or a part of one, so that a row's
bits do not depend on the rows beside it. Those that end in a product's input can quantise it in the same pass: to
float8 (e4m3), with a scale for each row that takes its largest value to the largest float8.

On Hopper and later GPUs each is launched while the kernel before it still runs (CUDA's programmatic dependent launch),
and waits for it when it comes to its inputs: launching takes about as long as the work of a small batch.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_MOST_FLOAT8 = tl.constexpr(448.0)
_FEW_ROWS = 512


@cache
def early_launch(device: torch.device) -> dict[str, bool]:
    """Arguments of a kernel that calls `begin`: whether it is launched early."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 9:
        return {"EARLY": False}
    return {"EARLY": True, "launch_pdl": True}


def embed(
    text: Tensor, frame: Tensor, codes: Tensor, text_table: Tensor, audio_table: Tensor, vocabulary: int
) -> Tensor:
    """Embeddings of a packed row's positions: x [P, H].

    text: int32 [P], a token id, or -1; frame: int32 [P], a row of `codes`, or -1; codes: int32 [F, C], embedded as the
    sum over the codebooks. Positions of neither kind are padding, and 0. vocabulary: rows of a codebook in audio_table.
    """
    width = text_table.shape[1]
    x = torch.empty(len(text), width, dtype=text_table.dtype, device=text.device)
    _embed_kernel[(len(text),)](
        text, frame, codes, text_table, audio_table, x, width, vocabulary,
        CODEBOOKS=codes.shape[1], BLOCK=triton.next_power_of_2(width), num_warps=4, **early_launch(x.device),
    )  # fmt: skip
    return x


def rms_norm(x: Tensor, weight: Tensor, eps: float, delta: Tensor | None = None) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight, by rows: [P, H] -> [P, H]. A delta [P, H] is first added to x, in place."""
    out = torch.empty_like(x)
    _rms_norm(x, weight, eps, delta, out, None)
    return out


def rms_norm_float8(x: Tensor, weight: Tensor, eps: float, delta: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`rms_norm`, quantised: float8 [P, H] and the rows' scales, float32 [P, 1]."""
    out, scale = _float8_like(x)
    _rms_norm(x, weight, eps, delta, out, scale)
    return out, scale


def _rms_norm(x: Tensor, weight: Tensor, eps: float, delta: Tensor | None, out: Tensor, scale: Tensor | None) -> None:
    width = x.shape[1]
    block = triton.next_power_of_2(width)
    _rms_norm_kernel[(len(x),)](
        x, x if delta is None else delta, weight, out, out if scale is None else scale, width, eps,
        ADD=delta is not None, QUANTIZE=scale is not None, BLOCK=block, num_warps=_warps(len(x), block),
        **early_launch(x.device),
    )  # fmt: skip


def _warps(rows: int, block: int) -> int:
    """Where rows are few, a sum takes less time in one warp than between several."""
    return 1 if rows < _FEW_ROWS and block <= 1024 else max(1, min(8, block // 256))


def _float8_like(x: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    return out, torch.empty(len(x), 1, dtype=torch.float32, device=x.device)


def norm_and_rotate(
    qkv: Tensor, q_weight: Tensor, k_weight: Tensor, cos: Tensor, sin: Tensor, place: Tensor, q_heads: int, eps: float
) -> None:
    """RMSNorm and rotary embedding of every query and key head, in place.

    qkv: [P, heads, D], query heads first, then as many key heads as value heads; q_weight, k_weight: [D]; cos, sin:
    float32 [places, D / 2]; place: int32 [P], each position's place in its document. Pairs i with i + D / 2.
    """
    positions, heads, width = qkv.shape
    k_heads = (heads - q_heads) // 2
    group = _largest_power_of_two_in(q_heads, k_heads)
    _norm_and_rotate_kernel[(positions, (q_heads + k_heads) // group)](
        qkv, q_weight, k_weight, cos, sin, place, qkv.stride(0), eps,
        Q_GROUPS=q_heads // group, GROUP=group, HALF=width // 2, num_warps=max(1, min(4, group * width // 512)),
        **early_launch(qkv.device),
    )  # fmt: skip


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, gate_up [P, 2 * F] with the gates first -> [P, F]."""
    positions, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(positions, width, dtype=gate_up.dtype, device=gate_up.device)
    block = min(1024, triton.next_power_of_2(width))
    _swiglu_kernel[(positions, triton.cdiv(width, block))](
        gate_up, out, width, BLOCK=block, num_warps=4, **early_launch(out.device)
    )
    return out


def swiglu_float8(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """`swiglu`, quantised: float8 [P, F] and the rows' scales, float32 [P, 1]."""
    width = gate_up.shape[1] // 2
    out, scale = _float8_like(gate_up[:, :width])
    _swiglu_float8_kernel[(len(gate_up),)](
        gate_up, out, scale, width, BLOCK=triton.next_power_of_2(width), num_warps=8, **early_launch(out.device)
    )
    return out, scale


def to_float8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [P, F] as float8 and their scales, float32 [P, 1]."""
    out, scale = _float8_like(x)
    block = triton.next_power_of_2(x.shape[1])
    _to_float8_kernel[(len(x),)](
        x, out, scale, x.shape[1], BLOCK=block, num_warps=max(1, min(8, block // 256)), **early_launch(x.device)
    )
    return out, scale


def _largest_power_of_two_in(a: int, b: int) -> int:
    both = a | b
    return both & -both


@triton.jit
def begin(EARLY: tl.constexpr):
    """To be called before anything is read or written, by every program: lets the next kernel be launched, and waits
    for the one before."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def _embed_kernel(
    text, frame, codes, text_table, audio_table, x, width, vocabulary,
    CODEBOOKS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    position = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    token = tl.load(text + position).to(tl.int64)
    row = tl.load(frame + position).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    if token >= 0:
        total += tl.load(text_table + token * width + columns, inside, 0.0).to(tl.float32)
    if row >= 0:
        for codebook in tl.static_range(CODEBOOKS):
            code = tl.load(codes + row * CODEBOOKS + codebook) + codebook * vocabulary
            total += tl.load(audio_table + code.to(tl.int64) * width + columns, inside, 0.0).to(tl.float32)
    tl.store(x + position * width + columns, total.to(x.dtype.element_ty), inside)


@triton.jit
def _rms_norm_kernel(
    x, delta, weight, out, scales, width, eps,
    ADD: tl.constexpr, QUANTIZE: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    position = tl.program_id(0).to(tl.int64)
    start = position * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    row = tl.load(x + start + columns, inside, 0.0).to(tl.float32)
    if ADD:
        row += tl.load(delta + start + columns, inside, 0.0).to(tl.float32)
        rounded = row.to(x.dtype.element_ty)
        tl.store(x + start + columns, rounded, inside)
        row = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(row * row, 0) / width + eps)
    row = row * scale * tl.load(weight + columns, inside, 0.0).to(tl.float32)
    if QUANTIZE:
        _store_float8(row, out + start + columns, inside, scales + position)
    else:
        tl.store(out + start + columns, row.to(out.dtype.element_ty), inside)


@triton.jit
def _store_float8(row, at, inside, scale_at):
    scale = tl.maximum(tl.max(tl.abs(row), 0), 1e-12) / _MOST_FLOAT8
    tl.store(scale_at, scale)
    tl.store(at, (row * (1.0 / scale)).to(tl.float8e4nv), inside)


@triton.jit
def _to_float8_kernel(x, out, scales, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    begin(EARLY)
    position = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    row = tl.load(x + position * width + columns, inside, 0.0).to(tl.float32)
    _store_float8(row, out + position * width + columns, inside, scales + position)


@triton.jit
def _swiglu_float8_kernel(gate_up, out, scales, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    begin(EARLY)
    position = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up + position * 2 * width + columns, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up + position * 2 * width + width + columns, inside, 0.0).to(tl.float32)
    _store_float8(gate * tl.sigmoid(gate) * up, out + position * width + columns, inside, scales + position)


@triton.jit
def _norm_and_rotate_kernel(
    qkv, q_weight, k_weight, cos, sin, place, stride, eps,
    Q_GROUPS: tl.constexpr, GROUP: tl.constexpr, HALF: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    begin(EARLY)
    position, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pairs = tl.arange(0, HALF)
    heads = tl.arange(0, GROUP)
    at = qkv + position * stride + (group * GROUP + heads)[:, None] * (2 * HALF) + pairs[None, :]
    first, second = tl.load(at).to(tl.float32), tl.load(at + HALF).to(tl.float32)
    square = tl.sum(first * first, 1) + tl.sum(second * second, 1)
    scale = tl.rsqrt(square / (2 * HALF) + eps)[:, None]
    weight = q_weight if group < Q_GROUPS else k_weight
    first = first * scale * tl.load(weight + pairs).to(tl.float32)[None, :]
    second = second * scale * tl.load(weight + HALF + pairs).to(tl.float32)[None, :]
    angle = tl.load(place + position).to(tl.int64) * HALF + pairs
    c, s = tl.load(cos + angle)[None, :], tl.load(sin + angle)[None, :]
    tl.store(at, (first * c - second * s).to(qkv.dtype.element_ty))
    tl.store(at + HALF, (second * c + first * s).to(qkv.dtype.element_ty))


@triton.jit
def _swiglu_kernel(gate_up, out, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):
    begin(EARLY)
    position = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up + position * 2 * width + columns, inside, 0.0).to(tl.float32)
    up = tl.load(gate_up + position * 2 * width + width + columns, inside, 0.0).to(tl.float32)
    tl.store(out + position * width + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), inside)

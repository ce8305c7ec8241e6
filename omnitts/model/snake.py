"""What lies between a DAC decoder's convolutions, in Triton: one pass over memory where torch takes many."""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024  # samples of a channel a program


def silent_snake(x: Tensor, bias: Tensor, alpha: Tensor, sound: Tensor) -> Tensor:
    """y + sin(alpha * y)**2 / alpha of y = x + bias where there is sound, else 0; in float32, returned in x's dtype.

    x: [1, C, N]; bias, alpha: C numbers; sound: bool [T], whether a frame is a clip's, with N / T steps of x a frame.
    """
    x = x.contiguous()
    out = x.new_empty(x.shape)
    _, channels, steps = x.shape
    _silent_snake_kernel[(triton.cdiv(steps, _BLOCK), channels)](
        x, bias, alpha.contiguous(), sound, out, steps, steps // len(sound), BLOCK=_BLOCK, num_warps=4
    )
    return out


def add_biased(x: Tensor, y: Tensor, bias: Tensor) -> None:
    """x += y + bias, in place: x, y [1, C, N], bias [C]."""
    _, channels, steps = x.shape
    _add_biased_kernel[(triton.cdiv(steps, _BLOCK), channels)](
        x, y.contiguous(), bias, steps, BLOCK=_BLOCK, num_warps=4
    )


@triton.jit
def _add_biased_kernel(x, y, bias, steps, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    inside = columns < steps
    at = channel.to(tl.int64) * steps + columns
    total = tl.load(x + at, inside, 0.0).to(tl.float32) + tl.load(y + at, inside, 0.0).to(tl.float32)
    tl.store(x + at, (total + tl.load(bias + channel).to(tl.float32)).to(x.dtype.element_ty), inside)


@triton.jit
def _silent_snake_kernel(x, bias, alpha, sound, out, steps, rate, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    inside = columns < steps
    heard = tl.load(sound + columns // rate, inside, 0) != 0
    at = channel.to(tl.int64) * steps + columns
    value = tl.load(x + at, inside & heard, 0.0).to(tl.float32) + tl.load(bias + channel).to(tl.float32)
    slope = tl.load(alpha + channel).to(tl.float32)
    sine = tl.sin(slope * value)
    value = tl.where(heard, value + sine * sine / (slope + 1e-9), 0.0)
    tl.store(out + at, value.to(out.dtype.element_ty), inside)

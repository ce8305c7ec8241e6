"""DAC's activation over a row of clips, in Triton: one pass over memory where torch's operations take six."""

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024  # samples of a channel a program


def silent_snake(x: Tensor, alpha: Tensor, sound: Tensor) -> Tensor:
    """x + sin(alpha * x)**2 / alpha where there is sound, else 0; computed in float32, returned in x's dtype.

    x: [1, C, N]; alpha: C numbers; sound: bool [T], whether a frame is a clip's, with N / T steps of x a frame.
    """
    x = x.contiguous()
    out = x.new_empty(x.shape)
    _, channels, steps = x.shape
    _silent_snake_kernel[(triton.cdiv(steps, _BLOCK), channels)](
        x, alpha.contiguous(), sound, out, steps, steps // len(sound), BLOCK=_BLOCK, num_warps=4
    )
    return out


@triton.jit
def _silent_snake_kernel(x, alpha, sound, out, steps, rate, BLOCK: tl.constexpr):
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1)
    inside = columns < steps
    heard = tl.load(sound + columns // rate, inside, 0) != 0
    at = channel.to(tl.int64) * steps + columns
    value = tl.load(x + at, inside & heard, 0.0).to(tl.float32)
    slope = tl.load(alpha + channel).to(tl.float32)
    sine = tl.sin(slope * value)
    value += sine * sine / (slope + 1e-9)  # 0 where it was not loaded
    tl.store(out + at, value.to(out.dtype.element_ty), inside)

"""Counter-based noise: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

A draw is a pure function of (seed, step, cell, index, stream), so noise does not depend on the batch it is drawn
in, on the order of work, or on the device.
"""

import torch
from torch import Tensor

from omnitts.sampler import exact

TOKEN_STREAM = 0  # noise over the vocabulary: which token a cell takes; a stream is two wide
POSITION_STREAM = 2  # noise over the canvas: which cells are revealed

LEAST_UNIFORM = 2.0**-33
MOST_UNIFORM = 1 - 2.0**-24

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW32 = 0xFFFFFFFF


def philox4x32(key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor, Tensor, Tensor]) -> list[Tensor]:
    """Philox 4x32-10 on int64 tensors that hold unsigned 32-bit words; all broadcast together.

    Returns the four output words, int64 in [0, 2**32).
    """
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        # The products fill 64 bits and may come out negative; their bit patterns are right all the same.
        p0 = c0 * _MULTIPLIERS[0]
        p1 = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _LOW32) ^ c1 ^ k0,
            p1 & _LOW32,
            ((p0 >> 32) & _LOW32) ^ c3 ^ k1,
            p0 & _LOW32,
        )
        k0 = (k0 + _KEY_STEPS[0]) & _LOW32
        k1 = (k1 + _KEY_STEPS[1]) & _LOW32
    return list(torch.broadcast_tensors(c0, c1, c2, c3))


def uniform(seed: Tensor, step: Tensor, cell: Tensor, index: Tensor, stream: int) -> Tensor:
    """Uniform draws in the open interval (0, 1), float32; the arguments are int64 tensors that broadcast together.

    An index's 32 random bits are two halves: the upper one from the call with the counter
    (index // 1024 * 128 + index % 128, cell, step, stream), the lower one from the call with stream + 1. A call has
    eight halves, the lower ones of its four words and then the upper ones, and index // 128 % 8 picks one: neighbours
    have counters of their own, as the lanes of a GPU like it, and one call tells eight draws to 1 in 65,536. The draw
    is the 32 bits, rounded to float32, over 2**32; 0 and 1 are left out.
    """
    counter = ((index >> 10) << 7) | (index & 127)
    part = (index >> 7) & 7
    upper, lower = (_half(seed, step, cell, counter, part, stream + i) for i in (0, 1))
    return (((upper << 16) | lower).float() * 2.0**-32).clamp(LEAST_UNIFORM, MOST_UNIFORM)


def _half(seed: Tensor, step: Tensor, cell: Tensor, counter: Tensor, part: Tensor, stream: int) -> Tensor:
    key = (seed & _LOW32, (seed >> 32) & _LOW32)
    words = philox4x32(key, (counter, cell, step, torch.full_like(step, stream)))
    choice = part & 3
    word = torch.where(
        choice < 2, torch.where(choice == 0, words[0], words[1]), torch.where(choice == 2, words[2], words[3])
    )
    return (word >> (part >> 2 << 4)) & 0xFFFF


def gumbel(seed: Tensor, step: Tensor, cell: Tensor, index: Tensor, stream: int) -> Tensor:
    """Standard Gumbel noise, float32: -log(-log(1 - v)) of v from `uniform`, the same bits on every backend."""
    return -exact.log(exact.negative_log_of_rest(uniform(seed, step, cell, index, stream)))

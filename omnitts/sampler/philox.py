"""Counter-based noise: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

A draw is a pure function of (seed, step, cell, index, stream), so noise does not depend on the batch it is drawn
in, on the order of work, or on the device.
"""

import torch
from torch import Tensor

from omnitts.sampler import exact

TOKEN_STREAM = 0  # noise over the vocabulary: which token a cell takes
POSITION_STREAM = 1  # noise over the canvas: which cells are revealed

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

    The counter is (index // 1024 * 256 + index % 256, cell, step, stream), and index // 256 % 4 picks the output
    word: neighbours have counters of their own, as the lanes of a GPU like it. The draw is the word, rounded to
    float32, over 2**32; 0 and 1 are left out.
    """
    key = (seed & _LOW32, (seed >> 32) & _LOW32)
    words = philox4x32(key, (((index >> 10) << 8) | (index & 255), cell, step, torch.full_like(step, stream)))
    lane = (index >> 8) & 3
    word = torch.where(lane < 2, torch.where(lane == 0, words[0], words[1]), torch.where(lane == 2, words[2], words[3]))
    return (word.float() * 2.0**-32).clamp(LEAST_UNIFORM, MOST_UNIFORM)


def gumbel(seed: Tensor, step: Tensor, cell: Tensor, index: Tensor, stream: int) -> Tensor:
    """Standard Gumbel noise, float32: -log(-log(1 - v)) of v from `uniform`, the same bits on every backend."""
    return -exact.log(exact.negative_log_of_rest(uniform(seed, step, cell, index, stream)))

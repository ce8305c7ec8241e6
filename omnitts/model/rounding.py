"""Convolutions of an encoder on a GPU meet few lengths: cuDNN plans anew for each one, which takes longer than it runs.

Recordings are of all lengths. The input of each convolution is lengthened by zeros, which is what it would find there
anyway, and what it makes of them is cut off.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def round_lengths(module: nn.Module) -> None:
    """Lets the one-dimensional convolutions in a module do so, in inference on a GPU; all else about them stays."""
    for conv in module.modules():
        if isinstance(conv, nn.Conv1d):
            conv.forward = partial(_rounded, conv, conv.forward)


def _rounded(conv: nn.Conv1d, forward, x: Tensor) -> Tensor:
    """x: [B, C, T]."""
    if not x.is_cuda or not torch.is_inference_mode_enabled():
        return forward(x)
    return lengthened(conv, forward, x)


def lengthened(conv: nn.Conv1d, forward, x: Tensor) -> Tensor:
    """The convolution of x, [B, C, T] to [B, C', T'], by way of a longer one."""
    steps = x.shape[-1]
    extra = rounded_up(steps) - steps
    if not extra:
        return forward(x)
    (kernel,), (stride,), (dilation,), (padding,) = conv.kernel_size, conv.stride, conv.dilation, conv.padding
    made = (steps + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return forward(F.pad(x, (0, extra)))[..., :made]


def rounded_up(steps: int) -> int:
    """To a multiple of a quarter of the largest power of two in it: by less than a quarter."""
    unit = max(1, (1 << steps.bit_length() - 1) // 4)
    return -(-steps // unit) * unit

"""`token_logprobs` in Triton: a program a position, one pass over its logits."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048


def token_logprobs_with_triton(logits: Tensor, tokens: Tensor) -> Tensor:
    """As `logprobs.token_logprobs`."""
    rows, codebooks, vocabulary = logits.shape
    out = torch.empty(tokens.shape, dtype=torch.float32, device=logits.device)
    if out.numel():
        block = min(_BLOCK, triton.next_power_of_2(vocabulary))
        _token_logprobs_kernel[(rows, codebooks)](
            logits, tokens.contiguous(), out, *logits.stride(), vocabulary, BLOCK=block, num_warps=4
        )
    return out


@triton.jit
def _token_logprobs_kernel(logits, tokens, out, row_stride, codebook_stride, stride, vocabulary, BLOCK: tl.constexpr):
    row, codebook = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = row * tl.num_programs(1) + codebook
    logits += row * row_stride + codebook * codebook_stride
    tl.store(out + at, token_logprob(logits, stride, tl.load(tokens + at), vocabulary, BLOCK))


@triton.jit
def token_logprob(logits, stride, token, vocabulary, BLOCK: tl.constexpr):
    """The logprob of a token, float32, of one position's logits."""
    largest = tl.full([BLOCK], -float("inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocabulary, BLOCK):
        ids = first + tl.arange(0, BLOCK)
        values = tl.load(logits + ids.to(tl.int64) * stride, ids < vocabulary, -float("inf")).to(tl.float32)
        higher = tl.maximum(largest, values)
        shift = tl.where(higher == -float("inf"), 0.0, higher)
        total = total * tl.exp(largest - shift) + tl.exp(values - shift)
        largest = higher
    best = tl.max(largest, 0)
    total = tl.sum(total * tl.exp(largest - best), 0)
    return tl.load(logits + token * stride).to(tl.float32) - best - tl.log(total)

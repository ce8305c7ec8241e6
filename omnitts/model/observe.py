"""What is to be seen of a step, gathered by one Triton kernel: each launch would cost a small batch a hundredth."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from omnitts.model.reveal import score_of_key
from omnitts.sampler import Samples
from omnitts.sampler.token_kernel import token_logprob
from omnitts.trace import COLUMNS, Sight

_BLOCK = 2048


def observe(samples: Samples, keys: Tensor, cond: Tensor, uncond: Tensor | None) -> Sight:
    """A step's outputs as a `Sight`.

    keys: int32 [N, C], as `reveal` gives them; cond: the logits [N, C, V] that were sampled; uncond: as many, those of
    the rows' unconditional twins, or None. Rows without a twin find there what is none.
    """
    rows, codebooks, vocabulary = cond.shape
    top_n = 0 if samples.top_tokens is None else samples.top_tokens.shape[-1]
    numbers = torch.empty(rows, codebooks, len(COLUMNS) + 2 * top_n, dtype=torch.float32, device=cond.device)
    twin = cond if uncond is None else uncond
    block = min(_BLOCK, triton.next_power_of_2(vocabulary))
    _observe_kernel[(rows, codebooks)](
        samples.tokens, samples.logprobs, samples.confidence, keys, cond, twin,
        samples.tokens if top_n == 0 else samples.top_tokens, samples.logprobs if top_n == 0 else samples.top_logprobs,
        numbers, *cond.stride(), *twin.stride(), vocabulary,
        TWIN=uncond is not None, TOP_N=top_n, TOP_BLOCK=triton.next_power_of_2(max(1, top_n)), BLOCK=block, num_warps=4,
    )  # fmt: skip
    return Sight(numbers)


@triton.jit
def _observe_kernel(
    tokens, logprobs, confidence, keys, cond, uncond, top_tokens, top_logprobs, numbers,
    cond_row, cond_codebook, cond_stride, uncond_row, uncond_codebook, uncond_stride, vocabulary,
    TWIN: tl.constexpr, TOP_N: tl.constexpr, TOP_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, codebook = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = row * tl.num_programs(1) + codebook
    token = tl.load(tokens + at)
    given = token_logprob(cond + row * cond_row + codebook * cond_codebook, cond_stride, token, vocabulary, BLOCK)
    free = given
    if TWIN:
        free = token_logprob(
            uncond + row * uncond_row + codebook * uncond_codebook, uncond_stride, token, vocabulary, BLOCK
        )
    numbers += at * (6 + 2 * TOP_N)
    tl.store(numbers, token.to(tl.float32))
    tl.store(numbers + 1, tl.load(logprobs + at))
    tl.store(numbers + 2, tl.load(confidence + at))
    tl.store(numbers + 3, score_of_key(tl.load(keys + at)))
    tl.store(numbers + 4, given)
    tl.store(numbers + 5, free)
    if TOP_N > 0:
        place = tl.arange(0, TOP_BLOCK)
        inside = place < TOP_N
        tl.store(numbers + 6 + place, tl.load(top_tokens + at * TOP_N + place, inside, 0).to(tl.float32), inside)
        tl.store(numbers + 6 + TOP_N + place, tl.load(top_logprobs + at * TOP_N + place, inside, 0.0), inside)

"""The logprob of one token in each row of logits: what guidance made of it shows beside the sampler's own logprobs."""

import torch
from torch import Tensor


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """log_softmax(logits)[token], in float32: logits [N, C, V], tokens int64 [N, C] -> float32 [N, C].

    On a GPU with Triton it is one pass over the logits, without a temporary of their size.
    """
    if logits.is_cuda:
        try:
            from omnitts.sampler.token_kernel import token_logprobs_with_triton
        except ImportError:  # no Triton
            pass
        else:
            return token_logprobs_with_triton(logits, tokens)
    return torch.log_softmax(logits.float(), dim=-1).gather(-1, tokens[..., None])[..., 0]

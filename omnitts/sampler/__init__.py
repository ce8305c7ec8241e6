"""The diffusion sampler: score every position handed in, return (tokens, logprobs, confidence), let the caller pick.

Imports torch, and triton where it is installed; knows nothing of speech: logits in, tokens out.
"""

from omnitts.sampler.logprobs import token_logprobs
from omnitts.sampler.params import STATUS_NOT_FINITE, STATUS_NOTHING_LEFT, Samples, SamplingParams
from omnitts.sampler.philox import POSITION_STREAM, TOKEN_STREAM, gumbel, philox4x32
from omnitts.sampler.sample import rows_to_requests, sample, sample_ragged

__all__ = [
    "POSITION_STREAM",
    "STATUS_NOTHING_LEFT",
    "STATUS_NOT_FINITE",
    "TOKEN_STREAM",
    "Samples",
    "SamplingParams",
    "gumbel",
    "philox4x32",
    "rows_to_requests",
    "sample",
    "sample_ragged",
    "token_logprobs",
]

"""The diffusion sampler: score every position handed in, return (tokens, logprobs, confidence), let the caller pick.

Imports torch only and knows nothing of speech: logits in, tokens out.
"""

from omnitts.sampler.philox import POSITION_STREAM, TOKEN_STREAM, gumbel, philox4x32
from omnitts.sampler.reference import Samples, SamplingParams, sample

__all__ = [
    "POSITION_STREAM",
    "TOKEN_STREAM",
    "Samples",
    "SamplingParams",
    "gumbel",
    "philox4x32",
    "sample",
]

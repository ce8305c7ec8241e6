"""The sampler's definition in plain torch: guidance, top-ratio filter and Gumbel noise over packed rows."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from omnitts.sampler.philox import TOKEN_STREAM, gumbel


@dataclass(frozen=True)
class SamplingParams:
    """One value a request, each a tensor [R] on the logits' device."""

    guidance_scale: Tensor  # float32; 0 reads no unconditional logits
    temperature: Tensor  # float32; 0 takes the most likely token
    top_ratio: Tensor  # float64 in (0, 1]; the ceil(top_ratio * V) likeliest tokens are kept when sampling
    seed: Tensor  # int64

    @staticmethod
    def stack(
        guidance_scale: list[float],
        temperature: list[float],
        top_ratio: list[float],
        seed: list[int],
        device: torch.device | str = "cpu",
    ) -> "SamplingParams":
        """Builds the tensors from one Python number a request."""
        return SamplingParams(
            torch.tensor(guidance_scale, dtype=torch.float32, device=device),
            torch.tensor(temperature, dtype=torch.float32, device=device),
            torch.tensor(top_ratio, dtype=torch.float64, device=device),
            torch.tensor(seed, dtype=torch.int64, device=device),
        )


@dataclass(frozen=True)
class Samples:
    """What the sampler says of every position: tokens int64 [N, C], logprobs and confidence float32 [N, C].

    `logprobs` are those of the chosen token under the guided, unfiltered, untempered distribution; `confidence` is
    the largest logprob of the position.
    """

    tokens: Tensor
    logprobs: Tensor
    confidence: Tensor


def sample(
    cond: Tensor,
    uncond: Tensor | None,
    params: SamplingParams,
    request_of_row: Tensor,
    frame_of_row: Tensor,
    step: Tensor,
    mask_id: int,
) -> Samples:
    """Samples every position of a ragged batch.

    cond: [N, C, V] logits, the rows (frames) of all requests end to end.
    uncond: [M, C, V] logits of the first M rows, or None. Requests beyond them must have guidance_scale 0.
    request_of_row, frame_of_row: int64 [N]: a row's request, and its frame within that request.
    step: int64 [R], the diffusion step of each request; it counts the noise.
    mask_id: the token that is never chosen. It takes part in the normalisation and is excluded after it.
    """
    codebooks = cond.shape[1]
    if uncond is not None and uncond.shape[1:] != cond.shape[1:]:
        raise ValueError(f"uncond: shape {tuple(uncond.shape)} does not go with cond {tuple(cond.shape)}")
    logprobs = guided_logprobs(cond, uncond, params.guidance_scale[request_of_row])
    logprobs[..., mask_id] = -math.inf
    confidence, tokens = logprobs.max(dim=-1)
    sampled = (params.temperature > 0)[request_of_row].nonzero().squeeze(1)
    if len(sampled):
        request = request_of_row[sampled]
        cell = frame_of_row[sampled, None] * codebooks + torch.arange(codebooks, device=cond.device)
        tokens[sampled] = _draw(logprobs[sampled], params, request, step[request], cell)
    chosen = logprobs.gather(-1, tokens[..., None]).squeeze(-1)
    return Samples(tokens, chosen, confidence)


def guided_logprobs(cond: Tensor, uncond: Tensor | None, guidance_scale: Tensor) -> Tensor:
    """Classifier-free guidance in log space: log_softmax(lc + g * (lc - lu)), float32 [N, C, V].

    cond [N, C, V] and uncond [M, C, V] (or None) are logits; guidance_scale is float32 [N]. Rows of scale 0 and
    rows beyond M are log_softmax(cond).
    """
    logprobs = torch.log_softmax(cond.float(), dim=-1)
    if uncond is None or not len(uncond):
        return logprobs
    guided_rows = len(uncond)
    scale = guidance_scale[:guided_rows, None, None]
    lc = logprobs[:guided_rows]
    lu = torch.log_softmax(uncond.float(), dim=-1)
    guided = torch.log_softmax(lc + scale * (lc - lu), dim=-1)
    logprobs[:guided_rows] = torch.where(scale == 0, lc, guided)
    return logprobs


def keep_count(top_ratio: Tensor, vocabulary: int) -> Tensor:
    """ceil(top_ratio * V), at least 1, as int64; the product is taken in float64."""
    return torch.ceil(top_ratio.double() * vocabulary).long().clamp(1, vocabulary)


def _draw(logprobs: Tensor, params: SamplingParams, request: Tensor, step: Tensor, cell: Tensor) -> Tensor:
    """Gumbel-max over the kept tokens. logprobs [K, C, V]; request, step [K]; cell [K, C] -> tokens int64 [K, C]."""
    keep = keep_count(params.top_ratio[request], logprobs.shape[-1])
    values, ids = torch.sort(logprobs, dim=-1, descending=True, stable=True)  # stable: ties go to the lowest id
    widest = int(keep.max())
    values, ids = values[..., :widest], ids[..., :widest]
    noise = gumbel(params.seed[request, None, None], step[:, None, None], cell[..., None], ids, TOKEN_STREAM)
    scores = values / params.temperature[request, None, None] + noise
    dropped = torch.arange(widest, device=scores.device) >= keep[:, None, None]
    scores = scores.masked_fill(dropped, -math.inf)
    best = scores.amax(dim=-1, keepdim=True)
    return ids.masked_fill(scores < best, logprobs.shape[-1]).amin(dim=-1)

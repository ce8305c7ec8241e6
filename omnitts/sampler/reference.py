"""The sampler's definition in plain torch. `kernels.py` does the same faster, and agrees on every token."""

import math

import torch
from torch import Tensor

from omnitts.sampler import exact
from omnitts.sampler.params import STATUS_NOT_FINITE, STATUS_NOTHING_LEFT, Samples, SamplingParams
from omnitts.sampler.philox import TOKEN_STREAM, gumbel

MASS_UNIT = 2.0**30  # probabilities are summed as whole numbers of 1 / 2**30, so that the order does not matter


def sample_cells(
    cond: Tensor,
    uncond: Tensor | None,
    params: SamplingParams,
    request: Tensor,
    cell: Tensor,
    step: Tensor,
    confidence: str,
    top_n: int,
) -> Samples:
    """Samples K cells. cond [K, V]; uncond [J, V] of the first J, or None; request, cell, step int64 [K]."""
    scores = guided_scores(cond, uncond, params.guidance_scale[request])
    broken = ~torch.isfinite(scores.amax(dim=-1)) & ~(scores == -math.inf).all(dim=-1)
    broken |= scores.isnan().any(dim=-1)
    logprobs = torch.log_softmax(scores, dim=-1)
    allowed_scores = scores.masked_fill(forbidden_mask(params, request, scores.shape[-1]), -math.inf)
    best, tokens = allowed_scores.max(dim=-1)  # ties: the lowest id
    nothing = ~broken & (best == -math.inf)

    drawn = ((params.temperature[request] > 0) & ~broken & ~nothing).nonzero().squeeze(1)
    if len(drawn):
        tokens[drawn] = _draw(allowed_scores[drawn], params, request[drawn], cell[drawn], step[drawn])
    failed = broken | nothing
    tokens = tokens.masked_fill(failed, 0)
    logprobs = logprobs.masked_fill(allowed_scores == -math.inf, -math.inf).masked_fill(failed[:, None], -math.inf)
    top_tokens = top_logprobs = None
    if top_n:
        top_tokens = torch.sort(allowed_scores, dim=-1, descending=True, stable=True).indices[:, :top_n]
        top_logprobs = logprobs.gather(-1, top_tokens)
        top_tokens = top_tokens.masked_fill(top_logprobs == -math.inf, -1)
    status = torch.zeros(len(params.seed), dtype=torch.int32, device=cond.device)
    for flag, rows in ((STATUS_NOT_FINITE, broken), (STATUS_NOTHING_LEFT, nothing)):
        counts = torch.zeros_like(status).index_add_(0, request, rows.int())
        status |= (counts > 0).int() * flag
    chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
    return Samples(tokens, chosen, _confidence(logprobs, chosen, confidence), status, top_tokens, top_logprobs)


def guided_scores(cond: Tensor, uncond: Tensor | None, guidance_scale: Tensor) -> Tensor:
    """Classifier-free guidance: scores whose log_softmax is log_softmax(lc + g * (lc - lu)), float32 [K, V].

    Softmax does not see a constant, so lc and lu need not be normalised first: with c and u less their maxima,
    c + g * (c - u) will do. Taking the maxima off keeps large logits exact. Rows of scale 0 are c alone.
    A token of conditional logit -inf stays impossible. uncond may have fewer rows, [J, V]: the others are unguided.
    """
    c = cond.float()
    c = c - c.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    if uncond is None:
        return c
    u = uncond.float()
    u = u - u.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    rows = len(u)
    scale = guidance_scale[:rows, None]
    guided = torch.where(c[:rows] == -math.inf, -math.inf, exact.fma(c[:rows] - u, scale, c[:rows]))
    return torch.cat([torch.where(scale == 0, c[:rows], guided), c[rows:]])


def forbidden_mask(params: SamplingParams, request: Tensor, vocabulary: int) -> Tensor:
    """bool [K, V], true where a token is forbidden; ids beyond the vocabulary forbid nothing."""
    ids = params.forbidden[request].long()
    ids = torch.where((ids < 0) | (ids >= vocabulary), vocabulary, ids)
    mask = torch.zeros(len(request), vocabulary + 1, dtype=torch.bool, device=ids.device)
    return mask.scatter_(1, ids, True)[:, :vocabulary]


def keep_count(params: SamplingParams, request: Tensor, vocabulary: int) -> Tensor:
    """How many tokens top_ratio and top_k let through: int64 [K]. The product is taken in float64."""
    by_ratio = torch.ceil(params.top_ratio[request] * vocabulary).long().clamp(1, vocabulary)
    by_count = params.top_k[request].long()
    return torch.where(by_count > 0, torch.minimum(by_count, by_ratio), by_ratio)


def kept(scores: Tensor, params: SamplingParams, request: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens that pass every filter. scores: float32 [K, V], -inf for the forbidden ones.

    Returns (ids int64 [K, V], passed bool [K, V]): the ids from the likeliest down, and whether each passes. All
    filters let through a first part of that order, so the kept set is the shortest of these parts.
    """
    vocabulary = scores.shape[-1]
    values, ids = torch.sort(scores, dim=-1, descending=True, stable=True)  # stable: ties go to the lowest id
    passed = torch.arange(vocabulary, device=scores.device) < keep_count(params, request, vocabulary)[:, None]
    top_p, min_p = params.top_p[request, None], params.min_p[request, None]
    if ((top_p < 1) | (min_p > 0)).any():
        weight = exact.exp(scaled(values, values[:, :1], params, request))
        mass = (weight * MASS_UNIT).long()
        total = mass.cumsum(dim=-1)
        limit = top_p.double() * total[:, -1:].double()
        passed &= ((total - mass).double() < limit) | (top_p >= 1)
        passed &= weight >= min_p
    passed &= values > -math.inf
    passed[:, 0] = True
    return ids, passed


def scaled(scores: Tensor, best: Tensor, params: SamplingParams, request: Tensor) -> Tensor:
    """Scores less their row's best, over the temperature; each step is rounded. The factor is always finite."""
    return (scores - best) * (1.0 / params.temperature[request]).clamp(max=1e30)[:, None]


def _draw(scores: Tensor, params: SamplingParams, request: Tensor, cell: Tensor, step: Tensor) -> Tensor:
    """Gumbel-max over the kept tokens: int64 [K]."""
    ids, passed = kept(scores, params, request)
    widest = int(passed.sum(dim=-1).max())
    ids, passed = ids[:, :widest], passed[:, :widest]
    noise = gumbel(params.seed[request, None], step[:, None], cell[:, None], ids, TOKEN_STREAM)
    noisy = scaled(scores.gather(-1, ids), scores.amax(dim=-1, keepdim=True), params, request) + noise
    noisy = noisy.masked_fill(~passed, -math.inf)
    best = noisy.amax(dim=-1, keepdim=True)
    return ids.masked_fill(noisy < best, scores.shape[-1]).amin(dim=-1)


def _confidence(logprobs: Tensor, chosen: Tensor, rule: str) -> Tensor:
    """float32 [K] from logprobs [K, V] (-inf where forbidden) and the chosen token's [K]."""
    if rule == "logprob":
        return chosen
    if rule == "neg_entropy":
        return torch.where(logprobs > -math.inf, logprobs.exp() * logprobs, 0.0).sum(dim=-1)
    best = logprobs.amax(dim=-1)
    if rule == "max":
        return best
    return best - logprobs.topk(min(2, logprobs.shape[-1]), dim=-1).values[:, -1]

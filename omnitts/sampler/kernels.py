"""The sampler in Triton: one program a cell does guidance, filters, noise and choice, and writes a few numbers.

Nothing of the size of the vocabulary is ever stored. A small vocabulary stays in registers from the one load to the
last comparison; a large one is read again for each pass.

Which token wins must not depend on the backend, so the numbers that are compared (guided scores, noise, shares of
probability) come from the same float32 operations in the same order as in `reference.py` and `exact.py`; fusing of
products and sums is off. Logprobs only have to be accurate.

The filters need no sorting. All of them keep the first part of the order from the likeliest token down, so: take the
best noisy score of all candidates; if its token passes the filters it is also the best of the kept ones. If not,
nothing below it passes either, and the search goes on among the tokens above it. A round or two will do.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from omnitts.sampler import exact
from omnitts.sampler.params import CONFIDENCES, STATUS_NOT_FINITE, STATUS_NOTHING_LEFT, Samples, SamplingParams
from omnitts.sampler.philox import TOKEN_STREAM

SMALL_VOCABULARY = 4096  # up to here a row is kept in registers
LARGE_BLOCK = 4096

_L0, _L1, _L2, _L3, _L4, _L5 = (tl.constexpr(c) for c in exact.LOG_COEFFICIENTS)
_E0, _E1, _E2, _E3, _E4, _E5 = (tl.constexpr(c) for c in exact.EXP_COEFFICIENTS)
_LN2 = tl.constexpr(exact.LN2)
_INVERSE_LN2 = tl.constexpr(1 / exact.LN2)
_SQRT_HALF_BITS = tl.constexpr(exact.SQRT_HALF_BITS)
_EXP_FLOOR = tl.constexpr(exact.EXP_FLOOR)
_MASS_UNIT = tl.constexpr(2.0**30)
_TOKEN_STREAM = tl.constexpr(TOKEN_STREAM)
_NOT_FINITE = tl.constexpr(STATUS_NOT_FINITE)
_NOTHING_LEFT = tl.constexpr(STATUS_NOTHING_LEFT)
_NINF = tl.constexpr(float("-inf"))
_NO_ID = tl.constexpr(2**30)  # above every token id


def sample_with_triton(
    cond: Tensor,
    uncond: Tensor | None,
    params: SamplingParams,
    offsets: Tensor,
    request_of_row: Tensor,
    step: Tensor,
    cells: Tensor | None,
    confidence: str,
    top_n: int,
) -> Samples:
    """Arguments as `sample` has checked them; fields of the result are [K], or [N * C] where cells is None."""
    rows, codebooks, vocabulary = cond.shape
    device = cond.device
    count = rows * codebooks if cells is None else len(cells)
    tokens = torch.empty(count, dtype=torch.int64, device=device)
    logprobs = torch.empty(count, dtype=torch.float32, device=device)
    scores = torch.empty(count, dtype=torch.float32, device=device)
    status = torch.zeros(len(params.seed), dtype=torch.int32, device=device)
    top_tokens = torch.empty(count, top_n, dtype=torch.int64, device=device) if top_n else None
    top_logprobs = torch.empty(count, top_n, dtype=torch.float32, device=device) if top_n else None
    guided_rows = 0 if uncond is None else len(uncond)
    other = cond if not guided_rows else uncond
    small = vocabulary <= SMALL_VOCABULARY
    head = 1 << (vocabulary.bit_length() - 1)  # the largest power of two in the vocabulary; the rest is the tail
    sizes = (
        {"HEAD": head, "TAIL": triton.next_power_of_2(max(vocabulary - head, 1)), "num_warps": max(1, head // 1024)}
        if small
        else {"BLOCK": LARGE_BLOCK, "num_warps": 8}
    )
    if count:
        (_small_kernel if small else _large_kernel)[(count,)](
            cond,
            *cond.stride(),
            other,
            *other.stride(),
            guided_rows,
            params.guidance_scale,
            params.temperature,
            params.top_ratio,
            params.top_k,
            params.top_p,
            params.min_p,
            params.seed,
            params.forbidden,
            offsets,
            request_of_row,
            step,
            tokens if cells is None else cells,
            tokens,
            logprobs,
            scores,
            status,
            tokens if top_tokens is None else top_tokens,
            logprobs if top_logprobs is None else top_logprobs,
            codebooks,
            V=vocabulary,
            FORBIDDEN=params.forbidden.shape[1],
            HAS_CELLS=cells is not None,
            CONFIDENCE=CONFIDENCES.index(confidence),
            TOP_N=top_n,
            enable_fp_fusion=False,
            **sizes,
        )
    return Samples(tokens, logprobs, scores, status, top_tokens, top_logprobs)


# ---- Bits that must equal those of exact.py and philox.py ----


@triton.jit
def _log(x):
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    p = ((((_L0 * f + _L1) * f + _L2) * f + _L3) * f + _L4) * f + _L5
    return f * p + exponent.to(tl.float32) * _LN2


@triton.jit
def _exp(x):
    clamped = tl.maximum(x, _EXP_FLOOR)
    power = tl.floor(clamped * _INVERSE_LN2 + 0.5)
    r = clamped - power * _LN2
    p = ((((_E0 * r + _E1) * r + _E2) * r + _E3) * r + _E4) * r + _E5
    scale = ((power.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < _EXP_FLOOR, 0.0, p * scale)


@triton.jit
def _gumbel(seed, step, cell, first, SIZE: tl.constexpr):
    """Noise of the vocabulary indices first .. first + SIZE; first is a multiple of 4 and SIZE at least 4."""
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c0 = (first // 4 + tl.arange(0, SIZE // 4)).to(tl.uint32)
    c1 = tl.zeros_like(c0) + cell.to(tl.uint32)
    c2 = tl.zeros_like(c0) + step.to(tl.uint32)
    c3 = tl.zeros_like(c0) + _TOKEN_STREAM
    m0 = tl.zeros_like(c0) + 0xD2511F53
    m1 = tl.zeros_like(c0) + 0xCD9E8D57
    for _ in tl.static_range(10):
        high0 = tl.umulhi(c0, m0)
        high1 = tl.umulhi(c2, m1)
        low0 = c0 * m0
        low1 = c2 * m1
        c0 = high1 ^ c1 ^ k0
        c2 = high0 ^ c3 ^ k1
        c1 = low1
        c3 = low0
        k0 = (k0.to(tl.int64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.int64) + 0xBB67AE85).to(tl.uint32)
    words = tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))
    u = ((words >> 9).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 8388608)
    return -_log(-_log(u))


@triton.jit
def _guide(c, u, scale):
    """Guided scores of conditional and unconditional logits that have their maxima taken off."""
    return tl.where(c == _NINF, _NINF, c + scale * (c - u))


@triton.jit
def _forbid(scores, ids, forbidden, FORBIDDEN: tl.constexpr):
    for i in tl.static_range(FORBIDDEN):
        scores = tl.where(ids == tl.load(forbidden + i), _NINF, scores)
    return scores


@triton.jit
def _finite_or_zero(x):
    return tl.where(x == _NINF, 0.0, x)


# ---- A vocabulary in registers: a head of a power of two ids, and the tail that is left ----


@triton.jit
def _max2(a, b):
    return tl.maximum(tl.max(a, 0), tl.max(b, 0))


@triton.jit
def _first2(is_a, ids_a, is_b, ids_b):
    """The lowest id for which the condition holds."""
    return tl.minimum(tl.min(tl.where(is_a, ids_a, _NO_ID), 0), tl.min(tl.where(is_b, ids_b, _NO_ID), 0))


@triton.jit
def _above(z, ids, pivot, pivot_id):
    """Which tokens stand before the pivot in the order from the likeliest down, ties by the lowest id."""
    return (z > pivot) | ((z == pivot) & (ids < pivot_id) & (z > _NINF))


@triton.jit
def _small_kernel(
    cond,
    cond_row,
    cond_codebook,
    cond_id,
    uncond,
    uncond_row,
    uncond_codebook,
    uncond_id,
    guided_rows,
    guidance_scales,
    temperatures,
    top_ratios,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    forbiddens,
    offsets,
    request_of_row,
    steps,
    cells,
    out_tokens,
    out_logprobs,
    out_confidence,
    out_status,
    out_top_tokens,
    out_top_logprobs,
    codebooks,
    V: tl.constexpr,
    FORBIDDEN: tl.constexpr,
    HAS_CELLS: tl.constexpr,
    CONFIDENCE: tl.constexpr,
    TOP_N: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    position = tl.load(cells + place) if HAS_CELLS else place
    row = position // codebooks
    codebook = position % codebooks
    request = tl.load(request_of_row + row)
    scale = tl.load(guidance_scales + request)
    temperature = tl.load(temperatures + request)
    forbidden = forbiddens + request * FORBIDDEN

    ids_a = tl.arange(0, HEAD)
    ids_b = HEAD + tl.arange(0, TAIL)
    real_b = ids_b < V
    base = cond + row * cond_row + codebook * cond_codebook
    a = tl.load(base + ids_a * cond_id).to(tl.float32)
    b = tl.load(base + ids_b * cond_id, mask=real_b, other=_NINF).to(tl.float32)
    top = _finite_or_zero(_max2(a, b))
    a = a - top
    b = b - top
    if (scale != 0) & (row < guided_rows):
        base = uncond + row * uncond_row + codebook * uncond_codebook
        ua = tl.load(base + ids_a * uncond_id).to(tl.float32)
        ub = tl.load(base + ids_b * uncond_id, mask=real_b, other=_NINF).to(tl.float32)
        top = _finite_or_zero(_max2(ua, ub))
        a = _guide(a, ua - top, scale)
        b = _guide(b, ub - top, scale)

    shift = _finite_or_zero(_max2(a, b))
    log_sum = tl.log(tl.sum(tl.exp(a - shift), 0) + tl.sum(tl.exp(b - shift), 0)) + shift
    ya = _forbid(a, ids_a, forbidden, FORBIDDEN)
    yb = _forbid(b, ids_b, forbidden, FORBIDDEN)
    best = _max2(ya, yb)
    token = _first2(ya == best, ids_a, yb == best, ids_b)
    broken = log_sum != log_sum
    nothing = (best == _NINF) & (broken == 0)
    failed = broken | nothing

    if (temperature > 0) & (failed == 0):
        cell = (row - tl.load(offsets + request)) * codebooks + codebook
        seed = tl.load(seeds + request)
        step = tl.load(steps + request)
        inverse_temperature = tl.minimum(tl.div_rn(1.0, temperature), 1e30)
        za = ya - best
        zb = yb - best
        scaled_a = za * inverse_temperature
        scaled_b = zb * inverse_temperature
        noise_a = _gumbel(seed, step, cell, 0, HEAD if HEAD >= 4 else 4)
        noise_b = _gumbel(seed, step, cell, HEAD - HEAD % 4, TAIL if TAIL >= 4 else 4)
        noisy_a = scaled_a + (noise_a if HEAD >= 4 else _part(noise_a, 0, HEAD))
        noisy_b = scaled_b + (noise_b if (TAIL >= 4) & (HEAD % 4 == 0) else _part(noise_b, HEAD % 4, TAIL))
        ratio = tl.ceil(tl.load(top_ratios + request) * V)
        keep = tl.minimum(tl.maximum(ratio, 1.0), V * 1.0).to(tl.int32)
        top_k = tl.load(top_ks + request)
        keep = tl.where(top_k > 0, tl.minimum(top_k, keep), keep)
        top_p = tl.load(top_ps + request)
        min_p = tl.load(min_ps + request)
        mass_a = tl.zeros([HEAD], tl.int64)
        mass_b = tl.zeros([TAIL], tl.int64)
        limit = tl.load(top_ratios + request) * 0.0
        if (top_p < 1) | (min_p > 0):
            weight_a = _exp(scaled_a)
            weight_b = _exp(scaled_b)
            mass_a = (weight_a * _MASS_UNIT).to(tl.int64)
            mass_b = (weight_b * _MASS_UNIT).to(tl.int64)
            limit = top_p.to(tl.float64) * (tl.sum(mass_a, 0) + tl.sum(mass_b, 0)).to(tl.float64)
            noisy_a = tl.where(weight_a >= min_p, noisy_a, _NINF)
            noisy_b = tl.where(weight_b >= min_p, noisy_b, _NINF)
        pivot = best * 0.0 + _NINF
        pivot_id = token * 0
        searching = temperature > 0
        while searching:
            in_a = _above(za, ids_a, pivot, pivot_id)
            in_b = _above(zb, ids_b, pivot, pivot_id)
            noisy = _max2(tl.where(in_a, noisy_a, _NINF), tl.where(in_b, noisy_b, _NINF))
            token = _first2(in_a & (noisy_a == noisy), ids_a, in_b & (noisy_b == noisy), ids_b)
            z = _max2(tl.where(ids_a == token, za, _NINF), tl.where(ids_b == token, zb, _NINF))
            up_a = _above(za, ids_a, z, token)
            up_b = _above(zb, ids_b, z, token)
            count = tl.sum(up_a.to(tl.int32), 0) + tl.sum(up_b.to(tl.int32), 0)
            passed = count < keep
            if top_p < 1:
                mass = tl.sum(tl.where(up_a, mass_a, 0), 0) + tl.sum(tl.where(up_b, mass_b, 0), 0)
                passed = passed & (mass.to(tl.float64) < limit)
            searching = (passed | (count == 0)) == 0
            pivot = z
            pivot_id = token

    chosen = _max2(tl.where(ids_a == token, ya, _NINF), tl.where(ids_b == token, yb, _NINF)) - log_sum
    if CONFIDENCE == 0:
        confidence = best - log_sum
    elif CONFIDENCE == 1:
        confidence = chosen
    elif CONFIDENCE == 2:
        first = _first2(ya == best, ids_a, yb == best, ids_b)
        confidence = best - _max2(tl.where(ids_a == first, _NINF, ya), tl.where(ids_b == first, _NINF, yb))
    else:
        la = ya - log_sum
        lb = yb - log_sum
        confidence = tl.sum(tl.where(la > _NINF, tl.exp(la) * la, 0.0), 0)
        confidence += tl.sum(tl.where(lb > _NINF, tl.exp(lb) * lb, 0.0), 0)
    _store(
        place, request, token, chosen, confidence, broken, nothing, out_tokens, out_logprobs, out_confidence, out_status
    )
    for i in tl.static_range(TOP_N):
        value = _max2(ya, yb)
        which = _first2(ya == value, ids_a, yb == value, ids_b)
        there = (value > _NINF) & (failed == 0)
        tl.store(out_top_tokens + place * TOP_N + i, tl.where(there, which, -1))
        tl.store(out_top_logprobs + place * TOP_N + i, tl.where(there, value - log_sum, _NINF))
        ya = tl.where(ids_a == which, _NINF, ya)
        yb = tl.where(ids_b == which, _NINF, yb)


@triton.jit
def _part(noise, first, SIZE: tl.constexpr):
    """noise[first : first + SIZE] of four values."""
    index = tl.arange(0, 4)
    wanted = first + tl.arange(0, SIZE)
    return tl.sum(tl.where(index[None, :] == wanted[:, None], noise[None, :], 0.0), 1)


@triton.jit
def _store(
    place, request, token, logprob, confidence, broken, nothing, out_tokens, out_logprobs, out_confidence, out_status
):
    failed = broken | nothing
    tl.store(out_tokens + place, tl.where(failed, 0, token))
    tl.store(out_logprobs + place, tl.where(failed, _NINF, logprob))
    tl.store(out_confidence + place, tl.where(failed, _NINF, confidence))
    if failed:
        tl.atomic_or(out_status + request, tl.where(broken, _NOT_FINITE, _NOTHING_LEFT))


# ---- A vocabulary that is read again for each pass ----


@triton.jit
def _chunk(
    cond,
    cond_id,
    uncond,
    uncond_id,
    cond_top,
    uncond_top,
    scale,
    guided,
    start,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Scores of the ids start .. start + BLOCK, guided where that is asked for; -inf beyond the vocabulary."""
    ids = start + tl.arange(0, BLOCK)
    real = ids < V
    x = tl.load(cond + ids * cond_id, mask=real, other=_NINF).to(tl.float32) - cond_top
    if guided:
        u = tl.load(uncond + ids * uncond_id, mask=real, other=_NINF).to(tl.float32) - uncond_top
        x = _guide(x, u, scale)
    return x, ids


@triton.jit
def _large_kernel(
    cond,
    cond_row,
    cond_codebook,
    cond_id,
    uncond,
    uncond_row,
    uncond_codebook,
    uncond_id,
    guided_rows,
    guidance_scales,
    temperatures,
    top_ratios,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    forbiddens,
    offsets,
    request_of_row,
    steps,
    cells,
    out_tokens,
    out_logprobs,
    out_confidence,
    out_status,
    out_top_tokens,
    out_top_logprobs,
    codebooks,
    V: tl.constexpr,
    FORBIDDEN: tl.constexpr,
    HAS_CELLS: tl.constexpr,
    CONFIDENCE: tl.constexpr,
    TOP_N: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    position = tl.load(cells + place) if HAS_CELLS else place
    row = position // codebooks
    codebook = position % codebooks
    request = tl.load(request_of_row + row)
    scale = tl.load(guidance_scales + request)
    temperature = tl.load(temperatures + request)
    forbidden = forbiddens + request * FORBIDDEN
    guided = (scale != 0) & (row < guided_rows)
    cond += row * cond_row + codebook * cond_codebook
    uncond += row * uncond_row + codebook * uncond_codebook

    # Pass 1: the maxima of the logits.
    highest = tl.full([BLOCK], _NINF, tl.float32)
    uncond_highest = tl.full([BLOCK], _NINF, tl.float32)
    for start in range(0, V, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        highest = tl.maximum(highest, tl.load(cond + ids * cond_id, mask=ids < V, other=_NINF).to(tl.float32))
        if guided:
            u = tl.load(uncond + ids * uncond_id, mask=ids < V, other=_NINF).to(tl.float32)
            uncond_highest = tl.maximum(uncond_highest, u)
    cond_top = _finite_or_zero(tl.max(highest, 0))
    uncond_top = _finite_or_zero(tl.max(uncond_highest, 0))

    # Pass 2: the sum of the exponentials, each lane with a running maximum of its own; the best token and the next.
    peak = tl.full([BLOCK], _NINF, tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    value = tl.full([BLOCK], _NINF, tl.float32)
    which = tl.full([BLOCK], _NO_ID, tl.int32)
    second = tl.full([BLOCK], _NINF, tl.float32)
    for start in range(0, V, BLOCK):
        x, ids = _chunk(cond, cond_id, uncond, uncond_id, cond_top, uncond_top, scale, guided, start, V, BLOCK)
        new = tl.maximum(peak, x, propagate_nan=tl.PropagateNan.ALL)
        level = _finite_or_zero(new)
        total = total * tl.exp(peak - level) + tl.exp(x - level)
        peak = new
        y = _forbid(x, ids, forbidden, FORBIDDEN)
        better = y > value
        second = tl.where(better, value, tl.maximum(second, y))
        which = tl.where(better, ids, which)
        value = tl.where(better, y, value)
    shift = _finite_or_zero(tl.max(peak, 0))
    log_sum = tl.log(tl.sum(total * tl.exp(_finite_or_zero(peak) - shift), 0)) + shift
    best = tl.max(value, 0)
    token = tl.min(tl.where(value == best, which, _NO_ID), 0)
    first = token
    broken = log_sum != log_sum
    nothing = (best == _NINF) & (broken == 0)
    failed = broken | nothing
    runner_up = tl.maximum(tl.max(tl.where(which == first, _NINF, value), 0), tl.max(second, 0))

    if (temperature > 0) & (failed == 0):
        cell = (row - tl.load(offsets + request)) * codebooks + codebook
        seed = tl.load(seeds + request)
        step = tl.load(steps + request)
        inverse_temperature = tl.minimum(tl.div_rn(1.0, temperature), 1e30)
        ratio = tl.ceil(tl.load(top_ratios + request) * V)
        keep = tl.minimum(tl.maximum(ratio, 1.0), V * 1.0).to(tl.int32)
        top_k = tl.load(top_ks + request)
        keep = tl.where(top_k > 0, tl.minimum(top_k, keep), keep)
        top_p = tl.load(top_ps + request)
        min_p = tl.load(min_ps + request)
        limit = tl.load(top_ratios + request) * 0.0
        pivot = best * 0.0 + _NINF
        pivot_id = token * 0
        count = keep  # the pivot passes nothing yet
        mass = tl.zeros([], tl.int64)
        searching = temperature > 0
        round = token * 0
        while searching:
            # One pass counts what stands above the pivot, and finds the best noisy score among it. The first pass,
            # with no pivot, sees all tokens, and sums their mass for the limit.
            noisy_best = tl.full([BLOCK], _NINF, tl.float32)
            noisy_id = tl.full([BLOCK], _NO_ID, tl.int32)
            noisy_z = tl.full([BLOCK], _NINF, tl.float32)
            counts = tl.zeros([BLOCK], tl.int32)
            masses = tl.zeros([BLOCK], tl.int64)
            for start in range(0, V, BLOCK):
                x, ids = _chunk(cond, cond_id, uncond, uncond_id, cond_top, uncond_top, scale, guided, start, V, BLOCK)
                z = _forbid(x, ids, forbidden, FORBIDDEN) - best
                up = _above(z, ids, pivot, pivot_id)
                here = tl.sum(up.to(tl.int32), 0)
                if here > 0:
                    scaled = z * inverse_temperature
                    noisy = scaled + _gumbel(seed, step, cell, start, BLOCK)
                    if (top_p < 1) | (min_p > 0):
                        weight = _exp(scaled)
                        masses += tl.where(up, (weight * _MASS_UNIT).to(tl.int64), 0)
                        noisy = tl.where(weight >= min_p, noisy, _NINF)
                    noisy = tl.where(up, noisy, _NINF)
                    counts += up.to(tl.int32)
                    better = noisy > noisy_best
                    noisy_id = tl.where(better, ids, noisy_id)
                    noisy_z = tl.where(better, z, noisy_z)
                    noisy_best = tl.where(better, noisy, noisy_best)
            count = tl.sum(counts, 0)
            mass = tl.sum(masses, 0)
            if round == 0:
                limit = top_p.to(tl.float64) * mass.to(tl.float64)
                passed = count < 0
            else:
                passed = (count < keep) & ((mass.to(tl.float64) < limit) | (top_p >= 1))
                passed = passed | (count == 0)
            searching = passed == 0
            if searching:
                noisy_top = tl.max(noisy_best, 0)
                token = tl.min(tl.where(noisy_best == noisy_top, noisy_id, _NO_ID), 0)
                pivot = tl.max(tl.where(noisy_id == token, noisy_z, _NINF), 0)
                pivot_id = token
            round += 1
        pivot + best

    chosen_score = tl.load(cond + token * cond_id).to(tl.float32) - cond_top
    if guided:
        chosen_score = _guide(chosen_score, tl.load(uncond + token * uncond_id).to(tl.float32) - uncond_top, scale)
    chosen = chosen_score - log_sum
    if CONFIDENCE == 0:
        confidence = best - log_sum
    elif CONFIDENCE == 1:
        confidence = chosen
    elif CONFIDENCE == 2:
        confidence = best - runner_up
    else:
        sums = tl.zeros([BLOCK], tl.float32)
        for start in range(0, V, BLOCK):
            x, ids = _chunk(cond, cond_id, uncond, uncond_id, cond_top, uncond_top, scale, guided, start, V, BLOCK)
            logprob = _forbid(x, ids, forbidden, FORBIDDEN) - log_sum
            sums += tl.where(logprob > _NINF, tl.exp(logprob) * logprob, 0.0)
        confidence = tl.sum(sums, 0)
    _store(
        place, request, token, chosen, confidence, broken, nothing, out_tokens, out_logprobs, out_confidence, out_status
    )
    above = best * 0.0 + float("inf")
    above_id = first
    for i in range(TOP_N):
        # The best token below the last one.
        value = tl.full([BLOCK], _NINF, tl.float32)
        which = tl.full([BLOCK], _NO_ID, tl.int32)
        for start in range(0, V, BLOCK):
            x, ids = _chunk(cond, cond_id, uncond, uncond_id, cond_top, uncond_top, scale, guided, start, V, BLOCK)
            y = _forbid(x, ids, forbidden, FORBIDDEN)
            y = tl.where((y < above) | ((y == above) & (ids > above_id)), y, _NINF)
            better = y > value
            which = tl.where(better, ids, which)
            value = tl.where(better, y, value)
        above = tl.max(value, 0)
        above_id = tl.min(tl.where(value == above, which, _NO_ID), 0)
        there = (above > _NINF) & (failed == 0)
        tl.store(out_top_tokens + place * TOP_N + i, tl.where(there, above_id, -1))
        tl.store(out_top_logprobs + place * TOP_N + i, tl.where(there, above - log_sum, _NINF))

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
MANY_CELLS, CELLS_EACH = 16_384, 8  # with so many cells, a program does several: fewer programs start sooner

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
# bits / 2**23 - 127 is log2(x) less 0 to 0.0861; half of that is put into the offset.
_ROUGH_OFFSET = tl.constexpr(int((127 - 0.043) * 2**23))
_ROUGH_SCALE = tl.constexpr(-exact.LN2 / 2**23)
_ROUGH_GAP = tl.constexpr(0.0602)  # twice the error of _rough_negative_log
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
    arguments = (
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
        count,
    )
    settings = {
        "V": vocabulary,
        "FORBIDDEN": params.forbidden.shape[1],
        "HAS_CELLS": cells is not None,
        "CONFIDENCE": CONFIDENCES.index(confidence),
        "TOP_N": top_n,
        "enable_fp_fusion": False,  # fused, a product and a sum round once, and in torch twice
    }
    if count and vocabulary <= SMALL_VOCABULARY:
        head = 1 << (vocabulary.bit_length() - 1)  # the largest power of two in it; the rest is the tail
        tail = triton.next_power_of_2(max(vocabulary - head, 1))
        cells_each = 1 if count < MANY_CELLS else CELLS_EACH
        for draw in (False, True):
            _small_kernel[(triton.cdiv(count, cells_each),)](
                *arguments,
                HEAD=head,
                TAIL=tail,
                CELLS=cells_each,
                DRAW=draw,
                num_warps=max(1, head // 1024),
                **settings,
            )
    elif count:
        _large_kernel[(count,)](*arguments, BLOCK=LARGE_BLOCK, num_warps=8, **settings)
    return Samples(tokens, logprobs, scores, status, top_tokens, top_logprobs)


# ---- Bits that must equal those of exact.py and philox.py ----


@triton.jit
def _log(x):
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    p = _horner(f, _L0, _L1, _L2, _L3, _L4, _L5)
    return tl.fma(_small_int_to_float(exponent), _full(f, _LN2), f * p)


@triton.jit
def _exp(x):
    clamped = tl.maximum(x, _EXP_FLOOR)
    power = tl.floor(tl.fma(clamped, _full(x, _INVERSE_LN2), _full(x, 0.5)))
    r = tl.fma(power, _full(x, -_LN2), clamped)
    p = _horner(r, _E0, _E1, _E2, _E3, _E4, _E5)
    scale = ((power.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
    return tl.where(x < _EXP_FLOOR, 0.0, p * scale)


@triton.jit
def _full(like, value):
    return tl.full(like.shape, value, tl.float32)


@triton.jit
def _horner(x, c0, c1, c2, c3, c4, c5):
    p = tl.fma(_full(x, c0), x, _full(x, c1))
    p = tl.fma(p, x, _full(x, c2))
    p = tl.fma(p, x, _full(x, c3))
    p = tl.fma(p, x, _full(x, c4))
    return tl.fma(p, x, _full(x, c5))


@triton.jit
def _small_int_to_float(x):
    """An int32 of less than 23 bits as float32, by way of its bits: the conversion instruction is a slow one."""
    return (x + 0x4B400000).to(tl.float32, bitcast=True) - 12582912.0


@triton.jit
def _exponential(seed, step, cell, first, SIZE: tl.constexpr):
    """-log(u) for the vocabulary indices first .. first + SIZE; first is a multiple of 4 and SIZE at least 4."""
    k0 = (seed & 0xFFFFFFFF).to(tl.uint32)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32)
    c0 = (first // 4 + tl.arange(0, SIZE // 4)).to(tl.uint32)
    c1 = tl.zeros_like(c0) + cell.to(tl.uint32)
    c2 = tl.zeros_like(c0) + step.to(tl.uint32)
    c3 = tl.zeros_like(c0) + _TOKEN_STREAM
    for _ in tl.static_range(10):
        product0 = c0.to(tl.uint64) * 0xD2511F53
        product1 = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (product1 >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (product0 >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = product1.to(tl.uint32)
        c3 = product0.to(tl.uint32)
        k0 = (k0.to(tl.int64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.int64) + 0xBB67AE85).to(tl.uint32)
    words = tl.interleave(tl.interleave(c0, c2), tl.interleave(c1, c3))
    # (bits + 1/2) / 2**23, from a float in [1, 2) that has the bits as its fraction
    u = ((words >> 9) | 0x3F800000).to(tl.float32, bitcast=True) - 0.99999994039535522
    return -_log(u)


@triton.jit
def _gumbel(seed, step, cell, first, SIZE: tl.constexpr):
    return -_log(_exponential(seed, step, cell, first, SIZE))


@triton.jit
def _rough_negative_log(x):
    """-log(x) to within 0.03 either way: a float's bits are, but for an offset, its logarithm in base 2."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits - _ROUGH_OFFSET).to(tl.float32) * _ROUGH_SCALE


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
    count,
    V: tl.constexpr,
    FORBIDDEN: tl.constexpr,
    HAS_CELLS: tl.constexpr,
    CONFIDENCE: tl.constexpr,
    TOP_N: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    CELLS: tl.constexpr,
    DRAW: tl.constexpr,
):
    """CELLS cells a program. Compiled twice: with DRAW it does the cells whose request has a temperature, without it
    the others. What drawing needs in registers would leave the others too few warps to keep the memory busy.
    """
    for i in range(CELLS):
        place = tl.program_id(0).to(tl.int64) * CELLS + i
        if place < count:
            position = tl.load(cells + place) if HAS_CELLS else place
            row = position // codebooks
            codebook = position % codebooks
            request = tl.load(request_of_row + row)
            temperature = tl.load(temperatures + request)
            if (temperature > 0) == DRAW:
                cond_base = cond + row * cond_row + codebook * cond_codebook
                uncond_base = uncond + row * uncond_row + codebook * uncond_codebook
                scale = tl.load(guidance_scales + request)
                guided = (scale != 0) & (row < guided_rows)
                ids_a = tl.arange(0, HEAD)
                ids_b = HEAD + tl.arange(0, TAIL)
                a = tl.load(cond_base + ids_a * cond_id).to(tl.float32)
                b = tl.load(cond_base + ids_b * cond_id, mask=ids_b < V, other=_NINF).to(tl.float32)
                cond_top = _finite_or_zero(_max2(a, b))
                uncond_top = cond_top
                a = a - cond_top
                b = b - cond_top
                if guided:
                    ua = tl.load(uncond_base + ids_a * uncond_id).to(tl.float32)
                    ub = tl.load(uncond_base + ids_b * uncond_id, mask=ids_b < V, other=_NINF).to(tl.float32)
                    uncond_top = _finite_or_zero(_max2(ua, ub))
                    a = _guide(a, ua - uncond_top, scale)
                    b = _guide(b, ub - uncond_top, scale)
                shift = _finite_or_zero(_max2(a, b))
                log_sum = tl.log(tl.sum(tl.exp(a - shift), 0) + tl.sum(tl.exp(b - shift), 0))
                forbidden = forbiddens + request * FORBIDDEN
                a = _forbid(a, ids_a, forbidden, FORBIDDEN)
                b = _forbid(b, ids_b, forbidden, FORBIDDEN)
                best = _max2(a, b)
                broken = log_sum != log_sum
                nothing = (best == _NINF) & (broken == 0)
                token = request.to(tl.int32) * 0
                chosen = best - shift - log_sum
                if DRAW == 0:
                    token = _first2(a == best, ids_a, b == best, ids_b)
                elif (broken | nothing) == 0:
                    cell = (row - tl.load(offsets + request)) * codebooks + codebook
                    token = _draw2(
                        a - best,
                        b - best,
                        ids_a,
                        ids_b,
                        tl.load(seeds + request),
                        tl.load(steps + request),
                        cell,
                        tl.minimum(tl.div_rn(1.0, temperature), 1e30),
                        _keep_count(top_ratios, top_ks, request, V),
                        tl.load(top_ps + request),
                        tl.load(min_ps + request),
                        HEAD,
                        TAIL,
                    )
                    # The token's score once more from the logits: best plus its score less best would round twice.
                    x = tl.load(cond_base + token * cond_id).to(tl.float32) - cond_top
                    if guided:
                        x = _guide(x, tl.load(uncond_base + token * uncond_id).to(tl.float32) - uncond_top, scale)
                    chosen = x - shift - log_sum
                if CONFIDENCE == 0:
                    confidence = best - shift - log_sum
                elif CONFIDENCE == 1:
                    confidence = chosen
                elif CONFIDENCE == 2:
                    first = _first2(a == best, ids_a, b == best, ids_b)
                    confidence = best - _max2(tl.where(ids_a == first, _NINF, a), tl.where(ids_b == first, _NINF, b))
                else:
                    la = a - shift - log_sum
                    lb = b - shift - log_sum
                    confidence = tl.sum(tl.where(la > _NINF, tl.exp(la) * la, 0.0), 0)
                    confidence += tl.sum(tl.where(lb > _NINF, tl.exp(lb) * lb, 0.0), 0)
                _store(
                    place,
                    request,
                    token,
                    chosen,
                    confidence,
                    broken,
                    nothing,
                    out_tokens,
                    out_logprobs,
                    out_confidence,
                    out_status,
                )
                for n in tl.static_range(TOP_N):
                    value = _max2(a, b)
                    which = _first2(a == value, ids_a, b == value, ids_b)
                    there = (value > _NINF) & ((broken | nothing) == 0)
                    tl.store(out_top_tokens + place * TOP_N + n, tl.where(there, which, -1))
                    tl.store(out_top_logprobs + place * TOP_N + n, tl.where(there, value - shift - log_sum, _NINF))
                    a = tl.where(ids_a == which, _NINF, a)
                    b = tl.where(ids_b == which, _NINF, b)


@triton.jit
def _keep_count(top_ratios, top_ks, request, V: tl.constexpr):
    by_ratio = tl.ceil(tl.load(top_ratios + request) * V)
    keep = tl.minimum(tl.maximum(by_ratio, 1.0), V * 1.0).to(tl.int32)
    top_k = tl.load(top_ks + request)
    return tl.where(top_k > 0, tl.minimum(top_k, keep), keep)


@triton.jit
def _draw2(
    za,
    zb,
    ids_a,
    ids_b,
    seed,
    step,
    cell,
    inverse_temperature,
    keep,
    top_p,
    min_p,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
):
    """The Gumbel-max token among those that pass the filters; za and zb are scores, 0 for the likeliest token.

    The second logarithm of the noise is rough at first. That settles the matter unless two tokens come too close
    to each other to tell, which is when the exact one is taken.
    """
    ea = _part(_exponential(seed, step, cell, 0, HEAD if HEAD >= 4 else 4), 0, HEAD)
    eb = _part(_exponential(seed, step, cell, HEAD - HEAD % 4, TAIL if TAIL >= 4 else 4), HEAD % 4, TAIL)
    noisy_a = tl.where(za > _NINF, za * inverse_temperature + _rough_negative_log(ea), _NINF)
    noisy_b = tl.where(zb > _NINF, zb * inverse_temperature + _rough_negative_log(eb), _NINF)
    limit = top_p.to(tl.float64)
    if top_p < 1:
        mass = tl.sum(_mass(za, inverse_temperature), 0) + tl.sum(_mass(zb, inverse_temperature), 0)
        limit = limit * mass.to(tl.float64)
    if min_p > 0:
        noisy_a = tl.where(_exp(za * inverse_temperature) >= min_p, noisy_a, _NINF)
        noisy_b = tl.where(_exp(zb * inverse_temperature) >= min_p, noisy_b, _NINF)
    token = keep * 0
    searching = keep > 0
    while searching:
        top = _max2(noisy_a, noisy_b)
        floor = top - (_ROUGH_GAP + tl.abs(top) * 1e-6)
        near_a = noisy_a >= floor
        near_b = noisy_b >= floor
        if tl.sum(near_a.to(tl.int32), 0) + tl.sum(near_b.to(tl.int32), 0) > 1:
            exact_a = tl.where(near_a, za * inverse_temperature + -_log(ea), _NINF)
            exact_b = tl.where(near_b, zb * inverse_temperature + -_log(eb), _NINF)
            top = _max2(exact_a, exact_b)
            near_a = exact_a == top
            near_b = exact_b == top
        token = _first2(near_a, ids_a, near_b, ids_b)
        z = _max2(tl.where(ids_a == token, za, _NINF), tl.where(ids_b == token, zb, _NINF))
        up_a = _above(za, ids_a, z, token)
        up_b = _above(zb, ids_b, z, token)
        count = tl.sum(up_a.to(tl.int32), 0) + tl.sum(up_b.to(tl.int32), 0)
        passed = count < keep
        if top_p < 1:
            mass_a = tl.where(up_a, _mass(za, inverse_temperature), 0)
            mass_b = tl.where(up_b, _mass(zb, inverse_temperature), 0)
            passed = passed & ((tl.sum(mass_a, 0) + tl.sum(mass_b, 0)).to(tl.float64) < limit)
        searching = (passed | (count == 0)) == 0
        noisy_a = tl.where(up_a, noisy_a, _NINF)
        noisy_b = tl.where(up_b, noisy_b, _NINF)
    return token


@triton.jit
def _mass(z, inverse_temperature):
    """Probability times a constant, as whole numbers: their sum does not depend on its order."""
    return (_exp(z * inverse_temperature) * _MASS_UNIT).to(tl.int64)


@triton.jit
def _part(noise, first: tl.constexpr, SIZE: tl.constexpr):
    """noise[first : first + SIZE]; where that is not all of it, noise has four values."""
    if first == 0 and noise.shape[0] == SIZE:
        return noise
    else:
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
    count,
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
    log_sum = tl.log(tl.sum(total * tl.exp(_finite_or_zero(peak) - shift), 0))
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
        keep = _keep_count(top_ratios, top_ks, request, V)
        top_p = tl.load(top_ps + request)
        min_p = tl.load(min_ps + request)
        limit = tl.load(top_ratios + request) * 0.0
        pivot = best * 0.0 + _NINF
        pivot_id = token * 0
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
            above = tl.sum(counts, 0)
            mass = tl.sum(masses, 0)
            if round == 0:
                limit = top_p.to(tl.float64) * mass.to(tl.float64)
                passed = above < 0
            else:
                passed = (above < keep) & ((mass.to(tl.float64) < limit) | (top_p >= 1))
                passed = passed | (above == 0)
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
    chosen = chosen_score - shift - log_sum
    if CONFIDENCE == 0:
        confidence = best - shift - log_sum
    elif CONFIDENCE == 1:
        confidence = chosen
    elif CONFIDENCE == 2:
        confidence = best - runner_up
    else:
        sums = tl.zeros([BLOCK], tl.float32)
        for start in range(0, V, BLOCK):
            x, ids = _chunk(cond, cond_id, uncond, uncond_id, cond_top, uncond_top, scale, guided, start, V, BLOCK)
            logprob = _forbid(x, ids, forbidden, FORBIDDEN) - shift - log_sum
            sums += tl.where(logprob > _NINF, tl.exp(logprob) * logprob, 0.0)
        confidence = tl.sum(sums, 0)
    _store(
        place, request, token, chosen, confidence, broken, nothing, out_tokens, out_logprobs, out_confidence, out_status
    )
    last = best * 0.0 + float("inf")
    last_id = first
    for i in range(TOP_N):
        # The best token below the last one.
        value = tl.full([BLOCK], _NINF, tl.float32)
        which = tl.full([BLOCK], _NO_ID, tl.int32)
        for start in range(0, V, BLOCK):
            x, ids = _chunk(cond, cond_id, uncond, uncond_id, cond_top, uncond_top, scale, guided, start, V, BLOCK)
            y = _forbid(x, ids, forbidden, FORBIDDEN)
            y = tl.where((y < last) | ((y == last) & (ids > last_id)), y, _NINF)
            better = y > value
            which = tl.where(better, ids, which)
            value = tl.where(better, y, value)
        last = tl.max(value, 0)
        last_id = tl.min(tl.where(value == last, which, _NO_ID), 0)
        there = (last > _NINF) & (failed == 0)
        tl.store(out_top_tokens + place * TOP_N + i, tl.where(there, last_id, -1))
        tl.store(out_top_logprobs + place * TOP_N + i, tl.where(there, last - shift - log_sum, _NINF))

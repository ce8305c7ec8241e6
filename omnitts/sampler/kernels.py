"""The sampler in Triton: one cell at a time does guidance, filters, noise and choice, and writes a few numbers.

Nothing of the size of the vocabulary is ever stored. A small vocabulary stays in registers from the one load to the
last comparison; a large one is read again for each pass.

Which token wins must not depend on the backend, so the numbers that are compared (guided scores, noise, shares of
probability) come from the same float32 operations in the same order as in `reference.py` and `exact.py`; fusing of
products and sums is off. Logprobs only have to be accurate.

Most of the noise is never computed exactly. A cheap bound from above is taken for every token; then, from the highest
bound down, tokens get their exact noisy score until that is above all bounds left. One or two groups of eight tokens
(which share their random words) will do.

The filters need no sorting. All of them keep the first part of the order from the likeliest token down, so: take the
best noisy score of all candidates; if its token passes the filters it is also the best of the kept ones. If not,
nothing below it passes either, and the search goes on among the tokens above it.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from omnitts.sampler import exact
from omnitts.sampler.params import CONFIDENCES, STATUS_NOT_FINITE, STATUS_NOTHING_LEFT, Samples, SamplingParams
from omnitts.sampler.philox import LEAST_UNIFORM, MOST_UNIFORM, TOKEN_STREAM

SMALL_VOCABULARY = 4096  # up to here a row is kept in registers
# Of a large one: tokens at once for the noise; lanes of eight neighbours for all other passes; threads and registers.
# The fastest of ten on an H200: wider tiles spill, narrower ones leave too few bytes on their way from memory.
LARGE_BLOCK = 2048
LARGE_LANES = 256
LARGE_WARPS = 4
LARGE_REGISTERS = 80
REGISTERS = 128  # a thread; what is left over is in rare paths, and more would leave too few threads to hide latency

# Numbers that no variant of a kernel is compiled for. Strides known to be multiples of 16 would also bring vector
# loads, whose layout of the tokens over the threads is not that of the noise.
_ANY = ("guided_rows", "requests", "cond_row", "cond_codebook", "uncond_row", "uncond_codebook")

_L0, _L1, _L2, _L3, _L4, _L5 = (tl.constexpr(c) for c in exact.LOG_COEFFICIENTS)
_E0, _E1, _E2, _E3, _E4, _E5 = (tl.constexpr(c) for c in exact.EXP_COEFFICIENTS)
_LN2 = tl.constexpr(exact.LN2)
_INVERSE_LN2 = tl.constexpr(1 / exact.LN2)
_SQRT_HALF_BITS = tl.constexpr(exact.SQRT_HALF_BITS)
_EXP_FLOOR = tl.constexpr(exact.EXP_FLOOR)
_ROUNDER = tl.constexpr(exact.ROUNDER)
_MASS_UNIT = tl.constexpr(2.0**30)
_TOKEN_STREAM = tl.constexpr(TOKEN_STREAM)
_NOT_FINITE = tl.constexpr(STATUS_NOT_FINITE)
_NOTHING_LEFT = tl.constexpr(STATUS_NOTHING_LEFT)
_NVIDIA = tl.constexpr(torch.version.hip is None and not triton.knobs.runtime.interpret)
_2_32 = tl.constexpr(2.0**-32)
_LEAST_V, _MOST_V = tl.constexpr(LEAST_UNIFORM), tl.constexpr(MOST_UNIFORM)
_NINF = tl.constexpr(float("-inf"))
_NO_ID = tl.constexpr(2**30)  # above every token id
_LEAST_INT = tl.constexpr(-(2**31))


class _Shape(NamedTuple):
    """What a kernel is compiled for."""

    codebooks: int
    vocabulary: int
    forbidden: int  # ids a request
    cond_id: int  # stride from one id to the next
    uncond_id: int


class _Row(NamedTuple):
    """Where one cell's logits are, and what is taken off them."""

    cond: tl.tensor  # pointer to the logit of id 0
    uncond: tl.tensor
    cond_top: tl.tensor
    uncond_top: tl.tensor
    guided: tl.tensor
    scale: tl.tensor
    forbidden: tl.tensor  # pointer to the forbidden ids


class _Draw(NamedTuple):
    """What a draw depends on, but for the scores."""

    seed: tl.tensor
    step: tl.tensor
    cell: tl.tensor
    inverse_temperature: tl.tensor
    keep: tl.tensor
    top_p: tl.tensor
    min_p: tl.tensor
    best: tl.tensor  # score of the likeliest token that is not forbidden


def sample_with_triton(
    cond: Tensor,
    uncond: Tensor | None,
    params: SamplingParams,
    offsets: Tensor,
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
        *cond.stride()[:2],
        other,
        *other.stride()[:2],
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
        len(params.seed),
        step,
        tokens if cells is None else cells,
        tokens,
        logprobs,
        scores,
        status,
        tokens if top_tokens is None else top_tokens,
        logprobs if top_logprobs is None else top_logprobs,
    )
    settings = {
        "SHAPE": _Shape(codebooks, vocabulary, params.forbidden.shape[1], cond.stride(2), other.stride(2)),
        "HAS_CELLS": cells is not None,
        "CONFIDENCE": CONFIDENCES.index(confidence),
        "TOP_N": top_n,
        "enable_fp_fusion": False,  # fused, a product and a sum round once, and in torch twice
    }
    if count and vocabulary <= SMALL_VOCABULARY:
        head = 1 << (vocabulary.bit_length() - 1)  # the largest power of two in it; the rest is the tail
        tail = triton.next_power_of_2(max(vocabulary - head, 1))
        warps = max(1, head // 1024)
        _small_kernel[(count,)](*arguments, HEAD=head, TAIL=tail, num_warps=warps, maxnreg=REGISTERS, **settings)
    elif count:
        _large_kernel[(count,)](
            *arguments,
            ALIGNED=_aligned(cond) and _aligned(other),
            LANES=LARGE_LANES,
            BLOCK=LARGE_BLOCK,
            num_warps=LARGE_WARPS,
            maxnreg=LARGE_REGISTERS,
            **settings,
        )
    return Samples(tokens, logprobs, scores, status, top_tokens, top_logprobs)


def _aligned(logits: Tensor) -> bool:
    """Whether every cell's logits are neighbours, and begin at a multiple of 16 numbers."""
    row, codebook, token = logits.stride()
    return token == 1 and row % 16 == 0 and codebook % 16 == 0 and logits.data_ptr() % 32 == 0


# ---- Bits that must equal those of exact.py and philox.py ----


@triton.jit
def _log(x):
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - _SQRT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    p = _horner(f, _L0, _L1, _L2, _L3, _L4, _L5)
    return tl.fma(exponent.to(tl.float32), _full(f, _LN2), f * p)


@triton.jit
def _exp(x):
    x = tl.maximum(x, _EXP_FLOOR)
    shifted = tl.fma(x, _full(x, _INVERSE_LN2), _full(x, _ROUNDER))
    r = tl.fma(shifted - _ROUNDER, _full(x, -_LN2), x)
    p = _horner(r, _E0, _E1, _E2, _E3, _E4, _E5)
    return (p.to(tl.int32, bitcast=True) + (shifted.to(tl.int32, bitcast=True) << 23)).to(tl.float32, bitcast=True)


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
def _multiply(x, factor: tl.constexpr):
    """High and low word of x * factor, uint32."""
    if _NVIDIA:
        # One instruction. Left to itself, the compiler makes two multiplications of it.
        return tl.inline_asm_elementwise(
            "{ .reg .b64 p; mul.wide.u32 p, $2, $3; mov.b64 {$1, $0}, p; }",
            "=r,=r,r,r",
            [x, tl.full(x.shape, factor, tl.uint32)],
            dtype=(tl.uint32, tl.uint32),
            is_pure=True,
            pack=1,
        )
    else:
        product = x.to(tl.uint64) * factor
        return (product >> 32).to(tl.uint32), product.to(tl.uint32)


@triton.jit
def _philox(seed, step, cell, c0, stream):
    """The four output words for each counter in c0, uint32; stream is a number or a tensor of c0's shape."""
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    c0 = c0.to(tl.uint32)
    c1 = tl.zeros_like(c0) + cell.to(tl.uint32)
    c2 = tl.zeros_like(c0) + step.to(tl.uint32)
    c3 = tl.zeros_like(c0) + stream
    for _ in tl.static_range(10):
        high0, low0 = _multiply(c0, 0xD2511F53)
        high1, low1 = _multiply(c2, 0xCD9E8D57)
        c0, c1 = high1 ^ c1 ^ k0, low1
        c2, c3 = high0 ^ c3 ^ k1, low0
        k0 = (k0.to(tl.uint64) + 0x9E3779B9).to(tl.uint32)
        k1 = (k1.to(tl.uint64) + 0xBB67AE85).to(tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def _counter(ids):
    return ((ids >> 10) << 7) | (ids & 127)


@triton.jit
def _gumbel(seed, step, cell, ids):
    # Both streams at once, in a second dimension: of the coarse one comes the upper half of a token's word.
    fine = tl.zeros_like(ids)[:, None] + tl.arange(0, 2)[None, :]
    c0, c1, c2, c3 = _philox(seed, step, cell, _counter(ids)[:, None] + fine * 0, fine.to(tl.uint32) + _TOKEN_STREAM)
    part = ((ids >> 7) & 7)[:, None] + fine * 0
    word = part & 3
    words = tl.where(word < 2, tl.where(word == 0, c0, c1), tl.where(word == 2, c2, c3))
    half = tl.where(part < 4, words, words >> 16) & 0xFFFF
    return _gumbel_of(tl.sum(tl.where(fine == 0, half << 16, half), 1))


@triton.jit
def gumbel_of_cells(seed, step, cells, stream):
    """`philox.gumbel` of index 0 for a block of cells, for rankings: the same bits."""
    zero = tl.zeros_like(cells)
    upper, _, _, _ = _philox(seed, step, cells, zero, stream)
    lower, _, _, _ = _philox(seed, step, cells, zero, stream + 1)
    return _gumbel_of(((upper & 0xFFFF) << 16) | (lower & 0xFFFF))


@triton.jit
def _gumbel_of(words):
    """32 random bits as Gumbel noise."""
    v = tl.minimum(tl.maximum(words.to(tl.float32) * _2_32, _LEAST_V), _MOST_V)
    near_0 = v * _horner(-v, _L0, _L1, _L2, _L3, _L4, _L5)
    return -_log(tl.where(v < 0.25, near_0, -_log(1.0 - v)))


# ---- Reductions that wait less: several chains within a thread, and whole numbers, which a warp reduces at once ----


@triton.jit
def _max(x):
    SIZE: tl.constexpr = x.shape[0]
    if SIZE < 256:
        return tl.max(x, 0)
    else:
        lanes = tl.max(tl.max(x.reshape(8, SIZE // 8), 0).reshape(SIZE // 256, 32), 0)
        return _ordered(tl.max(_ordered(lanes.to(tl.int32, bitcast=True)), 0)).to(tl.float32, bitcast=True)


@triton.jit
def _count(flags):
    SIZE: tl.constexpr = flags.shape[0]
    if SIZE < 256:
        return tl.sum(flags.to(tl.int32), 0)
    else:
        lanes = tl.sum(tl.sum(tl.where(flags, 1.0, 0.0).reshape(8, SIZE // 8), 0).reshape(SIZE // 256, 32), 0)
        return tl.sum(lanes.to(tl.int32), 0)


@triton.jit
def _ordered(bits):
    """Bits of a float32 as an int32 of the same order, and back."""
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


# ---- Scores ----


@triton.jit
def _request_of(line, offsets, requests):
    """The last request that begins at or before a line of the logits."""
    low = requests * 0
    high = requests
    while high - low > 1:
        middle = (low + high) // 2
        begins = tl.load(offsets + middle) <= line
        low = tl.where(begins, middle, low)
        high = tl.where(begins, high, middle)
    return low


@triton.jit
def _place_of(place, cells, offsets, requests, SHAPE: tl.constexpr, HAS_CELLS: tl.constexpr):
    """Line and codebook of the logits that a program works on, and their request."""
    position = tl.load(cells + place).to(tl.int32) if HAS_CELLS else place
    line = position // SHAPE.codebooks
    return line, position % SHAPE.codebooks, _request_of(line, offsets, requests)


@triton.jit
def _guide(c, u, scale):
    """Guided scores of conditional and unconditional logits that have their maxima taken off."""
    return tl.where(c == _NINF, _NINF, tl.fma(_full(c, scale), c - u, c))


@triton.jit
def _scores(row, ids, SHAPE: tl.constexpr, INSIDE: tl.constexpr = False):
    """Scores at any ids, also of forbidden tokens; -inf beyond the vocabulary, unless all ids are inside."""
    x = _logits(row.cond + ids * SHAPE.cond_id, ids, SHAPE, INSIDE) - row.cond_top
    if row.guided:
        x = _guide(x, _logits(row.uncond + ids * SHAPE.uncond_id, ids, SHAPE, INSIDE) - row.uncond_top, row.scale)
    return x


@triton.jit
def _logits(places, ids, SHAPE: tl.constexpr, INSIDE: tl.constexpr):
    if INSIDE:
        return tl.load(places).to(tl.float32)
    else:
        return tl.load(places, mask=ids < SHAPE.vocabulary, other=_NINF).to(tl.float32)


@triton.jit
def _forbid(row, scores, ids, SHAPE: tl.constexpr):
    FORBIDDEN: tl.constexpr = SHAPE.forbidden
    for i in tl.static_range(FORBIDDEN):
        scores = tl.where(ids == tl.load(row.forbidden + i), _NINF, scores)
    return scores


@triton.jit
def _finite_or_zero(x):
    return tl.where(x == _NINF, 0.0, x)


@triton.jit
def _shares(scores, shift):
    """exp(scores - shift) but for a factor near 1, exp(-_residue(shift)), that rounding in one step brings in."""
    return tl.exp2(tl.fma(scores, _full(scores, _INVERSE_LN2), _full(scores, -(shift * _INVERSE_LN2))))


@triton.jit
def _residue(shift):
    one = shift * _INVERSE_LN2
    return tl.fma(shift, one * 0.0 + _INVERSE_LN2, -one) * _LN2


@triton.jit
def _above(scores, ids, pivot, pivot_id):
    """Which tokens stand before the pivot in the order from the likeliest down, ties by the lowest id.

    A pivot of -inf with id 0 is behind every possible token.
    """
    return (scores > pivot) | ((scores == pivot) & (ids < pivot_id))


# ---- Drawing ----


@triton.jit
def _draw_of(request, cell, best, temperature, top_ratios, top_ks, top_ps, min_ps, seeds, steps, SHAPE: tl.constexpr):
    by_ratio = tl.ceil(tl.load(top_ratios + request) * SHAPE.vocabulary)
    keep = tl.minimum(tl.maximum(by_ratio, 1.0), SHAPE.vocabulary * 1.0).to(tl.int32)
    top_k = tl.load(top_ks + request)
    return _Draw(
        tl.load(seeds + request),
        tl.load(steps + request),
        cell,
        tl.minimum(tl.div_rn(1.0, temperature), 1e30),
        tl.where(top_k > 0, tl.minimum(top_k, keep), keep),
        tl.load(top_ps + request),
        tl.load(min_ps + request),
        best,
    )


@triton.jit
def _scaled(scores, draw):
    return (scores - draw.best) * draw.inverse_temperature


@triton.jit
def _noisy(scores, ids, draw):
    return _scaled(scores, draw) + _gumbel(draw.seed, draw.step, draw.cell, ids)


@triton.jit
def _mass(scores, draw):
    """Probability times a constant, as whole numbers: their sum does not depend on its order."""
    return (_exp(_scaled(scores, draw)) * _MASS_UNIT).to(tl.int32).to(tl.int64)


@triton.jit
def _bounds(scores, draw, first, SIZE: tl.constexpr):
    """Bounds from above of the noisy scores of first .. first + SIZE, one for each group of tokens.

    They take the upper half of a token's random bits, which bounds v from below. The noise is -log(-log(1 - v)), which
    is at most -log(v). And a float's bits, read as a whole number, are its logarithm in base 2 but for a factor, an
    offset and an error of at most 0.09, always to the same side.
    """
    if SIZE < 1024:
        return _group_max(_noisy(scores, first + tl.arange(0, SIZE), draw), SIZE)
    else:
        c0, c1, c2, c3 = _philox(draw.seed, draw.step, draw.cell, first // 8 + tl.arange(0, SIZE // 8), _TOKEN_STREAM)
        halves = tl.join(tl.join(_halves(c0), _halves(c2)), tl.join(_halves(c1), _halves(c3)))
        words = halves.reshape(SIZE // 1024, 128, 8).permute(0, 2, 1).reshape(SIZE)
        return _group_max(_bound(scores, words, draw, -draw.best * draw.inverse_temperature), SIZE)


@triton.jit
def _bound(scores, words, draw, rest):
    bits = words.to(tl.float32).to(tl.int32, bitcast=True).to(tl.float32)
    noise = tl.fma(bits, _full(bits, -_LN2 / 2**23), _full(bits, 159 * _LN2 + rest))
    return tl.fma(scores, _full(scores, draw.inverse_temperature), noise)


@triton.jit
def _halves(words):
    """The lower and the upper 16 bits of each word, as the upper ones of a word."""
    return tl.join(words << 16, words & 0xFFFF0000)


@triton.jit
def _group_max(x, SIZE: tl.constexpr):
    """The maximum of each group, the tokens that share a Philox counter: id, id + 128 and so on to id + 896."""
    if SIZE >= 1024:
        return tl.max(x.reshape(SIZE // 1024, 8, 128), 1).reshape(SIZE // 8)
    elif SIZE > 128:
        return tl.max(x.reshape(SIZE // 128, 128), 0)
    else:
        return x


@triton.jit
def _groups(first, SIZE: tl.constexpr):
    """The Philox counters of the groups that _group_max gives for first .. first + SIZE."""
    if SIZE >= 1024:
        return first // 8 + tl.arange(0, SIZE // 8)
    else:
        return _counter(first + tl.arange(0, min(SIZE, 128)))


@triton.jit
def _reaches(bound, top, draw):
    """Whether a noisy score may be as high as top, by its bound, which is itself a little off by rounding."""
    slack = 3e-5 + 1e-6 * (tl.abs(bound) + tl.abs(draw.best * draw.inverse_temperature))
    return (bound > _NINF) & (bound + slack >= top)


@triton.jit
def _search(row, draw, bounds, groups, pivot, pivot_id, top, token, score, SHAPE: tl.constexpr):
    """The best noisy score among the groups' tokens above the pivot, unless `top` is better.

    Returns it with its token and that token's score.
    """
    bound = _max(bounds)
    while _reaches(bound, top, draw):
        group = tl.min(tl.where(bounds == bound, groups, _NO_ID), 0)
        ids = ((group >> 7) << 10) + (group & 127) + 128 * tl.arange(0, 8)
        scores = _forbid(row, _scores(row, ids, SHAPE), ids, SHAPE)
        noisy = tl.where(_above(scores, ids, pivot, pivot_id), _noisy(scores, ids, draw), _NINF)
        here = tl.max(noisy, 0)
        which = tl.min(tl.where(noisy == here, ids, _NO_ID), 0)
        better = (here > top) | ((here == top) & (which < token) & (here > _NINF))
        score = tl.where(better, tl.max(tl.where(ids == which, scores, _NINF), 0), score)
        token = tl.where(better, which, token)
        top = tl.where(better, here, top)
        bounds = tl.where(groups == group, _NINF, bounds)
        bound = _max(bounds)
    return top, token, score


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


# ---- A vocabulary in registers: a head of a power of two ids, and the tail that is left ----


@triton.jit
def _load(logits, stride: tl.constexpr, SIZE: tl.constexpr):
    """The first SIZE logits as float32. Two sums make each address, the second of a constant: it costs nothing."""
    WIDTH: tl.constexpr = min(SIZE, 32)
    lane = logits + tl.arange(0, WIDTH)[None, :] * stride
    return tl.load(lane + (tl.arange(0, SIZE // WIDTH) * (WIDTH * stride))[:, None]).to(tl.float32).reshape(SIZE)


@triton.jit
def _max2(a, b):
    return tl.maximum(_max(a), tl.max(b, 0))


@triton.jit
def _sum2(a, b):
    if a.shape[0] < 256:
        return tl.sum(a, 0) + tl.sum(b, 0)
    else:
        return tl.sum(tl.sum(a.reshape(8, a.shape[0] // 8), 0), 0) + tl.sum(b, 0)


@triton.jit
def _first2(is_a, is_b, ids_b):
    """The lowest id for which the condition holds."""
    in_a = tl.min(tl.where(is_a, tl.arange(0, is_a.shape[0]), _NO_ID), 0)
    return tl.minimum(in_a, tl.min(tl.where(is_b, ids_b, _NO_ID), 0))


@triton.jit
def _log_sum(a, b, shift):
    return tl.log(_sum2(_shares(a, shift), _shares(b, shift))) - _residue(shift)


@triton.jit(do_not_specialize=_ANY)
def _small_kernel(
    cond,
    cond_row,
    cond_codebook,
    uncond,
    uncond_row,
    uncond_codebook,
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
    requests,
    steps,
    cells,
    out_tokens,
    out_logprobs,
    out_confidence,
    out_status,
    out_top_tokens,
    out_top_logprobs,
    SHAPE: tl.constexpr,
    HAS_CELLS: tl.constexpr,
    CONFIDENCE: tl.constexpr,
    TOP_N: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
):
    FORBIDDEN: tl.constexpr = SHAPE.forbidden
    ids_b = HEAD + tl.arange(0, TAIL)
    place = tl.program_id(0)
    line, codebook, request = _place_of(place, cells, offsets, requests, SHAPE, HAS_CELLS)
    scale = tl.load(guidance_scales + request)
    guided = (scale != 0) & (line < guided_rows)
    cond_at = cond + line.to(tl.int64) * cond_row + codebook * cond_codebook
    uncond_at = uncond + line.to(tl.int64) * uncond_row + codebook * uncond_codebook
    a = _load(cond_at, SHAPE.cond_id, HEAD)
    b = tl.load(cond_at + ids_b * SHAPE.cond_id, mask=ids_b < SHAPE.vocabulary, other=_NINF).to(tl.float32)
    if guided:
        ua = _load(uncond_at, SHAPE.uncond_id, HEAD)
        ub = tl.load(uncond_at + ids_b * SHAPE.uncond_id, mask=ids_b < SHAPE.vocabulary, other=_NINF).to(tl.float32)
        cond_top = _finite_or_zero(_max2(a, b))
        uncond_top = _finite_or_zero(_max2(ua, ub))
        a = a - cond_top
        b = b - cond_top
        a = tl.fma(_full(a, scale), a - (ua - uncond_top), a)
        b = _guide(b, ub - uncond_top, scale)
    else:
        cond_top = _finite_or_zero(_max2(a, b))
        uncond_top = cond_top
        a = a - cond_top
        b = b - cond_top
    top_a = _max(a)
    shift = _finite_or_zero(tl.maximum(top_a, tl.max(b, 0)))
    log_sum = _log_sum(a, b, shift)
    if guided & (log_sum != log_sum):
        # The NaN may be no more than two impossible logits that met; _guide minds them, but takes time.
        a = tl.where(_load(cond_at, SHAPE.cond_id, HEAD) == _NINF, _NINF, a)
        top_a = _max(a)
        shift = _finite_or_zero(tl.maximum(top_a, tl.max(b, 0)))
        log_sum = _log_sum(a, b, shift)
    forbidden = forbiddens + request * SHAPE.forbidden
    for i in tl.static_range(FORBIDDEN):
        id = tl.load(forbidden + i)
        b = tl.where(ids_b == id, _NINF, b)
        if (id >= 0) & (id < HEAD):
            a = tl.where(tl.arange(0, HEAD) == id, _NINF, a)
            top_a = _max(a)
    best = tl.maximum(top_a, tl.max(b, 0))
    broken = log_sum != log_sum
    nothing = (best == _NINF) & (broken == 0)
    temperature = tl.load(temperatures + request)
    token = request.to(tl.int32) * 0
    score = best
    if temperature == 0:
        token = _first2(a == best, b == best, ids_b)
    elif (broken | nothing) == 0:
        row = _Row(cond_at, uncond_at, cond_top, uncond_top, guided, scale, forbidden)
        cell = (line - tl.load(offsets + request)) * SHAPE.codebooks + codebook
        draw = _draw_of(request, cell, best, temperature, top_ratios, top_ks, top_ps, min_ps, seeds, steps, SHAPE)
        token, score = _draw2(row, draw, a, b, ids_b, SHAPE, HEAD)
    logprob = score - shift - log_sum
    if CONFIDENCE == 0:
        confidence = best - shift - log_sum
    elif CONFIDENCE == 1:
        confidence = logprob
    elif CONFIDENCE == 2:
        first = _first2(a == best, b == best, ids_b)
        confidence = best - _max2(tl.where(tl.arange(0, HEAD) == first, _NINF, a), tl.where(ids_b == first, _NINF, b))
    else:
        la = a - shift - log_sum
        lb = b - shift - log_sum
        confidence = _sum2(tl.where(la > _NINF, tl.exp(la) * la, 0.0), tl.where(lb > _NINF, tl.exp(lb) * lb, 0.0))
    _store(
        place,
        request,
        token,
        logprob,
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
        which = _first2(a == value, b == value, ids_b)
        there = (value > _NINF) & ((broken | nothing) == 0)
        tl.store(out_top_tokens + place * TOP_N + n, tl.where(there, which, -1))
        tl.store(out_top_logprobs + place * TOP_N + n, tl.where(there, value - shift - log_sum, _NINF))
        a = tl.where(tl.arange(0, HEAD) == which, _NINF, a)
        b = tl.where(ids_b == which, _NINF, b)


@triton.jit
def _draw2(row, draw, a, b, ids_b, SHAPE: tl.constexpr, HEAD: tl.constexpr):
    """The Gumbel-max token among those that pass the filters, and its score."""
    noisy_b = b
    if tl.max(b, 0) > _NINF:
        noisy_b = _noisy(b, ids_b, draw)
    limit = draw.top_p.to(tl.float64)
    if draw.top_p < 1:
        limit = limit * _sum2(_mass(a, draw), _mass(b, draw)).to(tl.float64)
    bounds = _bounds(a, draw, 0, HEAD)
    groups = _groups(0, HEAD)
    pivot = draw.best * 0.0 + _NINF
    pivot_id = draw.keep * 0
    searching = draw.keep > 0
    while searching:
        open_b = tl.where(_above(b, ids_b, pivot, pivot_id), noisy_b, _NINF)
        top = tl.max(open_b, 0)
        token = tl.min(tl.where(open_b == top, ids_b, _NO_ID), 0)
        score = tl.max(tl.where(ids_b == token, b, _NINF), 0)
        top, pivot_id, pivot = _search(row, draw, bounds, groups, pivot, pivot_id, top, token, score, SHAPE)
        searching = _passes(draw, limit, a, b, ids_b, pivot, pivot_id, HEAD) == 0
        if searching:
            up_a = _above(a, tl.arange(0, HEAD), pivot, pivot_id)
            bounds = tl.where(_group_max(tl.where(up_a, a, _NINF), HEAD) > _NINF, bounds, _NINF)
    return pivot_id, pivot


@triton.jit
def _passes(draw, limit, a, b, ids_b, score, token, HEAD: tl.constexpr):
    """Whether a token passes the filters; the likeliest always does."""
    # With ties there may be fewer above it than this; only then do they have to be told apart.
    passed = _count(a >= score) + tl.sum((b >= score).to(tl.int32), 0) <= draw.keep
    if (passed == 0) | (draw.top_p < 1):
        up_a = _above(a, tl.arange(0, HEAD), score, token)
        up_b = _above(b, ids_b, score, token)
        passed = _sum2(up_a.to(tl.int32), up_b.to(tl.int32)) < draw.keep
        if draw.top_p < 1:
            # Masked before the exponential: done after it, compilers would take all exponentials out of the loop.
            mass = _sum2(_mass(tl.where(up_a, a, _NINF), draw), _mass(tl.where(up_b, b, _NINF), draw))
            passed = passed & (mass.to(tl.float64) < limit)
    if draw.min_p > 0:
        passed = passed & (_exp(_scaled(score, draw)) >= draw.min_p)
    return passed


# ---- A vocabulary that is read again for each pass ----


@triton.jit
def _hit(row, start, SHAPE: tl.constexpr, SIZE: tl.constexpr):
    """Whether a forbidden id is among start .. start + SIZE."""
    FORBIDDEN: tl.constexpr = SHAPE.forbidden
    hit = start < 0
    for i in tl.static_range(FORBIDDEN):
        forbidden = tl.load(row.forbidden + i)
        hit = hit | ((forbidden >= start) & (forbidden < start + SIZE))
    return hit


@triton.jit
def _chunk(row, start, SHAPE: tl.constexpr, BLOCK: tl.constexpr):
    """Scores of the ids start .. start + BLOCK, -inf where forbidden, and the ids."""
    ids = start + tl.arange(0, BLOCK)
    scores = _scores(row, ids, SHAPE)
    if _hit(row, start, SHAPE, BLOCK):
        scores = _forbid(row, scores, ids, SHAPE)
    return scores, ids


@triton.jit
def _tile_ids(start, LANES: tl.constexpr):
    return (start + tl.arange(0, LANES * 8)).reshape(LANES, 8)


@triton.jit
def _tile(row, start, SHAPE: tl.constexpr, LANES: tl.constexpr, FULL: tl.constexpr):
    """Scores of the ids start .. start + 8 * LANES, [LANES, 8], also of forbidden ones: neighbours share a lane."""
    return _scores(row, start + tl.arange(0, LANES * 8), SHAPE, FULL).reshape(LANES, 8)


class _Lanes(NamedTuple):
    """What one pass finds out about each lane's scores."""

    top: tl.tensor
    total: tl.tensor  # of exp(score - top)
    allowed: tl.tensor  # the highest score that is not forbidden
    start: tl.tensor  # of the first tile that has it
    mass: tl.tensor  # of exp((score - allowed) / temperature), of those that are not forbidden


@triton.jit
def _add_tile(row, lanes, start, exponent, tempered, SHAPE: tl.constexpr, LANES: tl.constexpr, FULL: tl.constexpr):
    """Brings a tile into the lanes' sums; what was summed before is scaled to a new maximum once a tile."""
    x = _tile(row, start, SHAPE, LANES, FULL)
    tile_top = tl.max(x, 1)
    top = tl.maximum(lanes.top, tile_top)
    level = _finite_or_zero(top)
    total = lanes.total * tl.exp2((lanes.top - level) * _INVERSE_LN2)
    total += tl.sum(tl.exp2((x - level[:, None]) * _INVERSE_LN2), 1)
    if _hit(row, start, SHAPE, LANES * 8):
        x = _forbid(row, x, _tile_ids(start, LANES), SHAPE)
        tile_top = tl.max(x, 1)
    allowed = tl.maximum(lanes.allowed, tile_top)
    mass = lanes.mass
    if tempered:
        level = _finite_or_zero(allowed)
        mass = mass * tl.exp2((lanes.allowed - level) * exponent)
        mass += tl.sum(tl.exp2((x - level[:, None]) * exponent), 1)
    return _Lanes(top, total, allowed, tl.where(tile_top > lanes.allowed, start, lanes.start), mass)


@triton.jit
def _scan(row, exponent, tempered, SHAPE: tl.constexpr, LANES: tl.constexpr):
    """Maxima and sums over a whole row, lane by lane; exponent is log2(e) over the temperature."""
    TILE: tl.constexpr = LANES * 8
    FULL: tl.constexpr = SHAPE.vocabulary // TILE * TILE
    lowest = tl.full([LANES], _NINF, tl.float32)
    zero = tl.zeros([LANES], tl.float32)
    lanes = _Lanes(lowest, zero, lowest, tl.zeros([LANES], tl.int32), zero)
    for start in range(0, FULL, TILE):
        lanes = _add_tile(row, lanes, start, exponent, tempered, SHAPE, LANES, True)
    if SHAPE.vocabulary > FULL:
        lanes = _add_tile(row, lanes, FULL, exponent, tempered, SHAPE, LANES, False)
    return lanes


@triton.jit
def _merged(sums, tops, level, exponent):
    """The lanes' sums, each of exponentials against its own maximum, as one against `level`."""
    return tl.sum(sums * tl.exp2((tops - level) * exponent), 0)


@triton.jit
def _first_of(row, lanes, best, SHAPE: tl.constexpr, LANES: tl.constexpr):
    """The lowest id of the best score that is not forbidden: it lies in the first such tile of its lane."""
    ids = lanes.start[:, None] + (tl.arange(0, LANES) * 8)[:, None] + tl.arange(0, 8)[None, :]
    # The other lanes look beyond the vocabulary, where nothing is read.
    ids = tl.where((lanes.allowed == best)[:, None], ids, SHAPE.vocabulary)
    scores = _forbid(row, _scores(row, ids, SHAPE), ids, SHAPE)
    return tl.min(tl.min(tl.where(scores == best, ids, _NO_ID), 1), 0)


@triton.jit
def _first_in_chunks(row, best, SHAPE: tl.constexpr, BLOCK: tl.constexpr):
    which = tl.full([BLOCK], _NO_ID, tl.int32)
    for start in range(0, SHAPE.vocabulary, BLOCK):
        scores, ids = _chunk(row, start, SHAPE, BLOCK)
        which = tl.minimum(which, tl.where(scores == best, ids, _NO_ID))
    return tl.min(which, 0)


@triton.jit
def _tops(cond_at, uncond_at, SHAPE: tl.constexpr, LANES: tl.constexpr):
    """The maxima of a row's conditional and unconditional logits."""
    cond = tl.full([LANES * 8], _NINF, tl.float32)
    uncond = tl.full([LANES * 8], _NINF, tl.float32)
    for start in range(0, SHAPE.vocabulary, LANES * 8):
        ids = start + tl.arange(0, LANES * 8)
        real = ids < SHAPE.vocabulary
        c = tl.load(cond_at + ids * SHAPE.cond_id, mask=real, other=_NINF).to(tl.float32)
        u = tl.load(uncond_at + ids * SHAPE.uncond_id, mask=real, other=_NINF).to(tl.float32)
        cond = tl.maximum(cond, c)
        uncond = tl.maximum(uncond, u)
    return _finite_or_zero(tl.max(cond, 0)), _finite_or_zero(tl.max(uncond, 0))


@triton.jit
def _next_best(row, last, last_id, SHAPE: tl.constexpr, BLOCK: tl.constexpr):
    """The score and the token that follow in the order from the likeliest down."""
    value = tl.full([BLOCK], _NINF, tl.float32)
    which = tl.full([BLOCK], _NO_ID, tl.int32)
    for start in range(0, SHAPE.vocabulary, BLOCK):
        scores, ids = _chunk(row, start, SHAPE, BLOCK)
        scores = tl.where((scores < last) | ((scores == last) & (ids > last_id)), scores, _NINF)
        better = scores > value
        which = tl.where(better, ids, which)
        value = tl.where(better, scores, value)
    best = tl.max(value, 0)
    return best, tl.min(tl.where(value == best, which, _NO_ID), 0)


@triton.jit(do_not_specialize=_ANY)
def _large_kernel(
    cond,
    cond_row,
    cond_codebook,
    uncond,
    uncond_row,
    uncond_codebook,
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
    requests,
    steps,
    cells,
    out_tokens,
    out_logprobs,
    out_confidence,
    out_status,
    out_top_tokens,
    out_top_logprobs,
    SHAPE: tl.constexpr,
    HAS_CELLS: tl.constexpr,
    CONFIDENCE: tl.constexpr,
    TOP_N: tl.constexpr,
    ALIGNED: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0)
    line, codebook, request = _place_of(place, cells, offsets, requests, SHAPE, HAS_CELLS)
    cond_at = line.to(tl.int64) * cond_row + codebook * cond_codebook
    uncond_at = line.to(tl.int64) * uncond_row + codebook * uncond_codebook
    scale = tl.load(guidance_scales + request)
    forbidden = forbiddens + request * SHAPE.forbidden
    guided = (scale != 0) & (line < guided_rows)
    temperature = tl.load(temperatures + request)
    cell = (line - tl.load(offsets + request)) * SHAPE.codebooks + codebook

    # The same pointers twice. Known to be multiples of 16 bytes they bring vector loads, which give each thread a run
    # of neighbours: fast, but not how the noise lies over the threads.
    cond_wide = cond + (cond_at // 16 * 16 if ALIGNED else cond_at)
    uncond_wide = uncond + (uncond_at // 16 * 16 if ALIGNED else uncond_at)
    zero = tl.full([], 0.0, tl.float32)
    cond_top = zero
    uncond_top = zero
    if guided:
        cond_top, uncond_top = _tops(cond_wide, uncond_wide, SHAPE, LANES)
    wide = _Row(cond_wide, uncond_wide, cond_top, uncond_top, guided, scale, forbidden)
    best = zero
    draw = _draw_of(request, cell, best, temperature, top_ratios, top_ks, top_ps, min_ps, seeds, steps, SHAPE)
    exponent = draw.inverse_temperature * _INVERSE_LN2
    lanes = _scan(wide, exponent, (temperature > 0) & (draw.top_p < 1), SHAPE, LANES)
    top = tl.max(lanes.top, 0)
    best = tl.max(lanes.allowed, 0)
    shift = _finite_or_zero(top)
    log_sum = tl.log(_merged(lanes.total, lanes.top, shift, _INVERSE_LN2))
    broken = log_sum != log_sum
    nothing = (best == _NINF) & (broken == 0)
    failed = broken | nothing
    first = _first_of(wide, lanes, best, SHAPE, LANES)
    mass = _merged(lanes.mass, lanes.allowed, best, exponent)
    bound = _least_of_best(lanes.allowed, draw.keep, LANES)
    if guided == 0:
        # What was scanned were bare logits: scores have their maximum taken off.
        cond_top = shift
        if (best < top) & (failed == 0):
            # Rounding may make equals of logits that are far below a forbidden one, and the sum is off with it.
            bare = _Row(cond_wide, uncond_wide, cond_top, cond_top, guided, scale, forbidden)
            first = _first_in_chunks(bare, best - shift, SHAPE, BLOCK)
            mass = float("nan")
        best = best - shift
        bound = bound - shift
        shift = zero
    wide = _Row(cond_wide, uncond_wide, cond_top, uncond_top, guided, scale, forbidden)
    row = _Row(cond + cond_at, uncond + uncond_at, cond_top, uncond_top, guided, scale, forbidden)
    token = first
    score = best
    if (temperature > 0) & (failed == 0):
        draw = _draw_of(request, cell, best, temperature, top_ratios, top_ks, top_ps, min_ps, seeds, steps, SHAPE)
        token, score = _draw_large(row, wide, draw, mass, bound, SHAPE, LANES, BLOCK)

    logprob = score - shift - log_sum
    if CONFIDENCE == 0:
        confidence = best - shift - log_sum
    elif CONFIDENCE == 1:
        confidence = logprob
    elif CONFIDENCE == 2:
        confidence = best - _next_best(row, best, first, SHAPE, BLOCK)[0]
    else:
        sums = tl.zeros([BLOCK], tl.float32)
        for start in range(0, SHAPE.vocabulary, BLOCK):
            scores, _ = _chunk(row, start, SHAPE, BLOCK)
            each = scores - shift - log_sum
            sums += tl.where(each > _NINF, tl.exp(each) * each, 0.0)
        confidence = tl.sum(sums, 0)
    _store(
        place,
        request,
        token,
        logprob,
        confidence,
        broken,
        nothing,
        out_tokens,
        out_logprobs,
        out_confidence,
        out_status,
    )
    last = best * 0.0 + float("inf")
    last_id = first
    for i in range(TOP_N):
        last, last_id = _next_best(row, last, last_id, SHAPE, BLOCK)
        there = (last > _NINF) & (failed == 0)
        tl.store(out_top_tokens + place * TOP_N + i, tl.where(there, last_id, -1))
        tl.store(out_top_logprobs + place * TOP_N + i, tl.where(there, last - shift - log_sum, _NINF))


@triton.jit
def _least_of_best(values, keep, LANES: tl.constexpr):
    """The keep-th largest of the lanes' best scores, -inf if there are not so many lanes.

    As many tokens are at least as likely, so no token below it is among the `keep` likeliest of all. Found bit by bit:
    the largest number that `keep` values reach.
    """
    ordered = _ordered(values.to(tl.int32, bitcast=True))
    least = keep * 0 + _LEAST_INT
    if keep <= LANES:
        step = keep * 0 + _LEAST_INT  # the sign's bit; added to the least number of all it gives 0
        for _ in range(32):
            trial = least + step
            reached = tl.sum((ordered >= trial).to(tl.int32), 0) >= keep
            least = tl.where(reached, trial, least)
            step = (step >> 1) & 0x7FFFFFFF
    return tl.where(keep <= LANES, _ordered(least).to(tl.float32, bitcast=True), _NINF)


@triton.jit
def _draw_large(row, wide, draw, mass, bound, SHAPE: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr):
    """The Gumbel-max token among those that pass the filters, and its score.

    mass: about that of all tokens, or NaN; bound: no score below it is among the `keep` best, or -inf.
    """
    pivot = bound
    pivot_id = tl.where(bound > _NINF, _NO_ID, 0)
    searching = draw.keep > 0
    while searching:
        pivot_id, pivot = _best_above(row, wide, draw, pivot, pivot_id, SHAPE, LANES, BLOCK)
        searching = _passes_large(row, wide, draw, mass, pivot, pivot_id, SHAPE, LANES, BLOCK) == 0
    return pivot_id, pivot


@triton.jit
def _bounds_at(row, draw, start, pivot, pivot_id, SHAPE: tl.constexpr, BLOCK: tl.constexpr):
    """What `_bounds` gives for the tokens of start .. start + BLOCK above the pivot, and reads their logits itself.

    A group's tokens are taken one after the other, so that each stays with the thread that has its random words.
    """
    groups = _groups(start, BLOCK)
    first = ((groups >> 7) << 10) + (groups & 127)
    words = _philox(draw.seed, draw.step, draw.cell, groups, _TOKEN_STREAM)
    hit = _hit(row, start, SHAPE, BLOCK)
    rest = -draw.best * draw.inverse_temperature
    bounds = tl.full(groups.shape, _NINF, tl.float32)
    for part in tl.static_range(8):
        ids = first + 128 * part
        scores = _scores(row, ids, SHAPE)
        if hit:
            scores = _forbid(row, scores, ids, SHAPE)
        if pivot > _NINF:
            scores = tl.where(_above(scores, ids, pivot, pivot_id), scores, _NINF)
        half = words[part % 4] << 16 if part < 4 else words[part % 4] & 0xFFFF0000
        bounds = tl.maximum(bounds, _bound(scores, half, draw, rest))
    return bounds


@triton.jit
def _best_above(row, wide, draw, pivot, pivot_id, SHAPE: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr):
    """The token of the best noisy score among those above the pivot, and its score.

    Each lane remembers its highest bound with its group, and how high the next was. Only if that might have won, which
    is rare, are all groups gone through once more, now with the score that they have to reach.
    """
    group = _groups(0, BLOCK)
    bound = tl.full(group.shape, _NINF, tl.float32)
    second = tl.full(group.shape, _NINF, tl.float32)
    for start in range(0, SHAPE.vocabulary, BLOCK):
        some = pivot == _NINF
        if pivot > _NINF:
            some = tl.max(tl.max(_tile(wide, start, SHAPE, BLOCK // 8, False), 1), 0) >= pivot
        if some:
            new = _bounds_at(row, draw, start, pivot, pivot_id, SHAPE, BLOCK)
            better = new > bound
            second = tl.maximum(second, tl.minimum(new, bound))
            group = tl.where(better, _groups(start, BLOCK), group)
            bound = tl.where(better, new, bound)
    nothing = draw.best * 0.0 + _NINF
    top, token, score = _search(row, draw, bound, group, pivot, pivot_id, nothing, pivot_id, pivot, SHAPE)
    if _reaches(tl.max(second, 0), top, draw):
        for start in range(0, SHAPE.vocabulary, BLOCK):
            new = _bounds_at(row, draw, start, pivot, pivot_id, SHAPE, BLOCK)
            groups = _groups(start, BLOCK)
            top, token, score = _search(row, draw, new, groups, pivot, pivot_id, top, token, score, SHAPE)
    return token, score


@triton.jit
def _add_above(
    row,
    draw,
    start,
    score,
    token,
    above,
    before,
    exponent,
    SHAPE: tl.constexpr,
    LANES: tl.constexpr,
    INSIDE: tl.constexpr,
):
    """Counts a tile's tokens above one, lane by lane, and adds up their shares."""
    scores = _tile(row, start, SHAPE, LANES, INSIDE)
    if _hit(row, start, SHAPE, LANES * 8):
        scores = _forbid(row, scores, _tile_ids(start, LANES), SHAPE)
    up = _above(scores, _tile_ids(start, LANES), score, token)
    if draw.top_p < 1:
        # Masked before the exponential: done after it, compilers would take all of them out of the branch.
        before += tl.sum(tl.exp2((tl.where(up, scores, _NINF) - draw.best) * exponent), 1)
    return above + tl.sum(up.to(tl.int32), 1), before


@triton.jit
def _passes_large(row, wide, draw, mass, score, token, SHAPE: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr):
    """Whether a token passes the filters; the likeliest always does.

    Shares of probability are first taken from fast exponentials. Against the definition's whole numbers of 2**-30 each
    is off by one of them at most, and by a relative 1e-4, which is plenty for exponents down to where 2**-30 is and for
    sums of some hundred numbers a lane. Only when that leaves the answer open are the whole numbers summed.
    """
    passed = draw.keep > 0
    if (draw.keep < SHAPE.vocabulary) | (draw.top_p < 1):
        exponent = draw.inverse_temperature * _INVERSE_LN2
        TILE: tl.constexpr = LANES * 8
        FULL: tl.constexpr = SHAPE.vocabulary // TILE * TILE
        above = tl.zeros([LANES], tl.int32)
        before = tl.zeros([LANES], tl.float32)
        for start in range(0, FULL, TILE):
            above, before = _add_above(wide, draw, start, score, token, above, before, exponent, SHAPE, LANES, True)
        if SHAPE.vocabulary > FULL:
            above, before = _add_above(wide, draw, FULL, score, token, above, before, exponent, SHAPE, LANES, False)
        passed = tl.sum(above, 0) < draw.keep
        if passed & (draw.top_p < 1):
            distance = draw.top_p * mass - tl.sum(before, 0)
            unsure = 2e-4 * mass + SHAPE.vocabulary * 2.0**-29
            if tl.abs(distance) > unsure:
                passed = distance > 0
            else:  # also where the mass is NaN, not known
                passed = _passes_exactly(row, draw, score, token, SHAPE, BLOCK)
    if draw.min_p > 0:
        passed = passed & (_exp(_scaled(score, draw)) >= draw.min_p)
    return passed


@triton.jit
def _passes_exactly(row, draw, score, token, SHAPE: tl.constexpr, BLOCK: tl.constexpr):
    """Whether a token passes top_p by the definition's own sums."""
    total = tl.zeros([BLOCK], tl.int64)
    before = tl.zeros([BLOCK], tl.int64)
    for start in range(0, SHAPE.vocabulary, BLOCK):
        scores, ids = _chunk(row, start, SHAPE, BLOCK)
        mass = _mass(scores, draw)
        total += mass
        before += tl.where(_above(scores, ids, score, token), mass, 0)
    limit = draw.top_p.to(tl.float64) * tl.sum(total, 0).to(tl.float64)
    return tl.sum(before, 0).to(tl.float64) < limit

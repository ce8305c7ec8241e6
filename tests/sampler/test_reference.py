"""The sampler's definition against the published decoder's vectors, exact distributions and its own promises."""

import math

import pytest
import torch

from omnitts.sampler import STATUS_NOT_FINITE, STATUS_NOTHING_LEFT, SamplingParams, sample, sample_ragged
from omnitts.sampler.reference import kept

MASK = 1024


def run(cond, uncond=None, *, step=0, cells=None, confidence="max", top_n=0, backend="torch", **request):
    """One request over all rows."""
    params = SamplingParams.of([{"seed": 1, **request}])
    return sample(
        cond,
        uncond,
        params,
        offsets=[0, len(cond)],
        step=torch.tensor([step]),
        cells=cells,
        confidence=confidence,
        top_n=top_n,
        backend=backend,
    )


@pytest.mark.parametrize("case", range(5))
def test_published_vectors(cases, vectors, case):
    """Tokens, logprobs and the kept set of the published decoder; its layout is [C, T, V], ours is [T, C, V]."""
    scale = cases["sampler"][case]["guidance_scale"]
    cond = vectors[f"sampler/{case}/cond"].transpose(0, 1)  # a strided view
    uncond = vectors[f"sampler/{case}/uncond"].transpose(0, 1)
    samples = run(cond, uncond, guidance_scale=scale, forbidden=[MASK], top_n=103)
    assert torch.equal(samples.tokens.T, vectors[f"sampler/{case}/tokens"].long())
    torch.testing.assert_close(samples.logprobs.T, vectors[f"sampler/{case}/logprobs"], atol=1e-5, rtol=0)
    assert torch.equal(samples.confidence, samples.logprobs)
    mask = torch.zeros(cond.shape, dtype=torch.uint8).scatter_(-1, samples.top_tokens, 1)
    assert torch.equal(mask.transpose(0, 1), vectors[f"sampler/{case}/kept"])
    unmasked = run(cond, uncond, guidance_scale=scale, top_n=103).top_tokens
    assert not torch.equal(unmasked, samples.top_tokens)  # the vectors notice when the mask is not left out


def exact_distribution(logits, *, forbidden=(), temperature=1.0, top_ratio=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Probabilities by the plain meaning of the parameters, float64 [V]."""
    logits = logits.double().clone()
    logits[list(forbidden)] = -math.inf
    p = torch.softmax(logits / temperature, 0)
    order = p.argsort(descending=True, stable=True)
    keep = min(math.ceil(top_ratio * len(p)), top_k or len(p))
    before = p[order].cumsum(0) - p[order]
    passed = (torch.arange(len(p)) < keep) & (before < top_p) & (p[order] >= min_p * p.max())
    return p.masked_fill(~torch.zeros(len(p), dtype=torch.bool).scatter(0, order[passed], True), 0).div(
        p[order[passed]].sum()
    )


def chi_square(observed, expected) -> float:
    possible = expected > 0
    if observed[~possible].any():
        return math.inf
    return float(((observed - expected) ** 2 / expected)[possible].sum())


FILTERS = [
    {"temperature": 1.0},
    {"temperature": 0.5, "top_ratio": 0.5},
    {"temperature": 1.0, "top_ratio": 0.3},
    {"temperature": 2.5, "top_k": 4},
    {"temperature": 1.3, "top_p": 0.7},
    {"temperature": 1.6, "min_p": 0.2},
    {"temperature": 3.0, "top_k": 9, "top_p": 0.8, "min_p": 0.1},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_draws_follow_the_filtered_distribution(filters):
    """Chi-square of 200,000 draws against the exact probabilities; a wrong temperature or count must not pass."""
    torch.manual_seed(0)
    vocabulary, rows, codebooks, forbidden = 11, 25_000, 8, (2, 7)
    logits = torch.linspace(0, 3, vocabulary)[torch.randperm(vocabulary)]
    tokens = run(logits.expand(rows, codebooks, vocabulary), forbidden=forbidden, **filters).tokens
    observed = torch.bincount(tokens.flatten(), minlength=vocabulary).double()
    exact = exact_distribution(logits, forbidden=forbidden, **filters)
    assert chi_square(observed, exact * tokens.numel()) < 35  # p > 1e-4 for up to 10 degrees of freedom
    hotter = exact_distribution(logits, forbidden=forbidden, **filters | {"temperature": filters["temperature"] * 1.3})
    assert chi_square(observed, hotter * tokens.numel()) > 60
    if "top_k" in filters and len(filters) == 2:
        wider = exact_distribution(logits, forbidden=forbidden, **filters | {"top_k": filters["top_k"] + 1})
        assert chi_square(observed, wider * tokens.numel()) > 1000


def test_exactly_so_many_tokens_are_kept_ties_by_the_lowest_id():
    for ratio, vocabulary, count in ((0.1, 1025, 103), (1.0, 7, 7), (0.001, 10, 1), (0.3, 10, 3)):
        params = SamplingParams.of([{"seed": 0, "temperature": 1.0, "top_ratio": ratio}])
        ids, passed = kept(torch.zeros(1, vocabulary), params, torch.zeros(1, dtype=torch.int64))
        assert ids[passed].tolist() == list(range(count))


def test_draws_are_independent_across_steps_and_cells():
    cond = torch.zeros(20_000, 2, 16)
    first, later = (run(cond, temperature=1.0, step=step).tokens.double() for step in (0, 1))
    for a, b in ((first, later), (first, first.roll(1, 0)), (first[:, 0], first[:, 1])):
        assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 0.03


def test_the_mask_is_normalised_over_but_never_chosen():
    cond = torch.zeros(1, 1, 5)
    cond[..., 4] = 10.0
    samples = run(cond, forbidden=[4])
    assert samples.tokens.item() == 0  # ties go to the lowest id
    assert samples.logprobs.item() == pytest.approx(-math.log(4 + math.exp(10)), abs=1e-5)


MIXED = [
    {"seed": 1, "guidance_scale": 2.0, "forbidden": [MASK]},
    {"seed": 2, "guidance_scale": 1.5, "temperature": 1.0, "top_ratio": 0.2},
    {"seed": 3, "temperature": 0.7, "top_p": 0.6, "forbidden": [1, 5]},
    {"seed": 4},
]
LENGTHS = [3, 5, 2, 4]


@pytest.fixture(scope="module")
def mixed():
    torch.manual_seed(0)
    return torch.randn(sum(LENGTHS), 8, 1025) * 3, torch.randn(8, 8, 1025) * 3  # two requests are guided


def test_a_batch_mixes_requests_and_changes_none(mixed):
    """Greedy and sampled, guided and unguided, of different lengths: each comes out as it does alone."""
    cond, uncond = mixed
    params, steps = SamplingParams.of(MIXED), torch.tensor([0, 5, 9, 2])
    together = sample(cond, uncond, params, offsets=[0, 3, 8, 10, 14], step=steps)
    start = 0
    for i, length in enumerate(LENGTHS):
        rows = slice(start, start + length)
        alone = run(cond[rows], uncond[rows] if i < 2 else None, step=int(steps[i]), **MIXED[i])
        assert torch.equal(together.tokens[rows], alone.tokens)
        assert torch.equal(together.logprobs[rows], alone.logprobs)
        assert torch.equal(together.confidence[rows], alone.confidence)
        start += length


def test_picked_cells_are_the_same_cells(mixed):
    cond, uncond = mixed
    params, steps = SamplingParams.of(MIXED), torch.tensor([0, 5, 9, 2])
    whole = sample(cond, uncond, params, offsets=[0, 3, 8, 10, 14], step=steps, top_n=2)
    cells = torch.tensor([0, 7, 25, 63, 64, 70, 111])
    picked = sample(cond, uncond, params, offsets=[0, 3, 8, 10, 14], step=steps, top_n=2, cells=cells)
    for name in ("tokens", "logprobs", "confidence", "top_tokens", "top_logprobs"):
        assert torch.equal(getattr(picked, name), getattr(whole, name).flatten(0, 1)[cells])


def test_ragged_lists_are_the_packed_rows(mixed):
    cond, uncond = mixed
    params, steps = SamplingParams.of(MIXED), torch.tensor([0, 5, 9, 2])
    packed = sample(cond, uncond, params, offsets=[0, 3, 8, 10, 14], step=steps)
    ragged = sample_ragged(
        [part.transpose(0, 1) for part in cond.split(LENGTHS)],
        [uncond[:3].transpose(0, 1), uncond[3:].transpose(0, 1), None, None],
        params,
        step=steps,
    )
    for part, one in zip(packed.tokens.split(LENGTHS), ragged, strict=True):
        assert torch.equal(part.T, one.tokens)


def test_scale_zero_reads_no_unconditional_logits():
    cond = torch.randn(4, 2, 33)
    assert torch.equal(run(cond, torch.full_like(cond, math.nan)).tokens, run(cond).tokens)


@pytest.mark.parametrize("size", [1.0, 1e4])
@pytest.mark.parametrize("scale", [0.0, 0.5, 7.0])
def test_logprobs_are_those_of_float64(size, scale):
    torch.manual_seed(1)
    cond, uncond = torch.randn(30, 2, 1000) * size, torch.randn(30, 2, 1000) * size
    samples = run(cond, uncond, guidance_scale=scale, temperature=3.0, forbidden=[999])
    lc, lu = torch.log_softmax(cond.double(), -1), torch.log_softmax(uncond.double(), -1)
    exact = torch.log_softmax(lc + scale * (lc - lu), -1)
    exact = exact.gather(-1, samples.tokens[..., None]).squeeze(-1)
    torch.testing.assert_close(samples.logprobs.double(), exact, atol=1e-5, rtol=2e-6)


def test_confidence_rules():
    cond = torch.randn(5, 2, 9)
    logprobs = torch.log_softmax(cond, -1)
    top = logprobs.topk(2).values
    options = {"temperature": 1.0, "seed": 3}
    assert torch.equal(run(cond, confidence="max", **options).confidence, top[..., 0])
    drawn = run(cond, confidence="logprob", **options)
    assert torch.equal(drawn.confidence, drawn.logprobs)
    margin = run(cond, confidence="margin", **options).confidence
    torch.testing.assert_close(margin, top[..., 0] - top[..., 1])
    entropy = run(cond, confidence="neg_entropy", **options).confidence
    torch.testing.assert_close(entropy, (logprobs.exp() * logprobs).sum(-1))


def hard_rows():
    """NaN, +inf, nothing possible, all but one forbidden, -inf entries: [5, 1, 6], a request each."""
    rows = torch.randn(5, 1, 6, generator=torch.Generator().manual_seed(0))
    rows[0, 0, 2] = math.nan
    rows[1, 0, 1] = math.inf
    rows[2] = -math.inf
    rows[4, 0, 1:4] = -math.inf
    return rows


def hard_case(backend, temperature):
    requests = [{"seed": i, "temperature": temperature} for i in range(5)]
    requests[3]["forbidden"] = [0, 1, 2, 4, 5]
    return sample(
        hard_rows(),
        None,
        SamplingParams.of(requests),
        offsets=list(range(6)),
        step=torch.zeros(5, dtype=torch.int64),
        top_n=6,
        backend=backend,
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_hard_rows_flag_their_request_and_disturb_no_other(temperature):
    samples = hard_case("torch", temperature)
    assert samples.status.tolist() == [STATUS_NOT_FINITE, STATUS_NOT_FINITE, STATUS_NOTHING_LEFT, 0, 0]
    assert samples.tokens[:3].eq(0).all() and samples.logprobs[:3].eq(-math.inf).all()
    assert samples.tokens[3].item() == 3
    assert samples.tokens[4].item() in (0, 4, 5) and samples.logprobs[4].isfinite().all()
    assert samples.top_tokens[4, 0].sort().values.tolist() == [-1, -1, -1, 0, 4, 5]


def test_temperatures_next_to_zero_are_greedy():
    cond = torch.randn(50, 2, 40)
    assert torch.equal(run(cond, temperature=1e-44).tokens, run(cond).tokens)
    assert torch.equal(run(cond, temperature=1e-6).tokens, run(cond).tokens)


def test_parameters_change_in_place():
    cond = torch.randn(40, 2, 40)
    params = SamplingParams.of([{"seed": 1, "forbidden": [3, 4]}])
    params.set(0, seed=9, temperature=0.8, top_k=7, forbidden=[5])
    changed = sample(cond, None, params, offsets=[0, 40], step=torch.tensor([2]))
    fresh = run(cond, seed=9, temperature=0.8, top_k=7, forbidden=[5], step=2)
    assert torch.equal(changed.tokens, fresh.tokens)
    with pytest.raises(ValueError, match="room for 2"):
        params.set(0, seed=9, forbidden=[1, 2, 3])


GOOD = {"params": [{"seed": 1}, {"seed": 2}], "offsets": [0, 2, 4], "step": torch.tensor([0, 0])}
BAD = [
    ({"cond": torch.randn(4, 8)}, "cond: wanted logits"),
    ({"cond": torch.randn(4, 2, 9).double()}, "cond: wanted float32 or bfloat16 or float16, got float64"),
    ({"cond": torch.randn(4, 2, 1)}, "vocabulary of 2"),
    ({"uncond": torch.randn(5, 2, 9)}, "uncond: wanted logits"),
    ({"uncond": torch.randn(4, 2, 8)}, "uncond: wanted shape"),
    ({"uncond": torch.randn(4, 2, 9).half()}, "uncond: wanted float32, got float16"),
    ({"offsets": [0, 2]}, "offsets: wanted shape"),
    ({"offsets": [0, 3, 2]}, "offsets: wanted ascending"),
    ({"offsets": [0, 2, 5]}, "offsets: wanted ascending numbers from 0 to 4"),
    ({"offsets": torch.tensor([0.0, 2.0, 4.0])}, "offsets: wanted int32 or int64"),
    ({"step": torch.tensor([0])}, "step: wanted shape"),
    ({"step": torch.tensor([0, 0], dtype=torch.int32)}, "step: wanted int64"),
    ({"cells": torch.tensor([[0]])}, "cells: wanted shape"),
    ({"confidence": "maximum"}, "confidence: wanted one of"),
    ({"top_n": 10}, "top_n: wanted a whole number from 0 to 9"),
    ({"backend": "cuda"}, "backend: wanted torch or triton"),
    ({"params": [{"seed": 1}, {}]}, "seed of request 1: wanted a whole number"),
    ({"params": [{"seed": 1}, {"seed": -1}]}, "seed of request 1"),
    ({"params": [{"seed": 1, "temperature": -1.0}] * 2}, "temperature of request 0"),
    ({"params": [{"seed": 1, "temperature": math.nan}] * 2}, "temperature of request 0"),
    ({"params": [{"seed": 1, "top_p": 0}] * 2}, "top_p of request 0"),
    ({"params": [{"seed": 1, "top_k": 1.5}] * 2}, "top_k of request 0"),
    ({"params": [{"seed": 1, "top_ratio": 1.5}] * 2}, "top_ratio of request 0"),
    ({"params": [{"seed": 1, "forbidden": [-1]}] * 2}, "forbidden of request 0"),
    ({"params": [{"seed": 1, "tempreature": 1}] * 2}, "no parameter is called 'tempreature'"),
]


@pytest.mark.parametrize(("change", "told"), BAD, ids=[told for _, told in BAD])
def test_wrong_arguments_are_named(change, told):
    arguments = {"cond": torch.randn(4, 2, 9), "uncond": None} | GOOD | change
    with pytest.raises(ValueError) as error:
        params = SamplingParams.of(arguments.pop("params"))
        sample(arguments.pop("cond"), arguments.pop("uncond"), params, **arguments)
    assert told in str(error.value)


def test_rows_beyond_the_unconditional_ones_are_unguided():
    generator = torch.Generator().manual_seed(5)
    cond, uncond = (torch.randn(rows, 2, 9, generator=generator) for rows in (4, 1))
    cond[2, 0, 3] = -math.inf
    options = {"step": torch.zeros(1, dtype=torch.int64)}
    guided, plain = (SamplingParams.of([{"seed": 1, "guidance_scale": scale}]) for scale in (2.0, 0.0))
    mixed = sample(cond, uncond, guided, offsets=[0, 4], **options)
    alone = sample(cond, None, plain, offsets=[0, 4], **options)
    assert torch.equal(mixed.logprobs[1:], alone.logprobs[1:]) and not torch.equal(mixed.logprobs, alone.logprobs)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda p: p.set(2, seed=1), "request: wanted a whole number from 0 to 1, got 2"),
        (lambda p: p.set(-1, seed=1), "request: wanted a whole number from 0 to 1, got -1"),
        (lambda p: p.set("a", seed=1), "request: wanted a whole number"),
        (lambda p: SamplingParams.of(None), "requests: wanted a list of mappings"),
        (lambda p: SamplingParams.of({"seed": 1}), "requests: wanted a list of mappings"),
        (lambda p: SamplingParams.of([1]), "request 0: wanted a mapping"),
        (lambda p: SamplingParams.of([{"seed": 1, "forbidden": 5}]), "forbidden of request 0: wanted token ids"),
        (lambda p: sample_zeros(p, cells=torch.tensor([6])), "cells: wanted numbers from 0 to 5, got 6"),
        (lambda p: sample_zeros(p, cells=torch.tensor([-1])), "cells: wanted numbers from 0 to 5, got -1"),
        (lambda p: sample_zeros(p, cells=[1]), "cells: wanted shape [K], got list"),
        (lambda p: sample_zeros(p, top_n=1.5), "top_n: wanted a whole number from 0 to 9, got 1.5"),
        (lambda p: sample_zeros(p, top_n=None), "top_n: wanted a whole number"),
        (lambda p: sample_zeros(p, step=torch.tensor([-1, 0])), "step: wanted numbers from 0 to 4294967295, got -1"),
        (lambda p: sample_zeros(p, offsets=None), "offsets: wanted 3 whole numbers"),
        (lambda p: sample_zeros({"seed": 1}), "params: wanted SamplingParams, got dict"),
        (lambda p: sample_ragged([torch.zeros(2, 3, 9), torch.zeros(2, 3, 8)], None, p), "cond[1]: wanted shape"),
        (lambda p: sample_ragged(None, None, p), "cond: wanted a list of logits"),
        (lambda p: sample_ragged([torch.zeros(2, 3, 9)], [torch.zeros(2, 4, 9)], p), "uncond[0]: wanted shape"),
    ],
)
def test_arguments_of_other_kinds_are_named(call, told):
    with pytest.raises(ValueError) as error:
        call(SamplingParams.of([{"seed": 1}, {"seed": 2}]))
    assert told in str(error.value)


def sample_zeros(params, **changed):
    arguments = {"offsets": [0, 3, 6], "step": torch.zeros(2, dtype=torch.int64)} | changed
    return sample(torch.zeros(6, 1, 9), None, params, **arguments)

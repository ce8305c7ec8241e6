"""The sampler's definition against the published decoder's vectors, an exact distribution and its own promises."""

import math

import pytest
import torch

from omnitts.sampler import SamplingParams, sample
from omnitts.sampler.reference import guided_logprobs, keep_count

MASK = 1024


def run(cond, uncond, *, guidance=0.0, temperature=0.0, top_ratio=0.1, seed=1, step=0, mask_id=MASK):
    """One request over all rows."""
    rows = len(cond)
    params = SamplingParams.stack([guidance], [temperature], [top_ratio], [seed])
    zeros = torch.zeros(rows, dtype=torch.int64)
    return sample(cond, uncond, params, zeros, torch.arange(rows), torch.tensor([step]), mask_id)


@pytest.mark.parametrize("case", range(5))
def test_published_vectors(cases, vectors, case):
    """Tokens, logprobs and the kept set of the published decoder; its layout is [C, T, V], ours is [T, C, V]."""
    scale = cases["sampler"][case]["guidance_scale"]
    cond = vectors[f"sampler/{case}/cond"].transpose(0, 1)
    uncond = vectors[f"sampler/{case}/uncond"].transpose(0, 1)
    samples = run(cond, uncond, guidance=scale)
    assert torch.equal(samples.tokens.T, vectors[f"sampler/{case}/tokens"].long())
    torch.testing.assert_close(samples.logprobs.T, vectors[f"sampler/{case}/logprobs"], atol=1e-5, rtol=0)
    torch.testing.assert_close(samples.confidence, samples.logprobs)

    logprobs = guided_logprobs(cond, uncond, torch.full((len(cond),), scale))
    logprobs[..., MASK] = -math.inf
    kept = int(keep_count(torch.tensor(0.1), logprobs.shape[-1]))
    ids = torch.sort(logprobs, descending=True, stable=True).indices[..., :kept]
    mask = torch.zeros_like(logprobs, dtype=torch.uint8).scatter_(-1, ids, 1)
    assert torch.equal(mask.transpose(0, 1), vectors[f"sampler/{case}/kept"])


def test_mask_is_normalised_over_but_never_chosen():
    cond = torch.zeros(1, 1, 5)
    cond[..., 4] = 10.0
    samples = run(cond, None, mask_id=4)
    assert samples.tokens.item() == 0  # ties go to the lowest id
    assert samples.logprobs.item() == pytest.approx(-math.log(4 + math.exp(10)), abs=1e-5)


@pytest.mark.parametrize(("ratio", "vocabulary", "kept"), [(0.1, 1025, 103), (1.0, 7, 7), (0.001, 10, 1), (0.3, 10, 3)])
def test_keep_count(ratio, vocabulary, kept):
    assert int(keep_count(torch.tensor(ratio, dtype=torch.float64), vocabulary)) == kept


@pytest.mark.parametrize(("temperature", "top_ratio"), [(0.5, 0.5), (1.0, 0.3), (2.5, 1.0)])
def test_draws_follow_the_filtered_distribution(temperature, top_ratio):
    """Chi-square of 200,000 draws against the exact probabilities; a wrong temperature or count must not pass."""
    vocabulary, rows, codebooks = 11, 25_000, 8
    logits = torch.linspace(0, 3, vocabulary).flip(0)[torch.randperm(vocabulary)]
    cond = logits.expand(rows, codebooks, vocabulary)
    tokens = run(cond, None, temperature=temperature, top_ratio=top_ratio, mask_id=2).tokens
    observed = torch.bincount(tokens.flatten(), minlength=vocabulary).double()

    def chi_square(temperature: float, kept: int) -> float:
        logprobs = torch.log_softmax(logits.double(), 0)
        logprobs[2] = -math.inf
        ids = logprobs.argsort(descending=True)[:kept]
        expected = torch.zeros(vocabulary, dtype=torch.float64)
        expected[ids] = torch.softmax(logprobs[ids] / temperature, 0) * tokens.numel()
        possible = expected > 0
        if observed[~possible].any():
            return math.inf
        return float(((observed - expected) ** 2 / expected)[possible].sum())

    kept = math.ceil(top_ratio * vocabulary)
    assert chi_square(temperature, kept) < 36  # p > 1e-4 for up to 10 degrees of freedom
    assert chi_square(temperature * 1.1, kept) > 100
    if kept < vocabulary - 1:
        assert chi_square(temperature, kept + 1) > 100


def test_a_batch_mixes_requests_and_changes_none():
    """Greedy and sampled, guided and unguided, of different lengths: each comes out as it does alone."""
    torch.manual_seed(0)
    lengths = [3, 5, 2, 4]
    guidance, temperature, ratio, seeds, steps = (
        [2.0, 1.5, 0.0, 0.0],
        [0, 1.0, 0.7, 0],
        [0.1, 0.2, 0.5, 1],
        [1, 2, 3, 4],
        [0, 5, 9, 2],
    )
    cond = torch.randn(sum(lengths), 8, 1025)
    uncond = torch.randn(8, 8, 1025)  # rows of the two guided requests only
    params = SamplingParams.stack(guidance, temperature, ratio, seeds)
    request_of_row = torch.arange(4).repeat_interleave(torch.tensor(lengths))
    frame_of_row = torch.cat([torch.arange(n) for n in lengths])
    together = sample(cond, uncond, params, request_of_row, frame_of_row, torch.tensor(steps), MASK)
    start = 0
    for i, length in enumerate(lengths):
        rows = slice(start, start + length)
        alone = run(
            cond[rows],
            uncond[rows] if i < 2 else None,
            guidance=guidance[i],
            temperature=temperature[i],
            top_ratio=ratio[i],
            seed=seeds[i],
            step=steps[i],
        )
        assert torch.equal(together.tokens[rows], alone.tokens)
        assert torch.equal(together.logprobs[rows], alone.logprobs)
        assert torch.equal(together.confidence[rows], alone.confidence)
        start += length


def test_scale_zero_reads_no_unconditional_logits():
    cond = torch.randn(4, 2, 33)
    poison = torch.full_like(cond, math.nan)
    assert torch.equal(run(cond, poison, mask_id=32).tokens, run(cond, None, mask_id=32).tokens)


def test_logprobs_are_of_the_untempered_distribution():
    cond = torch.randn(6, 2, 33)
    samples = run(cond, None, temperature=3.0, top_ratio=1.0, mask_id=32)
    exact = torch.log_softmax(cond.double(), -1).gather(-1, samples.tokens[..., None]).squeeze(-1)
    torch.testing.assert_close(samples.logprobs.double(), exact, atol=1e-5, rtol=2e-6)


def test_shapes_must_agree():
    with pytest.raises(ValueError, match="uncond"):
        run(torch.randn(2, 8, 1025), torch.randn(2, 8, 1024), guidance=1.0)

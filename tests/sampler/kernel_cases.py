"""Cases for test_kernels.py, run as a program: python -m tests.sampler.kernel_cases cpu|cuda NAME..."""

import math
import sys
import warnings

import torch

from omnitts.sampler import Samples, SamplingParams, kernels, sample
from omnitts.sampler.token_kernel import token_logprobs_with_triton
from tests.sampler.test_reference import FILTERS, chi_square, exact_distribution, hard_case

REQUESTS = [
    {"seed": 1, "guidance_scale": 2.0, "forbidden": [1024]},
    {"seed": 2, "temperature": 1.0, "top_ratio": 0.1},
    {"seed": 3, "temperature": 0.7, "top_p": 0.8, "guidance_scale": 1.5},
    {"seed": 4, "temperature": 1.5, "top_k": 5, "min_p": 0.05, "forbidden": [3, 7]},
    {"seed": 2**62 + 5, "temperature": 2.0},
    {"seed": 9, "temperature": 0.9, "top_ratio": 0.1, "guidance_scale": 2.0, "forbidden": [1024]},
]


def requests_for(vocabulary: int) -> list[dict]:
    return [r | {"forbidden": [i for i in r.get("forbidden", ()) if i < vocabulary - 1]} for r in REQUESTS]


def logits(rows: int, codebooks: int, vocabulary: int, device: str, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(rows, codebooks, vocabulary, device=device, generator=generator) * 3


def assert_same(a: Samples, b: Samples) -> int:
    assert torch.equal(a.tokens, b.tokens), f"{(a.tokens != b.tokens).sum()} tokens differ"
    assert torch.equal(a.status, b.status)
    for name in ("logprobs", "confidence", "top_logprobs"):
        x, y = getattr(a, name), getattr(b, name)
        if x is not None:
            torch.testing.assert_close(x, y, atol=1e-5, rtol=2e-6)
    if a.top_tokens is not None:
        assert torch.equal(a.top_tokens, b.top_tokens)
    return a.tokens.numel()


def compare(vocabulary, codebooks, rows, device, *, dtype=torch.float32, guided_rows=None, seed=0, **options) -> int:
    cond = logits(rows, codebooks, vocabulary, device, seed).to(dtype)
    uncond = logits(rows, codebooks, vocabulary, device, seed + 100).to(dtype)[:guided_rows]
    requests = requests_for(vocabulary)
    count = len(requests)
    arguments = (cond, uncond, SamplingParams.of(requests, device=device))
    options |= {
        "offsets": [rows * i // count for i in range(count + 1)],
        "step": torch.arange(count, device=device) + seed,
    }
    return assert_same(sample(*arguments, backend="torch", **options), sample(*arguments, backend="triton", **options))


def tokens(device: str) -> int:
    """The logprob of one token of each position, also of impossible tokens and of views."""
    agreed = 0
    for vocabulary in (3, 1025, 2100, 5000):
        wide = logits(7, 4, vocabulary, device)
        wide[0, 0, 1:] = -math.inf
        for given in (wide, wide[:, ::2], wide.bfloat16(), wide[..., ::2]):
            chosen = torch.randint(0, given.shape[-1], given.shape[:2], device=device)
            expected = torch.log_softmax(given.float(), dim=-1).gather(-1, chosen[..., None])[..., 0]
            torch.testing.assert_close(token_logprobs_with_triton(given, chosen), expected)
            agreed += chosen.numel()
    return agreed


def small(device: str) -> int:
    few, many = (1025, 1024, 2, 3, 5, 6, 9, 33, 300, 700, 1500, 2100), (1000, 1023, 2048, 4095, 4096)
    sizes = few if device == "cpu" else few + many
    return sum(compare(v, 2, 12 if device == "cpu" else 600, device) for v in sizes)


def large(device: str) -> int:
    if device == "cpu":
        kernels.SMALL_VOCABULARY, kernels.LARGE_BLOCK, kernels.LARGE_LANES = 1, 1024, 128
    sizes = (63, 1024, 1030, 2500) if device == "cpu" else (4097, 5000, 32000, 151_936, 262_144)
    return sum(compare(v, 1, 12 if device == "cpu" else 60, device) for v in sizes)


def hard(device: str) -> int:
    """NaN, infinities, nothing left; large magnitudes; ties; strided views; an index of cells; few guided rows."""
    if device == "cpu":
        for temperature in (0.0, 1.0):
            assert_same(hard_case("torch", temperature), hard_case("triton", temperature))
    requests = sorted(requests_for(40), key=lambda request: "guidance_scale" not in request)  # guided ones first
    params = SamplingParams.of(requests, device=device)
    options = {"offsets": [0, 2, 4, 6, 8, 10, 12], "step": torch.arange(6, device=device)}
    base = logits(12, 2, 80, device)
    views = {
        "huge": base[..., :40] * 1e4,
        "ties": base[..., :40].round(),
        "equal": torch.zeros_like(base[..., :40]),
        "strided": base[..., ::2],
        "transposed": logits(2, 12, 40, device).transpose(0, 1),
        "holes": base[..., :40].masked_fill(base[..., 40:] > 0, -math.inf),
    }
    cells = torch.tensor([0, 3, 8, 9, 15, 23], device=device)
    total = 0
    for cond in views.values():
        for picked in (None, cells):
            for uncond in (None, cond.flip(0).masked_fill(cond == -math.inf, -1.0)[:6]):
                both = (
                    sample(cond, uncond, params, cells=picked, backend=backend, **options)
                    for backend in ("torch", "triton")
                )
                total += assert_same(*both)
    return total


def options(device: str) -> int:
    total = 0
    for _ in range(2):
        for confidence in ("logprob", "margin", "neg_entropy"):
            total += compare(65 if device == "cpu" else 5000, 2, 12, device, confidence=confidence, top_n=3)
        if device == "cuda":
            break
        kernels.SMALL_VOCABULARY, kernels.LARGE_BLOCK, kernels.LARGE_LANES = 1, 1024, 128
    for dtype in (torch.bfloat16, torch.float16):
        total += compare(65, 2, 12, device, dtype=dtype)
    return total


def close(device: str) -> int:
    """A large vocabulary's fast sums must not decide what its whole numbers decide: limits right at a token."""
    kernels.SMALL_VOCABULARY = 1
    kernels.LARGE_BLOCK, kernels.LARGE_LANES = 1024, 128
    rows, vocabulary, few = (12, 28, (1 / 4, 1 / 2)) if device == "cpu" else (240, 5000, ())
    flat = torch.zeros(rows, 1, vocabulary, device=device)
    steps = flat + torch.where(torch.arange(vocabulary, device=device) % 3 == 0, math.log(2.0), 0.0)
    drowned = logits(rows, 1, vocabulary, device) * 1e-3  # rounded to a few values once a forbidden 1e4 is taken off
    drowned[..., 7] = 1e4
    total = 0
    for cond, forbidden in ((flat, ()), (steps, ()), (drowned, (7,))):
        for share in few or (1 / 4, 1 / 3, 1 / 2, 3 / 4):
            requests = [
                {"seed": 1, "temperature": 1.0, "top_p": share, "forbidden": forbidden},
                {"seed": 2, "temperature": 0.5, "top_p": share, "top_k": vocabulary // 2, "forbidden": forbidden},
                {"seed": 3, "temperature": 3.0, "top_k": max(1, int(vocabulary * share)), "forbidden": forbidden},
                {"seed": 4, "forbidden": forbidden},
            ]
            arguments = (cond, cond[: rows // 4].flip(2), SamplingParams.of(requests, device=device))
            options = {
                "offsets": [rows * i // 4 for i in range(5)],
                "step": torch.zeros(4, dtype=torch.int64, device=device),
            }
            both = (sample(*arguments, backend=backend, **options) for backend in ("torch", "triton"))
            total += assert_same(*both)
    return total


def million(device: str) -> int:
    return sum(compare(1025, 8, 16_000, device, seed=seed) for seed in range(8))


def graph(device: str) -> int:
    """Captured once; 20 replays with every parameter and all logits changed in place are 20 fresh runs."""
    rows, total = 600, 0
    offsets = torch.tensor([100 * i for i in range(7)], device=device)
    cond, uncond = logits(rows, 8, 1025, device), logits(rows, 8, 1025, device, 1)
    params, step = SamplingParams.of(REQUESTS, device=device), torch.zeros(6, dtype=torch.int64, device=device)
    sample(cond, uncond, params, offsets=offsets, step=step)  # compiles
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        held = sample(cond, uncond, params, offsets=offsets, step=step)
    for replay in range(20):
        cond.copy_(logits(rows, 8, 1025, device, 10 + replay))
        uncond.copy_(logits(rows, 8, 1025, device, 40 + replay))
        for request in range(6):
            params.set(request, **REQUESTS[(request + replay) % 6] | {"seed": replay})
        step.fill_(replay)
        offsets.copy_(torch.tensor([0, 1 + replay, 150, 151, 300, 500, 600]))
        captured.replay()
        fresh = SamplingParams.of([REQUESTS[(i + replay) % 6] | {"seed": replay} for i in range(6)], device=device)
        total += assert_same(held, sample(cond, uncond, fresh, offsets=offsets, step=step, backend="torch"))
    return total


def draws(device: str) -> int:
    """Chi-square of a million draws for each filter against the exact distribution."""
    torch.manual_seed(0)
    logits = torch.linspace(0, 3, 11)[torch.randperm(11)]
    cond = logits.to(device).expand(125_000, 8, 11)
    total = 0
    for filters in FILTERS:
        params = SamplingParams.of([{"seed": 5, "forbidden": [2, 7], **filters}], device=device)
        step = torch.tensor([3], device=device)
        tokens = sample(cond, None, params, offsets=[0, len(cond)], step=step).tokens
        observed = torch.bincount(tokens.flatten().cpu(), minlength=11).double()
        exact = exact_distribution(logits, forbidden=(2, 7), **filters)
        hotter = exact_distribution(logits, forbidden=(2, 7), **filters | {"temperature": 1.1 * filters["temperature"]})
        figure = chi_square(observed, exact * tokens.numel())
        print(f"chi-square {figure:.1f} for {filters}; at 1.1 times the temperature it would be", end=" ")
        print(f"{chi_square(observed, hotter * tokens.numel()):.0f}")
        assert figure < 35 < chi_square(observed, hotter * tokens.numel())  # 35: p > 1e-4 at 10 degrees of freedom
        total += tokens.numel()
    return total


def memory(device: str) -> int:
    """Peak extra memory stays under 64 bytes a cell."""
    cond = logits(16_000, 8, 1025, device).bfloat16()
    params = SamplingParams.of(REQUESTS, device=device)
    options = {
        "offsets": [0, 1, 3000, 6000, 9000, 12_000, 16_000],
        "step": torch.zeros(6, dtype=torch.int64).to(device),
    }
    sample(cond, cond, params, **options)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    samples = sample(cond, cond, params, **options)
    peak = torch.cuda.max_memory_allocated() - before
    cells = samples.tokens.numel()
    print(f"{peak / cells:.1f} bytes a cell")
    assert peak < 64 * cells
    return cells


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # numpy's, on infinities in the interpreter
    device, *names = sys.argv[1:]
    for name in names:
        print(f"{name}: {globals()[name](device):,} cells agree", flush=True)

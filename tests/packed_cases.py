"""Cases in which the packed model, its kernels and its loop agree with the plain ones: in Triton's interpreter, where
they need a process of their own, and on a GPU.

    TRITON_INTERPRET=1 python -m tests.packed_cases cpu kernels attention reveal loop snake
"""

import sys
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from omnitts import engine, steps
from omnitts.bench.precision import bench_precision
from omnitts.manifest import read_utterances
from omnitts.model import kernels
from omnitts.model.attention import PlainAttention, TiledAttention
from omnitts.model.backbone import rotate
from omnitts.model.canvas import RankingParams, commit, rank_scores, top_cells
from omnitts.model.checkpoint import load_model, open_checkpoint
from omnitts.model.decoding import Row
from omnitts.model.observe import observe
from omnitts.model.reveal import reveal
from omnitts.model.snake import add_biased, silent_snake
from omnitts.model.tiled_attention import rows_of_a_tile, tiled_attention
from omnitts.recipe import Recipe
from omnitts.sampler import Samples, rows_to_requests
from omnitts.trace import Trace, Watch
from omnitts.tts import load_checkpoint

CHECKPOINT = Path(__file__).parent / "fixtures" / "checkpoint"


def check_kernels(device: str) -> None:
    torch.manual_seed(1)
    for width, q_heads, k_heads in ((48, 4, 2), (64, 6, 6)):
        codes = torch.randint(0, 10, (9, 3), dtype=torch.int32, device=device)
        text = torch.tensor([4, 0, -1, -1, -1], dtype=torch.int32, device=device)
        frame = torch.tensor([-1, -1, 8, 0, -1], dtype=torch.int32, device=device)
        words, sounds = torch.randn(7, width, device=device), torch.randn(30, width, device=device)
        x = kernels.embed(text, frame, codes, words, sounds, 10)
        shifts = torch.arange(3, device=device) * 10
        both = [words[4], words[0], *(sounds[codes[row] + shifts].sum(0) for row in (8, 0)), torch.zeros_like(words[0])]
        torch.testing.assert_close(x, torch.stack(both))

        weight = torch.randn(width, device=device)
        expected = torch.nn.functional.rms_norm(x, (width,), weight, 1e-6)
        torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-6), expected)

        gates = torch.randn(5, 2 * width, device=device)
        expected = torch.nn.functional.silu(gates[:, :width]) * gates[:, width:]
        torch.testing.assert_close(kernels.swiglu(gates), expected)

        for values, scale, wanted in (
            (*kernels.to_float8(x), x),
            (*kernels.swiglu_float8(gates), kernels.swiglu(gates)),
            (*kernels.rms_norm_float8(x, weight, 1e-6), kernels.rms_norm(x, weight, 1e-6)),
        ):
            assert values.dtype == torch.float8_e4m3fn and scale.shape == (5, 1)
            most = wanted.abs().amax(1, keepdim=True)
            torch.testing.assert_close(scale, most.clamp(min=1e-12) / 448)
            # Three bits after the leading one: a sixteenth of a number at most, or half of the smallest step. Triton's
            # interpreter drops a carry into the exponent, so there only most are right.
            right = (values.float() * scale - wanted).abs() <= wanted.abs() / 15.9 + most / 448 * 2**-9
            assert right.all() if device == "cuda" else right.float().mean() > 0.8

        moved, delta = x.clone(), torch.randn_like(x)
        expected = torch.nn.functional.rms_norm(x + delta, (width,), weight, 1e-6)
        torch.testing.assert_close(kernels.rms_norm(moved, weight, 1e-6, delta), expected)
        torch.testing.assert_close(moved, x + delta)

        qkv = torch.randn(5, q_heads + 2 * k_heads, 16, device=device)
        cos, sin = torch.randn(12, 8, device=device), torch.randn(12, 8, device=device)
        place = torch.tensor([0, 1, 11, 3, 0], dtype=torch.int32, device=device)
        q_weight, k_weight = torch.randn(16, device=device), torch.randn(16, device=device)
        rope = cos[place][:, None], sin[place][:, None]
        q, k, v = (part.clone() for part in qkv.split((q_heads, k_heads, k_heads), 1))
        kernels.norm_and_rotate(qkv, q_weight, k_weight, cos, sin, place, q_heads, 1e-6)
        q = rotate(torch.nn.functional.rms_norm(q, (16,), q_weight, 1e-6), rope)
        k = rotate(torch.nn.functional.rms_norm(k, (16,), k_weight, 1e-6), rope)
        torch.testing.assert_close(qkv, torch.cat([q, k, v], 1))


def check_attention(device: str) -> None:
    """Documents of one row, of less than a tile and of several, and none; heads that share keys by none to sixteen."""
    torch.manual_seed(4)
    dtype = torch.float32 if device == "cpu" else torch.float16
    for q_heads, k_heads, width in ((4, 2, 64), (6, 2, 16), (2, 2, 48), (16, 1, 32)):
        qkv = torch.randn(200, q_heads + 2 * k_heads, width, device=device, dtype=dtype)
        q, k, v = qkv.split((q_heads, k_heads, k_heads), 1)
        plain = PlainAttention()
        tiled = TiledAttention(tiled_attention, rows_of_a_tile(q_heads, k_heads), 200, 6, torch.device(device))
        for bounds in ([0, 1, 80, 80, 183, 200, 200], [0, 0, 0, 0, 0, 0, 200]):
            plain.plan(bounds)
            tiled.plan(bounds)
            made = tiled(q, k, v)
            torch.testing.assert_close(made, plain(q, k, v), rtol=1e-2, atol=1e-5 if device == "cpu" else 2e-3)
        # A document's bits do not depend on where it lies, nor on what lies beside it.
        qkv[:10] = float("nan")
        qkv[10:183] = qkv[11:184].clone()
        tiled.plan([0, 10, 182, 200, 200, 200, 200])
        moved = tiled(q, k, v)[10:182]
        tiled.plan([0, 172, 172, 172, 172, 172, 200])
        qkv[:172] = qkv[10:182].clone()
        assert torch.equal(tiled(q, k, v)[:172], moved)


def check_reveal(device: str) -> None:
    """Against the sorts of canvas.py: ties, noise, canvases of none, one and several blocks, counts of all kinds."""
    torch.manual_seed(2)
    frames, mask_id = [1, 40, 0, 600, 513, 7, 30], 50
    offsets = torch.tensor([0, *accumulate(frames)], device=device)
    rows = sum(frames)
    canvas = torch.randint(40, mask_id + 1, (rows, 8), dtype=torch.int32, device=device)
    canvas[torch.rand(rows, 8, device=device) < 0.6] = mask_id
    tokens = torch.randint(0, mask_id, (rows, 8), device=device)
    # Few values, so that there are many ties; and both zeros.
    confidence = -(torch.randint(0, 4, (rows, 8), device=device) / 2).to(torch.float32)
    ranking = RankingParams(
        torch.tensor([5.0, 5.0, 5.0, 0.0, 1.0, 5.0, 0.5], device=device),
        torch.tensor([5.0, 0.0, 5.0, 0.0, 3.0, 0.1, 0.0], device=device),
        torch.arange(7, device=device) + 2**40,
    )
    masked = [int((part == mask_id).sum()) for part in canvas.split(frames)]
    for share in (0.0, 0.3, 1.0):
        count = torch.tensor([int(share * n) for n in masked], device=device)
        step = torch.arange(7, device=device)
        request = rows_to_requests(offsets, rows)
        frame = torch.arange(rows, device=device) - offsets[request]
        scores = rank_scores(confidence, canvas == mask_id, ranking, request, frame, step)
        expected = commit(canvas, tokens.int(), top_cells(scores, request, offsets[:-1], count))
        made = canvas.clone()
        revealed = torch.full_like(canvas, -1)
        keys = reveal(made, tokens, confidence, ranking, offsets, step, count, mask_id, revealed)
        assert torch.equal(made, expected), (share, (made != expected).nonzero()[:5])
        assert torch.equal(revealed, torch.where(made != canvas, step[request, None].int(), -1))
        known = count[request] > 0
        few = slice(0, 24)  # the interpreter takes its time
        check_sight(keys[few].contiguous(), scores[few], known[few])


def check_sight(keys: torch.Tensor, scores: torch.Tensor, known: torch.Tensor) -> None:
    """What `observe` gathers of a step: with twins and without, with likeliest tokens and without."""
    rows, codebooks = keys.shape
    cond, uncond = torch.randn(2, rows, codebooks, 51, device=keys.device)
    tokens, top = torch.randint(0, 51, (rows, codebooks, 4), device=keys.device).split([1, 3], -1)
    logprobs, confidence, *_ = torch.randn(3, rows, codebooks, device=keys.device)
    for twins, with_top in ((uncond, True), (None, False)):
        samples = Samples(tokens[..., 0].contiguous(), logprobs, confidence, tokens)
        if with_top:
            samples = replace(samples, top_tokens=top.contiguous(), top_logprobs=-top.float())
        sight = observe(samples, keys, cond, twins)
        given, free = (torch.log_softmax(x, -1).gather(-1, tokens)[..., 0] for x in (cond, uncond))
        columns = [tokens[..., 0].float(), logprobs, confidence, scores, given, free if with_top else given]
        expected = torch.stack(columns, -1)
        if with_top:
            expected = torch.cat([expected, top.float(), -top.float()], -1)
        torch.testing.assert_close(sight.numbers[known], expected[known], rtol=1e-5, atol=1e-5)


def check_loop(device: str) -> None:
    """A batch of all kinds has the plain engine's tokens: float32, so the same to the bit but for rounding."""
    random = np.random.default_rng(3)
    requests = [
        engine.Request(random.integers(0, 100, words).tolist(), reference, frames, recipe, seed)
        for seed, (words, reference, frames, recipe) in enumerate(
            (
                (5, None, 6, Recipe(num_step=3)),
                (4, None, 9, Recipe(num_step=2, guidance_scale=0.0)),
                (3, random.integers(0, 1024, (8, 4), np.int16), 5, Recipe(num_step=6, class_temperature=0.7)),
                (6, None, 1, Recipe(num_step=1, layer_penalty_factor=0.0)),
                (2, None, 7, Recipe(num_step=5, guidance_start=0.2, guidance_end=0.6)),
                (7, random.integers(0, 1024, (8, 6), np.int16), 8, Recipe(num_step=7, prefix_refresh=3)),
                (4, None, 5, Recipe(num_step=6, prefix_refresh=3, guidance_end=0.5)),
            )
        )
    ]
    watches = {0: Watch(), 2: Watch(top_n=3), 3: Watch(), 4: Watch(every=2, top_n=2), 5: Watch(only=frozenset({1, 4}))}
    requests = [replace(request, watch=watches.get(i)) for i, request in enumerate(requests)]
    checkpoint = open_checkpoint(CHECKPOINT)
    expected = engine.generate(load_model(checkpoint, device, torch.float32), requests)
    packed = steps.Engine.of(load_model(checkpoint, device, torch.float32), cuda_graphs=False)
    packed.model.reach(8)  # fewer places than the documents have: it must see that
    work: list[float] = []
    made = engine.generate(packed, requests, work.append)
    for result, wanted in zip(made, expected, strict=True):
        assert np.array_equal(result.codes, wanted.codes) and result.status == wanted.status
        check_same_trace(result.trace, wanted.trace)
    assert [len(result.trace.seen) for result in made if result.trace] == [3, 6, 1, 3, 2]
    assert abs(sum(work) - sum(request.target_frames for request in requests)) < 1e-6
    assert 1 < len(packed.steps) < 9  # what has ended leaves the row; guidance begins and ends; prefixes are kept
    costs = engine.costs(packed)
    assert not costs["captures"] and costs["step_positions"] > 6 * steps.positions_of(requests[2])
    assert 0 < costs["step_padding"] < costs["step_positions"]
    shown = sum(shape.positions for shape in packed.steps)
    assert shown < costs["step_positions"] + costs["step_padding"] < 6 * shown


def check_same_trace(trace: Trace | None, wanted: Trace | None) -> None:
    """What was seen of a request by both engines: the same but for rounding."""
    if wanted is None:
        assert trace is None
        return
    assert np.array_equal(trace.revealed, wanted.revealed) and trace.revealed.min() >= 0
    for ours, theirs in zip(trace.seen, wanted.seen, strict=True):
        for name, value in vars(theirs).items():
            if value is None or name in ("step", "tokens", "top_tokens"):
                np.testing.assert_array_equal(getattr(ours, name), value)
            else:
                np.testing.assert_allclose(getattr(ours, name), value, rtol=1e-4, atol=1e-4)


def check_snake(device: str) -> None:
    """DAC's activation in one pass is its formula, and silence between clips."""
    row = Row([3, 40], device)
    x, alpha = torch.randn(1, 3, 2 * row.frames, device=device), torch.tensor([0.5, 1.0, 3.0], device=device)
    bias = torch.tensor([0.25, -1.0, 0.0], device=device)
    for dtype in (torch.float32, torch.bfloat16):
        given = x.to(dtype)
        moved = given.float() + bias.view(1, 3, 1)
        expected = moved + torch.sin(alpha.view(1, 3, 1) * moved).square() / alpha.view(1, 3, 1)
        row.silence(expected, 2)
        made = silent_snake(given, bias.to(dtype), alpha.to(dtype), row.sound)
        torch.testing.assert_close(made, expected.to(dtype))
        total = given.clone()
        add_biased(total, given, bias.to(dtype))
        torch.testing.assert_close(total, (2 * given.float() + bias.view(1, 3, 1)).to(dtype))


def check_precision(device: str) -> None:
    """The bench sees through either engine: the same model differs from itself by rounding only."""
    speaker = load_checkpoint(open_checkpoint(CHECKPOINT), torch.device(device), torch.float32)
    packed = steps.Engine.of(load_model(speaker.checkpoint, device, torch.float32), cuda_graphs=False)
    records = [{"text": "Hello."}, {"text": "Hi.", "recipe": {"guidance_scale": 0}}]
    utterances = read_utterances(records, recipe=Recipe(num_step=4))
    for model in (packed, speaker.model):
        figures = bench_precision(speaker, model, "float32", utterances)
        assert figures.codes_same == 1
        for row in figures.rows:
            assert row.tokens_same == row.next_same == 1 and row.logprob_most < 1e-3


CASES = {
    "kernels": check_kernels,
    "attention": check_attention,
    "reveal": check_reveal,
    "loop": check_loop,
    "snake": check_snake,
    "precision": check_precision,
}

if __name__ == "__main__":
    with torch.inference_mode():
        for name in sys.argv[2:]:
            CASES[name](sys.argv[1])
            print(f"{name}: agrees")

"""The diffusion loop: the published decoder's tokens, and independence of the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from omnitts import engine
from omnitts.engine import Request
from omnitts.engine import generate as generate_with_status
from omnitts.model import backbone, canvas
from omnitts.model.backbone import Prefix
from omnitts.model.checkpoint import load_model, load_tokenizer, open_checkpoint
from omnitts.model.text import build_prompt_text, encode_prompts
from omnitts.recipe import Recipe
from omnitts.sampler import reference


def generate(model, requests, **options) -> list[np.ndarray]:
    results = generate_with_status(model, requests, **options)
    assert not any(result.status for result in results)
    return [result.codes for result in results]


@pytest.fixture(scope="module")
def model(checkpoint_dir):
    return load_model(open_checkpoint(checkpoint_dir), "cpu", torch.float32)


@pytest.fixture(scope="module")
def tokenizer(checkpoint_dir):
    return load_tokenizer(open_checkpoint(checkpoint_dir))


def encode_prompt(tokenizer, text: str, **style) -> list[int]:
    return encode_prompts(tokenizer, [build_prompt_text(text, **style)])[0]


def loop_requests(case: dict, vectors: dict, tokenizer) -> list[Request]:
    recipe = Recipe(**{"position_temperature": 0.0, "class_temperature": 0.0, **case["config"]})
    requests = []
    for item in case["items"]:
        prompt = encode_prompt(
            tokenizer,
            item["text"],
            language=item["lang"],
            instruct=item["instruct"],
            ref_text=item["ref_text"],
            denoise=recipe.denoise,
        )
        codes = None if item["ref"] is None else vectors[f"codec/encode/{item['ref']}/codes"].numpy()
        requests.append(Request(prompt, codes, item["target_len"], recipe, seed=1))
    return requests


def mismatches(model, tokenizer, cases, vectors) -> int:
    """Cells of all published loops that come out otherwise."""
    wrong = 0
    for number, case in enumerate(cases["loops"]):
        made = generate(model, loop_requests(case, vectors, tokenizer))
        for item, codes in enumerate(made):
            wrong += int((codes != vectors[f"loop/{number}/{item}/tokens"].numpy()).sum())
    return wrong


def test_published_loops(model, tokenizer, cases, vectors):
    assert mismatches(model, tokenizer, cases, vectors) == 0


def interleaved(x, rope):
    cos, sin = rope
    even, odd = x[..., ::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)


def shifted_schedule(*arguments):
    reveal = canvas.reveal_schedule(*arguments)
    return reveal[1:] + reveal[:1]


guided_scores = reference.guided_scores

MUTATIONS = {
    "rope pairs neighbours": (backbone, "rotate", interleaved),
    "schedule shifted by a step": (engine, "reveal_schedule", shifted_schedule),
    "no guidance": (reference, "guided_scores", lambda cond, uncond, scale: guided_scores(cond, None, scale)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_loops_notice_wrong_maths(model, tokenizer, cases, vectors, monkeypatch, name):
    module, attribute, wrong = MUTATIONS[name]
    monkeypatch.setattr(module, attribute, wrong)
    assert mismatches(model, tokenizer, cases, vectors) > 0


def mixed_requests(tokenizer, vectors) -> list[Request]:
    """Lengths, references, guidance, temperatures and step counts of all sorts."""
    base = Recipe(num_step=6)
    recipes = [
        base,
        replace(base, guidance_scale=0.0),
        replace(base, class_temperature=0.8, top_ratio=0.3, num_step=9),
        replace(base, position_temperature=0.0, num_step=1),
        replace(base, guidance_scale=0.0, class_temperature=1.0, t_shift=1.0),
        replace(base, num_step=40, layer_penalty_factor=0.0),
        replace(base, guidance_start=0.3, guidance_end=0.7),
    ]
    reference = vectors["codec/encode/0/codes"].numpy()
    return [
        Request(
            encode_prompt(tokenizer, f"Sentence number {i}.", ref_text="So." if i % 2 else None),
            reference if i % 2 else None,
            frames,
            recipe,
            seed=100 + i,
        )
        for i, (frames, recipe) in enumerate(zip([12, 7, 25, 1, 30, 3, 15], recipes, strict=True))
    ]


def test_company_and_order_change_nothing(model, tokenizer, vectors):
    requests = mixed_requests(tokenizer, vectors)
    together = generate(model, requests)
    for request, codes in zip(requests, together, strict=True):
        assert codes.shape == (8, request.target_frames) and codes.dtype == np.int16
        assert codes.min() >= 0 and codes.max() < 1024  # every cell revealed, none of them MASK
        assert np.array_equal(codes, generate(model, [request])[0])
    for codes, again in zip(together[::-1], generate(model, requests[::-1]), strict=True):
        assert np.array_equal(codes, again)


def test_the_mask_is_never_revealed(model, tokenizer, vectors, monkeypatch):
    """Also where the model finds MASK likeliest of all."""
    requests = mixed_requests(tokenizer, vectors)
    forward = type(model).forward

    def loves_the_mask(self, documents, targets, prefixes):
        logits = forward(self, documents, targets, prefixes).clone()
        logits[..., self.config.audio_mask_id] += 50
        return logits

    monkeypatch.setattr(type(model), "forward", loves_the_mask)
    assert all(codes.max() < 1024 for codes in generate(model, requests))


def test_seed_alone_decides(model, tokenizer, vectors):
    request = mixed_requests(tokenizer, vectors)[2]
    codes = generate(model, [request])[0]
    assert np.array_equal(codes, generate(model, [request])[0])
    assert not np.array_equal(codes, generate(model, [replace(request, seed=7)])[0])


def test_unguided_requests_have_no_second_document(model, tokenizer, vectors, monkeypatch):
    documents = []
    forward = type(model).forward
    monkeypatch.setattr(
        type(model), "forward", lambda self, d, *rest: documents.append(len(d)) or forward(self, d, *rest)
    )
    requests = mixed_requests(tokenizer, vectors)
    generate(model, [requests[1], requests[4]])
    assert set(documents) == {2}


def test_guidance_has_its_interval(model, tokenizer, vectors, monkeypatch):
    """Steps outside of it have no second document; the interval of all steps is guidance as ever, an empty one none."""
    request = mixed_requests(tokenizer, vectors)[0]

    def made(**settings: float) -> np.ndarray:
        return generate(model, [replace(request, recipe=replace(request.recipe, **settings))])[0]

    assert np.array_equal(made(guidance_start=0.5, guidance_end=0.5), made(guidance_scale=0.0))
    assert not np.array_equal(made(guidance_start=0.5), made())
    documents = []
    forward = type(model).forward
    monkeypatch.setattr(
        type(model), "forward", lambda self, d, *rest: documents.append(len(d)) or forward(self, d, *rest)
    )
    made(guidance_start=0.3, guidance_end=0.7)
    assert documents == [1, 1, 2, 2, 2, 1]  # steps 0 to 5 of 6; 2 / 6 is in it, 4 / 6 too


def test_a_prefix_serves_until_it_is_refreshed(model, tokenizer, vectors, monkeypatch):
    """In the steps between, the conditional document is its target alone; guidance that ends is a refresh."""
    request = mixed_requests(tokenizer, vectors)[1]  # with a reference
    rows = []
    forward = type(model).forward
    monkeypatch.setattr(
        type(model), "forward", lambda self, d, *rest: rows.append(len(d[0])) or forward(self, d, *rest)
    )

    def made(**settings: float) -> np.ndarray:
        rows.clear()
        return generate(model, [replace(request, recipe=replace(Recipe(num_step=6), **settings))])[0]

    whole = len(request.prompt_ids) + request.reference.shape[1] + 7
    exact = made()
    assert rows == [whole] * 6
    lossy = made(prefix_refresh=3)
    assert rows == [whole, 7, 7, whole, 7, 7]
    made(prefix_refresh=3, guidance_end=0.7)
    assert rows == [whole, 7, 7, whole, 7, whole]
    assert lossy.min() >= 0 and lossy.max() < 1024 and not np.array_equal(lossy, exact)


def test_a_filled_prefix_is_what_the_whole_document_computes(model):
    """While the canvas stays as it is, the target's logits do not change when the prefix's keys are used again."""
    torch.manual_seed(0)
    document, other = torch.randn(20, model.config.hidden_size), torch.randn(9, model.config.hidden_size)
    prefix = Prefix(12)
    with torch.inference_mode():
        whole = model([document, other], [8, 9], [prefix, None])
        again = model([document[12:], other], [8, 9], [prefix, None])
        assert torch.equal(whole, model([document, other], [8, 9]))
    torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-4)


def test_idle_steps_are_skipped(model, tokenizer, vectors):
    """One frame has 8 cells: a schedule of 40 steps reveals in at most 8 of them."""
    steps = []
    request = replace(mixed_requests(tokenizer, vectors)[5], target_frames=1)
    generate(model, [request], on_step=steps.append)
    assert len(steps) <= 8
    assert sum(steps) == pytest.approx(1)


def test_progress_adds_up_to_the_frames(model, tokenizer, vectors):
    requests, work = mixed_requests(tokenizer, vectors), []
    generate(model, requests, on_step=work.append)
    assert sum(work) == pytest.approx(sum(request.target_frames for request in requests))


def test_bfloat16_runs(checkpoint_dir, tokenizer, vectors):
    model = load_model(open_checkpoint(checkpoint_dir), "cpu", torch.bfloat16)
    codes = generate(model, mixed_requests(tokenizer, vectors)[:3])
    assert all(c.min() >= 0 and c.max() < 1024 for c in codes)


def test_logits_that_are_not_finite_are_told_per_request(model, tokenizer, vectors, monkeypatch):
    """One request's NaN flags that request; the others come out as ever."""
    requests = mixed_requests(tokenizer, vectors)[3:]
    expected = generate(model, requests)
    forward = type(model).forward

    def broken(self, documents, targets, prefixes):
        logits = forward(self, documents, targets, prefixes).clone()
        logits[requests[0].target_frames, 0, 5] = float("nan")  # a row of the second conditional document
        return logits

    monkeypatch.setattr(type(model), "forward", broken)
    order = [requests[0], requests[2], requests[1]]  # guided ones first, as the engine has them
    results = generate_with_status(model, order)
    assert [bool(result.status) for result in results] == [False, True, False]
    assert np.array_equal(results[0].codes, expected[0])
    assert np.array_equal(results[2].codes, expected[1])

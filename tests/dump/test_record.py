"""What is written while an utterance is made: against the published loops, the plain definition, and the options."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import omnitts
from omnitts import dump, job
from omnitts.claims import Claims
from omnitts.dump.options import check_dumps, read_dumps
from omnitts.dump.record import dump_of
from omnitts.encoding import AudioOptions, encode_audio
from omnitts.engine import Batch, generate
from omnitts.errors import InputError
from omnitts.manifest import read_utterances
from omnitts.model.canvas import reveal_schedule
from omnitts.model.checkpoint import load_model, load_tokenizer, open_checkpoint
from omnitts.output import Output
from omnitts.progress import reporter
from omnitts.recipe import Recipe
from omnitts.sampler.reference import guided_scores
from omnitts.speech import Speech, Watched
from omnitts.summary import Totals
from omnitts.trace import Watch
from tests.test_engine import loop_requests


@pytest.fixture(scope="module")
def tts(checkpoint_dir):
    return omnitts.load(checkpoint_dir, device="cpu")


def as_dump(tts, request, result, dtype=np.float16) -> dump.Dump:
    (utterance,) = read_utterances([{"text": "Hello."}], recipe=request.recipe)
    watched = Watched(utterance, [result.trace], [result.codes], [request.seed], 1.0)
    return dump_of(Speech("one", request.recipe, request.seed, watched=watched), tts, dtype)


def definition(model, request) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of each step of a loop, float32 [C, T, V] in plain torch: guided, conditional and unconditional logprobs."""
    batch, steps = Batch(model, [request]), []
    while batch.active:
        cond, uncond = batch.logits()
        uncond = uncond if len(uncond) else cond
        rows = torch.full((cond[..., 0].numel(),), request.recipe.guidance_scale)
        guided = guided_scores(cond.flatten(0, 1), uncond.flatten(0, 1), rows).view(cond.shape)
        steps.append([torch.log_softmax(x, -1).transpose(0, 1).numpy() for x in (guided, cond, uncond)])
        batch.step()
    return steps


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_published_loops(checkpoint_dir, tts, cases, vectors, tmp_path, dtype):
    checkpoint = open_checkpoint(checkpoint_dir)
    model, tokenizer = load_model(checkpoint, "cpu", torch.float32), load_tokenizer(checkpoint)
    for number, case in enumerate(cases["loops"]):
        requests = [replace(r, watch=Watch(top_n=2)) for r in loop_requests(case, vectors, tokenizer)]
        for item, (request, result) in enumerate(zip(requests, generate(model, requests), strict=True)):
            dump.save(tmp_path / "one", as_dump(tts, request, result, dtype))
            made = dump.load(tmp_path / "one")
            codes = vectors[f"loop/{number}/{item}/tokens"].numpy()
            schedule = reveal_schedule(request.target_frames, request.recipe.num_step, request.recipe.t_shift)
            assert made.revealed_per_step().tolist() == schedule == schedule_of(cases, request, schedule)
            assert np.array_equal(made.codes, codes)
            assert np.array_equal(made.at_reveal(made.tokens), codes)
            check_numbers(made, definition(model, request), 1e-3 if dtype is np.float16 else 1e-5)


def schedule_of(cases, request, default) -> list[int]:
    """The published schedule of a request, where there is one of its length and recipe."""
    recipe = request.recipe
    wanted = (request.target_frames, recipe.num_step, recipe.t_shift)
    known = {(c["target_len"], c["num_step"], c["t_shift"]): c["reveal"] for c in cases["schedules"]}
    return known.get(wanted, default)


def check_numbers(made: dump.Dump, steps, tolerance: float) -> None:
    mask_id = 1024
    for i, (guided, cond, uncond) in enumerate(steps):
        for values, logprobs in ((made.logprobs, guided), (made.cond_logprobs, cond), (made.uncond_logprobs, uncond)):
            chosen = np.take_along_axis(logprobs, made.tokens[i][..., None].astype(np.int64), -1)[..., 0]
            np.testing.assert_allclose(values[i], chosen, rtol=tolerance, atol=tolerance)
        allowed = np.delete(guided, mask_id, axis=-1)
        np.testing.assert_allclose(made.confidence[i], allowed.max(-1), rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(made.top_logprobs[i, ..., 0], allowed.max(-1), rtol=tolerance, atol=tolerance)
        assert not np.isnan(made.scores[i]).any()
        assert np.array_equal(np.isneginf(made.scores[i]), ~made.masked()[i])


def test_the_published_schedules_are_among_them(cases):
    for case in cases["schedules"]:
        assert reveal_schedule(case["target_len"], case["num_step"], case["t_shift"]) == case["reveal"]


def test_a_long_text_has_its_pieces_end_to_end(tts):
    recipe = Recipe(num_step=3, audio_chunk_threshold=1.0, audio_chunk_duration=1.0)
    utterances = read_utterances([{"text": "One is here. Two is there. Three is nowhere. " * 2}], recipe=recipe)
    (speech,) = tts.stream(utterances, watch=lambda utterance: Watch(only=frozenset({0, 2})))
    made = dump_of(speech, tts)
    assert len(made.pieces) > 1 and len({piece.seed for piece in made.pieces}) == len(made.pieces)
    assert made.steps.tolist() == [0, 2] and np.array_equal(made.codes, speech.codes)
    at, first = made.at_reveal(made.tokens), made.revealed == 0
    assert np.array_equal(at[first], made.codes[first])
    assert np.isnan(at[made.revealed == 1]).all()
    assert made.engine_seconds > 0


def test_steps_that_a_piece_did_not_run_are_marked(tts):
    """A single frame of eight cells does not take twelve steps."""
    recipe = Recipe(num_step=12)
    utterances = read_utterances([{"id": "one", "text": "Hi.", "duration": 0.04}], recipe=recipe)
    (speech,) = tts.stream(utterances, watch=lambda utterance: Watch())
    made = dump_of(speech, tts)
    assert len(made.steps) < 12 and made.revealed_per_step().sum() == 8
    other = replace(speech.watched, traces=[*speech.watched.traces, replace(speech.watched.traces[0], seen=[])])
    other = replace(other, codes=other.codes * 2, seeds=other.seeds * 2)
    both = dump_of(replace(speech, watched=other), tts)
    assert (both.tokens[:, :, 1] == -1).all() and (both.logprobs[:, :, 1] == 0).all()
    assert np.array_equal(both.tokens[:, :, 0], made.tokens[:, :, 0])


def test_half_a_minute_is_small(tmp_path):
    """32 steps over 750 frames: what 30 s take on disk does not depend on the model."""
    cells, numbers = (32, 8, 750), ("logprobs", "confidence", "scores", "cond_logprobs", "uncond_logprobs")
    made = dump.Dump(
        id="a", text="Hello.", language=None, instruct=None, reference=None, pieces=(dump.Piece(750, 1),),
        recipe={"num_step": 32}, model_digest="", device="cpu", dtype="float32", versions={}, engine_seconds=1.0,
        error=None, steps=np.arange(32, dtype=np.int32), tokens=np.zeros(cells, np.int16),
        revealed=np.zeros(cells[1:], np.int16), codes=np.zeros(cells[1:], np.int16),
        **{name: np.zeros(cells, np.float16) for name in numbers},
    )  # fmt: skip
    dump.save(tmp_path / "a", made)
    assert (tmp_path / "a").stat().st_size < 3e6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("d", "x", None, None, None), "--dump-steps: 'x': wanted all, every:N"),
        (("d", "every:0", None, None, None), "--dump-steps"),
        (("d", "1,,2", None, None, None), "--dump-steps"),
        (("d", "0,32", None, None, None), "32: there are 32 steps, from 0"),
        (("d", None, None, "a,nobody", None), "--dump-ids: nobody: no such id"),
        (("d", None, None, " , ", None), "--dump-ids: names no utterance"),
        ((None, "all", None, None, None), "--dump-steps: of no use without --dump-logprobs"),
        ((None, None, 3, None, None), "--dump-top: of no use without"),
        ((None, None, None, None, "float32"), "--dump-dtype: of no use without"),
    ],
)
def test_options_that_cannot_be_followed(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    utterances = read_utterances([{"id": "a", "text": "Hello."}], recipe=Recipe())
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        check_dumps(read_dumps(*options), utterances, [Recipe()])


def test_which_steps_and_ids(tmp_path):
    every = read_dumps(str(tmp_path), "every:4", 5, "a, b", "float32")
    assert [step for step in range(9) if every.watch.wants(step)] == [0, 4, 8]
    assert every.ids == {"a", "b"} and every.dtype is np.float32 and every.watch.top_n == 5
    some = read_dumps(str(tmp_path), "0,7,31", None, None, None)
    assert [step for step in range(32) if some.watch.wants(step)] == [0, 7, 31]
    assert read_dumps(None, None, None, None, None) is None


def job_of(tts, folder, records, **options) -> tuple[Totals, dict[str, dict]]:
    dumps = read_dumps(str(folder / "dumps"), *(options.get(name) for name in ("steps", "top", "ids", "dtype")))
    utterances = read_utterances(records, recipe=Recipe(num_step=3))
    check_dumps(dumps, utterances, [Recipe()])
    for name in ("wavs", "dumps"):
        (folder / name).mkdir(exist_ok=True)
    totals = job.run_job(
        tts.checkpoint, lambda: tts, utterances, Output(folder / "wavs", dumps=dumps), asked={"manifest": "lines"},
        max_positions=1024, progress=reporter(len(utterances), quiet=True),
    )  # fmt: skip
    lines = map(json.loads, (folder / "wavs" / "results.jsonl").read_text(encoding="utf-8").splitlines())
    return totals, {line["id"]: line for line in lines}


def test_a_job_dumps_what_was_asked_for_and_makes_the_same_audio(tts, tmp_path):
    records = [{"id": "a", "text": "Hello."}, {"id": "b", "text": "Good day."}]
    (tmp_path / "with").mkdir()
    totals, lines = job_of(tts, tmp_path / "with", records, ids="b", top=2)
    assert totals.written == 2 and totals.dumps_failed == 0
    assert lines["a"]["dump"] is None and lines["b"]["dump"] == "b.dump.safetensors"
    assert [path.name for path in dump.paths(tmp_path / "with" / "dumps")] == ["b.dump.safetensors"]
    made = dump.load(tmp_path / "with" / "dumps" / "b.dump.safetensors")
    assert made.text == "Good day." and made.top_tokens.shape[-1] == 2 and made.recipe["num_step"] == 3
    utterances = read_utterances(records, recipe=Recipe(num_step=3))
    for speech in tts.stream(utterances):
        made = encode_audio(speech.audio, tts.sample_rate, AudioOptions())
        assert (tmp_path / "with" / "wavs" / f"{speech.id}.wav").read_bytes() == made


def test_a_dump_that_cannot_be_written_keeps_the_audio(tts, tmp_path, monkeypatch, capsys):
    def full(claims, path, data):
        if path.parent.name == "dumps":
            raise OSError(28, "No space left on device")
        return put(claims, path, data)

    put = Claims.put
    monkeypatch.setattr(Claims, "put", full)
    totals, lines = job_of(tts, tmp_path, [{"id": "a", "text": "Hello."}])
    assert totals.written == 1 and totals.dumps_failed == 1
    assert lines["a"]["status"] == "ok" and (tmp_path / "wavs" / "a.wav").is_file()
    assert lines["a"]["dump"] is None and "No space left" in lines["a"]["dump_error"]
    assert "a.dump.safetensors: No space left on device" in capsys.readouterr().err
    assert not list((tmp_path / "dumps").iterdir())


def test_a_line_without_its_dump_is_made_again(tts, tmp_path):
    records = [{"id": "a", "text": "Hello."}, {"id": "b", "text": "Good day."}]
    job_of(tts, tmp_path, records, ids="a")
    totals, _ = job_of(tts, tmp_path, records)
    assert totals.written == 1 and totals.kept == 1
    assert len(dump.paths(tmp_path / "dumps")) == 2
    totals, _ = job_of(tts, tmp_path, records)
    assert totals.written == 0 and totals.kept == 2

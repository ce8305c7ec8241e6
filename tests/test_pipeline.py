"""The stages around the engine, in place and on threads: the same speech, in step, and nothing that one failure stops.

Threads are for GPUs, but nothing in them needs one: here they run on the CPU.
"""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import omnitts
from omnitts import pipeline, prepare
from omnitts.engine import Generated
from omnitts.errors import InputError
from omnitts.manifest import read_utterances
from omnitts.recipe import Recipe
from omnitts.stages import in_place, on_threads
from omnitts.stats import Stats

PATIENCE = 20  # seconds, for what should come at once


@pytest.fixture(scope="module")
def tts(checkpoint_dir):
    return omnitts.load(checkpoint_dir, device="cpu")


@pytest.fixture(params=["in place", "threads"])
def either(request, monkeypatch):
    """Stages of both kinds; after the test no thread of theirs is left."""
    stages = in_place if request.param == "in place" else lambda: on_threads(None)
    monkeypatch.setattr("omnitts.tts.stages_for", lambda device: stages())
    yield request.param
    assert not left_over()


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr("omnitts.tts.stages_for", lambda device: on_threads(None))
    yield
    assert not left_over()


def left_over() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("omnitts")]


def lines(count: int, **fields) -> list:
    records = [{"id": f"line-{n}", "text": "Hello" + " there" * (n % 4) + "."} | fields for n in range(count)]
    return read_utterances(records, recipe=Recipe(num_step=1))


def made_by(speeches) -> dict[str, str | None]:
    return {speech.id: speech.error for speech in speeches}


@pytest.fixture
def fake_engine(monkeypatch):
    """In place of the engine: random codes at once, and the sizes of the batches that were asked for."""
    batches = []

    def generate(model, requests, on_step=None):
        batches.append(len(requests))
        before(requests)
        rng = np.random.default_rng(0)
        return [Generated(rng.integers(0, 1024, (8, r.target_frames)).astype(np.int16), 0) for r in requests]

    def before(requests):
        generate.before(requests)

    generate.before, generate.batches = lambda requests: None, batches
    monkeypatch.setattr(pipeline, "generate", generate)
    return generate


def small_windows(monkeypatch, size: int) -> None:
    monkeypatch.setattr(prepare, "WINDOW", size)


# ---- The same speech, at the same time ----


def test_threads_change_no_sample(tts, monkeypatch):
    long = "A first part of some length, then a second one; a third part, too. And a last one, which ends it."
    records = [{"text": long if n % 5 == 2 else f"Sentence number {n}."} for n in range(12)]
    utterances = read_utterances(records, recipe=Recipe(num_step=2, audio_chunk_threshold=4, audio_chunk_duration=2))
    expected = {speech.id: speech for speech in tts.stream(utterances)}
    small_windows(monkeypatch, 5)
    monkeypatch.setattr("omnitts.tts.stages_for", lambda device: on_threads(None))
    made = list(tts.stream(utterances, max_positions=300))
    assert len(made) == len(expected) and not left_over()
    for speech in made:
        assert np.array_equal(speech.audio, expected[speech.id].audio)
        assert np.array_equal(speech.codes, expected[speech.id].codes)


def test_one_window_is_made_ready_while_another_runs(tts, threads, fake_engine, monkeypatch):
    prepared, first_ran = [], threading.Event()

    def plan_pieces(*arguments):
        prepared.append(len(prepared))
        if len(prepared) == 2:
            second_began.set()
        return plan(*arguments)

    def before(requests):
        if not first_ran.is_set():
            assert second_began.wait(PATIENCE)
            assert prepared == [0, 1]  # and no more than one
            first_ran.set()

    plan, second_began, fake_engine.before = pipeline.plan_pieces, threading.Event(), before
    monkeypatch.setattr(pipeline, "plan_pieces", plan_pieces)
    small_windows(monkeypatch, 2)
    assert made_by(tts.stream(lines(7))) == {f"line-{n}": None for n in range(7)}
    assert prepared == [0, 1, 2, 3]


def test_the_engine_goes_on_while_clips_are_decoded(tts, threads, fake_engine, monkeypatch):
    """Until as many batches wait as may: then it waits for the oldest."""
    may_decode = threading.Event()
    most = pipeline.BATCHES_BEHIND + 1

    def decode_batch(clips):
        assert may_decode.wait(PATIENCE)
        assert len(fake_engine.batches) == most or seen
        seen.append(len(clips))
        return decode(clips)

    def before(requests):
        if len(fake_engine.batches) == most:
            threading.Timer(0.2, may_decode.set).start()

    seen, decode, fake_engine.before = [], tts.codec.decode_batch, before
    monkeypatch.setattr(tts.codec, "decode_batch", decode_batch)
    assert made_by(tts.stream(lines(6), max_positions=1)) == {f"line-{n}": None for n in range(6)}
    assert seen == [1] * 6


def test_progress_is_told_while_the_loop_waits(tts, either, fake_engine, monkeypatch):
    class Told(pipeline.Silent):
        def __init__(self):
            self.references, self.windows = [], []

        def prepared(self, utterances, of):
            self.references.append((utterances, of))

        def planned(self, utterances, frames):
            self.windows.append(utterances)

    small_windows(monkeypatch, 3)
    told = Told()
    list(tts.stream(lines(5), progress=told))
    assert told.windows == [3, 2] and told.references[:3] == [(1, 3), (2, 3), (3, 3)]


# ---- Memory that runs out ----

OUT_OF_MEMORY = [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("CUDA error: out of memory")]


@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=lambda error: type(error).__name__)
def test_a_batch_too_large_is_halved_and_so_are_later_ones(tts, either, fake_engine, monkeypatch, error):
    def before(requests):
        if len(requests) > 3:
            raise error

    fake_engine.before = before
    small_windows(monkeypatch, 16)
    stats = Stats()
    utterances = read_utterances(
        [{"id": str(n), "text": "Hello.", "duration": 0.4} for n in range(40)], recipe=Recipe(num_step=1)
    )
    assert made_by(tts.stream(utterances, stats=stats)) == {str(n): None for n in range(40)}
    assert fake_engine.batches[:3] == [16, 8, 4] and stats.splits == 16 // 4 - 1 + 4
    assert max(fake_engine.batches[-12:]) <= 3 and stats.clips == 40
    assert stats.max_positions == utterance_positions(tts, utterances[0]) * 2


def utterance_positions(tts, utterance) -> int:
    (piece,) = prepare.plan_pieces(tts.tokenizer, [utterance], [None], [0])
    return piece.positions


def test_a_clip_too_large_alone_is_lost_alone(tts, either, fake_engine):
    utterances = lines(6)
    bad = prepare.utterance_seed(utterances[3])

    def before(requests):
        if any(request.seed == bad for request in requests):
            raise OUT_OF_MEMORY[0]

    fake_engine.before = before
    made = made_by(tts.stream(utterances))
    error = made.pop("line-3")
    assert error.startswith("line 4: text: generation failed: the GPU's memory is too small for it; lower audio_chunk")
    assert made == {f"line-{n}": None for n in (0, 1, 2, 4, 5)}


def test_clips_too_many_to_decode_are_halved(tts, threads, fake_engine, monkeypatch):
    """One that has no room beside the engine is decoded while that waits."""
    sizes, decode, tried = [], tts.codec.decode_batch, set()

    def decode_batch(clips):
        sizes.append(len(clips))
        if len(clips) > 1 or clips[0].shape not in tried:
            tried.add(clips[0].shape)
            raise OUT_OF_MEMORY[0]
        return decode(clips)

    monkeypatch.setattr(tts.codec, "decode_batch", decode_batch)
    assert made_by(tts.stream(lines(4))) == {f"line-{n}": None for n in range(4)}
    assert sizes[0] == 4 and 2 in sizes and sizes.count(1) >= 4
    monkeypatch.setattr(tts.codec, "decode_batch", lambda clips: fail(OUT_OF_MEMORY[0]))
    (error,) = made_by(tts.stream(lines(1), file="lines.jsonl")).values()
    assert error.startswith("lines.jsonl:1: text: decoding failed: the GPU's memory is too small")


def test_a_reference_without_room_beside_the_engine_waits_for_it(tts, either, fake_engine, monkeypatch):
    tried = []

    def voice_of(utterance):
        tried.append(utterance.id)
        if tried.count(utterance.id) == 1:
            raise OUT_OF_MEMORY[0]

    monkeypatch.setattr(tts, "voice_of", voice_of)
    assert made_by(tts.stream(lines(2))) == {"line-0": None, "line-1": None}
    assert len(tried) == 4


def test_what_is_no_lack_of_memory():
    assert not pipeline.out_of_memory(RuntimeError("out of range"))
    assert not pipeline.out_of_memory(MemoryError("CUDA out of memory"))


def fail(error: BaseException):
    raise error


# ---- Failures and stops ----


@pytest.mark.parametrize("error", [ZeroDivisionError("odd"), InputError("odd")], ids=lambda error: type(error).__name__)
def test_a_failure_in_a_stage_costs_its_line_alone(tts, either, fake_engine, monkeypatch, error):
    utterances = lines(5)
    seed, owner = prepare.utterance_seed(utterances[2]), utterances[2]
    expected = {f"line-{n}": None for n in range(5)}

    def failing_at(number, place, broken):
        with monkeypatch.context() as patch:
            patch.setattr(place, broken.__name__, broken)
            made = made_by(tts.stream(utterances))
        assert "odd" in made.pop(f"line-{number}")
        assert made == {name: None for name in expected if name != f"line-{number}"}

    def voice_of(utterance):
        return fail(error) if utterance is owner else None

    failing_at(2, tts, voice_of)

    def decode_batch(clips):
        return fail(error) if any(clip.shape[1] == longest for clip in clips) else decode(clips)

    decode, longest = tts.codec.decode_batch, 0
    for speech in tts.stream([utterances[3]]):
        longest = speech.frames
    failing_at(3, tts.codec, decode_batch)

    def postprocess(wave, **options):
        return fail(error) if len(wave) == longest * 960 else finish(wave, **options)

    finish = pipeline.postprocess
    failing_at(3, pipeline, postprocess)

    def before(requests):
        if any(request.seed == seed for request in requests):
            raise error

    fake_engine.before = before
    made = made_by(tts.stream(utterances))
    assert made.pop("line-2").startswith("line 3: text: generation failed: ") and len(made) == 4


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("stage", ["plan_pieces", "deliver", "generate"])
def test_what_ends_a_run_ends_it_at_once(tts, either, fake_engine, monkeypatch, error, stage):
    small_windows(monkeypatch, 4)
    delivered = []

    def deliver(speech):
        if stage == "deliver" and len(delivered) == 6:
            raise error
        delivered.append(speech.id)

    if stage == "plan_pieces":
        plan, calls = pipeline.plan_pieces, []

        def plan_pieces(*arguments):
            calls.append(1)
            return fail(error) if len(calls) == 3 else plan(*arguments)

        monkeypatch.setattr(pipeline, "plan_pieces", plan_pieces)
    if stage == "generate":
        fake_engine.before = lambda requests: fail(KeyboardInterrupt()) if len(fake_engine.batches) == 9 else None
        error = KeyboardInterrupt()
    with pytest.raises(type(error)):
        list(tts.stream(lines(40), max_positions=1, deliver=deliver))
    assert 6 <= len(delivered) <= 8 + 4
    if stage == "generate":
        assert len(delivered) == 8  # all that the engine made before


def test_a_consumer_that_goes_away_leaves_no_threads(tts, either, fake_engine):
    speeches = tts.stream(lines(20), max_positions=1)
    next(speeches)
    speeches.close()
    assert len(fake_engine.batches) < 20


def test_executors_that_close_wait_for_what_runs():
    stages = on_threads(None)
    assert isinstance(stages.readers, ThreadPoolExecutor)
    began, go = threading.Event(), threading.Event()

    def slow():
        began.set()
        return go.wait(PATIENCE)

    running = stages.preparer.submit(slow)
    waiting = stages.preparer.submit(slow)
    assert began.wait(PATIENCE)
    threading.Timer(0.05, go.set).start()
    stages.close()
    assert running.result() is True and waiting.cancelled() and not left_over()


# ---- What it took ----


def test_what_an_engine_spends_is_counted_by_run(tts, either, monkeypatch):
    spent = Counter()

    def generate(model, requests, on_step=None):
        spent.update(captures=1, capturing=0.5, step_positions=90, step_padding=10)
        return [Generated(np.full((8, r.target_frames), 7, np.int16), 0) for r in requests]

    monkeypatch.setattr(pipeline, "generate", generate)
    monkeypatch.setattr(pipeline, "costs", lambda model: spent.copy())
    for _ in range(2):
        stats = Stats()
        list(tts.stream(lines(3), max_positions=1, stats=stats))
        assert (stats.captures, stats.capturing, stats.step_positions, stats.step_padding) == (3, 1.5, 270, 30)


def test_stats_add_up(tts, either, fake_engine):
    stats = Stats()
    list(tts.stream(lines(8), max_positions=400, stats=stats))
    assert (stats.batches, stats.clips) == (len(fake_engine.batches), 8)
    assert stats.positions > 0 and stats.padded_frames == 0 and stats.splits == 0
    assert min(stats.prepare, stats.step, stats.finish, stats.decode, stats.postprocess, stats.write) > 0
    figures = stats.as_dict(wall=stats.prepare + stats.step + stats.finish + 1.0, audio=4.0)
    assert figures["seconds"]["host"] == pytest.approx(1.0) and figures["real_time_factor"] > 0.25
    assert sum(figures["share"][stage] for stage in ("prepare", "step", "finish", "host")) == pytest.approx(1, abs=1e-3)

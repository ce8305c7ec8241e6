"""From text to waveform: the published decoder's audio, and one line's independence of all others."""

import random

import numpy as np
import pytest
import soundfile
import torch

import omnitts
from omnitts.errors import InputError
from omnitts.manifest import read_utterances
from omnitts.model.voice import save_voice
from omnitts.recipe import Recipe
from omnitts.tts import resolve_device, resolve_dtype


@pytest.fixture(scope="module")
def tts(checkpoint_dir):
    return omnitts.load(checkpoint_dir, device="cpu")


@pytest.fixture(scope="module")
def recording(vectors, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("audio") / "reference.wav"
    soundfile.write(path, vectors["codec/encode/2/audio"].numpy(), 24000, subtype="FLOAT")
    return str(path)


def assert_same_audio(speech, expected):
    """Within one step, both in 16 bits."""
    assert speech.sample_rate == 24000 and speech.audio.dtype == np.float32
    assert len(speech.audio) == len(expected)
    assert np.abs(np.rint(speech.audio * 32768.0) - expected.numpy()).max() <= 1


def test_published_plain_speech(tts, cases, vectors):
    e2e = cases["e2e"]
    made = tts.synthesize(
        [{"text": item["text"], "language": item["language"]} for item in e2e["plain"]],
        num_step=e2e["num_step"],
        position_temperature=e2e["position_temperature"],
    )
    for number, speech in enumerate(made):
        assert_same_audio(speech, vectors[f"e2e/plain/{number}"])


def test_published_cloning(tts, cases, vectors, recording):
    e2e = cases["e2e"]
    item = {key: e2e["clone"][key] for key in ("text", "language", "ref_text")} | {"ref_audio": recording}
    (speech,) = tts.synthesize([item], num_step=e2e["num_step"], position_temperature=e2e["position_temperature"])
    assert_same_audio(speech, vectors["e2e/clone/0"])


def test_published_long_text(tts, cases, vectors):
    e2e = cases["e2e"]
    settings = {key: e2e["long"][key] for key in ("num_step", "audio_chunk_threshold", "audio_chunk_duration")}
    item = {"text": e2e["long"]["text"], "language": e2e["long"]["language"], "recipe": settings}
    (speech,) = tts.synthesize([item], position_temperature=e2e["position_temperature"])
    assert_same_audio(speech, vectors["e2e/long/0"])
    assert speech.codes.shape[0] == 8 and speech.codes.dtype == np.int16


LONG = "A first part of some length, then a second one; a third part, too. And a last one, which ends it."


@pytest.fixture(scope="module")
def mixed(recording):
    """Lines of every sort: lengths, references, recipes, step counts, seeds, chunks."""
    base = Recipe(num_step=4, audio_chunk_threshold=4, audio_chunk_duration=2)
    records = []
    for number in range(20):
        record = {"id": f"line-{number}", "text": f"Sentence number {number}." + " And on." * (number % 5)}
        if number % 4 == 1:
            record |= {"ref_audio": recording, "ref_text": "Привет, мир!"}
        if number % 5 == 2:
            record["recipe"] = {"num_step": 3 + number % 3, "class_temperature": 0.9}
        if number % 6 == 3:
            record["recipe"] = {"guidance_scale": 0}
        if number % 7 == 4:
            record |= {"text": LONG, "seed": number}
        records.append(record)
    return read_utterances(records, recipe=base)


def test_a_line_depends_on_no_other(tts, mixed):
    whole = {speech.id: speech for speech in tts.stream(mixed)}
    assert len(whole) == len(mixed)
    shuffled = list(mixed)
    random.Random(0).shuffle(shuffled)
    small = {speech.id: speech for speech in tts.stream(shuffled, max_positions=300)}
    for utterance in mixed:
        (alone,) = tts.stream([utterance])
        for other in (small[utterance.id], alone):
            assert np.array_equal(other.codes, whole[utterance.id].codes)
            assert np.array_equal(other.audio, whole[utterance.id].audio)
            assert other.seed == whole[utterance.id].seed


def test_a_recorded_seed_makes_the_clip_again(tts):
    (drawn,) = tts.synthesize(["Hello there."], num_step=3, seed="random")
    (again,) = tts.synthesize([{"text": "Hello there.", "id": "other", "seed": drawn.seed}], num_step=3)
    (other,) = tts.synthesize(["Hello there."], num_step=3, seed="random")
    assert np.array_equal(drawn.audio, again.audio)
    assert not np.array_equal(drawn.codes, other.codes)


def test_a_stored_voice_is_as_good_as_its_recording(tts, recording, tmp_path):
    path = tmp_path / "voice.safetensors"
    save_voice(path, tts.encode_voice(recording, "Привет, мир!"))
    line = {"id": "a", "text": "Hello there."}
    (cloned,) = tts.synthesize([line | {"ref_audio": recording, "ref_text": "Привет, мир!"}], num_step=3)
    (voiced,) = tts.synthesize([line | {"voice": str(path)}], num_step=3)
    assert np.array_equal(cloned.audio, voiced.audio)


def test_a_voice_of_another_codec_is_refused(tts, recording, tmp_path):
    path = tmp_path / "voice.safetensors"
    voice = tts.encode_voice(recording, "Привет, мир!")
    save_voice(path, type(voice)(voice.codes, voice.text, voice.rms, "0123"))
    with pytest.raises(InputError, match="another codec"):
        tts.synthesize([{"text": "Hello.", "voice": str(path)}])


def test_one_failure_costs_no_other(tts, mixed, monkeypatch):
    """A batch that breaks is tried piece by piece; only the piece that breaks alone is lost."""
    generate = omnitts.tts.generate
    bad = mixed[7]

    def breaking(model, requests, on_step=None):
        if any(request.seed == breaking.seed for request in requests):
            raise RuntimeError("out of memory")
        return generate(model, requests, on_step)

    breaking.seed = omnitts.tts.utterance_seed(bad)
    monkeypatch.setattr(omnitts.tts, "generate", breaking)
    made = list(tts.stream(mixed))
    assert {speech.id: speech.error for speech in made if speech.error} == {bad.id: "generation failed: out of memory"}
    assert sorted(speech.id for speech in made) == sorted(utterance.id for utterance in mixed)
    with pytest.raises(omnitts.SynthesisError, match="line-7"):
        tts.synthesize([{"id": "line-7", "text": bad.text}])


def test_audio_that_is_not_finite_or_empty_is_an_error(tts, monkeypatch):
    utterances = read_utterances([{"text": "Hello there."}], recipe=Recipe(num_step=2))
    for wave, reason in ((np.full(9600, np.nan, np.float32), "not finite"), (np.zeros(9600, np.float32), "silence")):
        monkeypatch.setattr(type(tts.codec), "decode", lambda self, codes, wave=wave: wave)
        (speech,) = tts.stream(utterances)
        assert reason in speech.error and speech.audio is None and speech.seconds == 0


def test_bad_items_are_told_before_any_work(tts):
    with pytest.raises(InputError, match="text"):
        tts.synthesize(["Hello.", "  "])
    with pytest.raises(InputError, match="num_stepp"):
        tts.synthesize(["Hello."], num_stepp=3)


def test_devices_and_dtypes():
    assert resolve_device("cpu").type == "cpu"
    assert resolve_dtype("auto", torch.device("cpu")) is torch.float32
    assert resolve_dtype("auto", torch.device("cuda")) is torch.bfloat16
    for wrong in ("gpu", "cuda:x", "cpu:0", "cuda:99"):
        with pytest.raises(InputError, match="device"):
            resolve_device(wrong)
    with pytest.raises(InputError, match="float64"):
        resolve_dtype("float64", torch.device("cpu"))

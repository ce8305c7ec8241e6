"""From text to waveform: the published decoder's audio, and one line's independence of all others."""

import random
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch

import omnitts
from omnitts.engine import weights_dtype
from omnitts.errors import InputError
from omnitts.manifest import read_utterances
from omnitts.model.voice import save_voice
from omnitts.prepare import check_voices
from omnitts.recipe import Recipe
from omnitts.tts import dtype_name, resolve_device, resolve_dtype


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


def test_loudness_is_left_as_the_codec_has_it_where_that_is_asked_for(tts, recording):
    settings = {"num_step": 2, "audio_chunk_threshold": 2, "audio_chunk_duration": 1}
    cloned = {"text": "Hello.", "ref_audio": recording, "ref_text": "So it is."}
    items = ["Hello there.", "A longer text, which is made in chunks, one after another, and joined.", cloned]
    matched = tts.synthesize(items, **settings)
    left = tts.synthesize(items, **settings, match_loudness=False)
    for ours, other in zip(matched, left, strict=True):
        np.testing.assert_array_equal(ours.codes, other.codes)
    for ours, other in list(zip(matched, left, strict=True))[:2]:
        assert np.abs(ours.audio).max() == pytest.approx(0.5, abs=0.02)
        gain = np.abs(other.audio).max() / np.abs(ours.audio).max()
        assert gain != pytest.approx(1, rel=0.01)
        np.testing.assert_allclose(other.audio, ours.audio * gain, atol=1e-5)


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
    paths = [str(tmp_path / name) for name in ("good", "bad", "worse")]
    voice = tts.encode_voice(recording, "Привет, мир!")
    for path, codec in zip(paths, (voice.codec, "0123", "4567"), strict=True):
        save_voice(path, replace(voice, codec=codec))
    records = [{"text": "Hello.", "voice": paths[number]} for number in (0, 1, 0, 1, 2)]
    with pytest.raises(InputError, match=r"^items:2: voice: .*bad was made with another codec \(0123\)"):
        tts.synthesize(records)
    with pytest.raises(InputError) as caught:
        check_voices(tts.checkpoint, {paths[0]: 1, paths[1]: 2, paths[2]: 5}, file="lines.jsonl", run_voice=paths[2])
    first, second = str(caught.value).splitlines()
    assert first.startswith("lines.jsonl:2: voice: ") and second.startswith(f"--voice: {paths[2]} was made with")
    check_voices(tts.checkpoint, {paths[0]: 1})


BREAKAGES = [ZeroDivisionError("odd"), MemoryError(), RuntimeError("odd"), InputError("odd")]


@pytest.mark.parametrize("breakage", BREAKAGES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", ["tts.read_audio", "tts.prepare_reference", "pipeline.postprocess"])
def test_whatever_breaks_costs_its_line_alone(tts, recording, monkeypatch, place, breakage):
    cloned = {"id": "b", "text": "Hi.", "ref_audio": recording, "ref_text": f"{place} {breakage!r}"}
    utterances = read_utterances([{"id": "a", "text": "Hello."}, cloned], recipe=Recipe(num_step=1))
    module, name = place.split(".")
    module = getattr(omnitts, module)
    whole = getattr(module, name)

    def broken(*arguments, ref_rms=0.5, **options):
        if ref_rms is None:  # postprocess, for the line without a reference
            return whole(*arguments, ref_rms=ref_rms, **options)
        raise breakage

    monkeypatch.setattr(module, name, broken)
    made = {speech.id: speech for speech in tts.stream(utterances)}
    assert made["a"].error is None and made["a"].seconds > 0
    named = "" if isinstance(breakage, RuntimeError | InputError) else type(breakage).__name__
    assert named in made["b"].error and str(breakage) in made["b"].error
    assert made["b"].error.startswith(f"line 2: {'text' if module is omnitts.pipeline else 'ref_audio'}: ")
    assert made["b"].audio is made["b"].codes is None

    breakage = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        list(tts.stream(utterances))


def test_one_failure_costs_no_other(tts, mixed, monkeypatch):
    """A batch that breaks is tried piece by piece; only the piece that breaks alone is lost."""
    generate = omnitts.pipeline.generate
    bad = mixed[7]

    def breaking(model, requests, on_step=None):
        if any(request.seed == breaking.seed for request in requests):
            raise RuntimeError("out of memory")
        return generate(model, requests, on_step)

    breaking.seed = omnitts.prepare.utterance_seed(bad)
    monkeypatch.setattr(omnitts.pipeline, "generate", breaking)
    made = list(tts.stream(mixed))
    ((name, error),) = ((speech.id, speech.error) for speech in made if speech.error)
    assert name == bad.id and error.startswith("line 8: text: generation failed: out of memory; run this line again")
    assert sorted(speech.id for speech in made) == sorted(utterance.id for utterance in mixed)
    with pytest.raises(omnitts.SynthesisError, match=r"^line-7: items:1: text: generation failed") as caught:
        tts.synthesize([{"id": "line-7", "text": bad.text}, {"id": "fine", "text": "Hello."}], num_step=2)
    failed, made = caught.value.results
    assert failed.error and failed.audio is None
    assert made.id == "fine" and made.error is None and len(made.audio)


def test_audio_that_is_not_finite_or_empty_is_an_error(tts, monkeypatch):
    utterances = read_utterances([{"text": "Hello there."}], recipe=Recipe(num_step=2))
    for wave, reason in ((np.full(9600, np.nan, np.float32), "not finite"), (np.zeros(9600, np.float32), "silence")):
        monkeypatch.setattr(type(tts.codec), "decode", lambda self, codes, wave=wave: wave)
        (speech,) = tts.stream(utterances)
        assert (
            reason in speech.error and "another seed" in speech.error and speech.audio is None and speech.seconds == 0
        )


class Frame(list):
    columns = ("text",)


def test_bad_items_are_told_before_any_work(tts):
    with pytest.raises(InputError, match="text"):
        tts.synthesize(["Hello.", "  "])
    for wordless in ("...!?", "♪"):
        with pytest.raises(InputError, match=r"^items:2: text: .* has nothing to say"):
            tts.synthesize(["Hello.", wordless])
    for blank in ("", "...", None):
        with pytest.raises(InputError, match=r"^text: wanted the words spoken in the recording"):
            tts.encode_voice("a.wav", blank)
    with pytest.raises(InputError, match="num_stepp"):
        tts.synthesize(["Hello."], num_stepp=3)
    with pytest.raises(InputError, match=r"^items:2: wanted a text or a mapping with one, got 5$"):
        tts.synthesize(["Hello.", 5])
    for nothing in (None, 5, b"Hello.", Frame()):
        with pytest.raises(InputError, match=r"^items: wanted a text, a mapping with one, or a list of these, got "):
            tts.synthesize(nothing)
    with pytest.raises(InputError, match=r"^items:2: id: 'a' is the id of item 1 too"):
        tts.synthesize([{"id": "a", "text": "Hello."}] * 2)
    with pytest.raises(InputError, match=r"^ref_audio: wanted a path, got nothing"):
        tts.encode_voice(None, "Hello.")
    with pytest.raises(InputError, match="recipe: wanted a recipe's name or file, got a mapping"):
        tts.synthesize(["Hello."], recipe={"num_step": 3})
    with pytest.raises(InputError, match="precision: bfloat16, but the model was loaded in float32"):
        tts.synthesize(["Hello."], precision="bfloat16")
    for wrong in (0, -1, 2.5, "8192"):
        with pytest.raises(InputError, match="max_positions: wanted a whole number from 1"):
            tts.synthesize(["Hello."], max_positions=wrong)


def test_fp8_is_for_gpus_that_have_it(monkeypatch):
    gpu, capability = torch.device("cuda"), (8, 6)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an RTX 3090")
    with pytest.raises(InputError, match=r"capability 8.9 or later, and an RTX 3090 has 8.6: use bfloat16"):
        resolve_dtype("fp8", gpu)
    capability = (8, 9)
    dtype = resolve_dtype("fp8", gpu)
    assert dtype_name(dtype) == "fp8" and weights_dtype(dtype) is torch.bfloat16
    assert weights_dtype(torch.float16) is torch.float16 and dtype_name(torch.float16) == "float16"


def test_one_item_alone_is_a_list_of_one(tts):
    (listed,) = tts.synthesize(["Hello there."], num_step=1)
    for alone in ("Hello there.", {"text": "Hello there."}):
        (speech,) = tts.synthesize(alone, num_step=1, precision="float32")
        assert np.array_equal(speech.audio, listed.audio)


def test_numpy_scalars_are_numbers(tts):
    plain = {"text": "Hello there.", "duration": 0.5, "seed": 7, "recipe": {"guidance_scale": 1.5}}
    scalars = plain | {"duration": np.float32(0.5), "seed": np.int64(7), "recipe": {"guidance_scale": np.float32(1.5)}}
    (expected,) = tts.synthesize(plain, num_step=2)
    (speech,) = tts.synthesize(scalars, num_step=np.int64(2), max_positions=np.int64(500))
    assert np.array_equal(speech.audio, expected.audio) and speech.recipe == expected.recipe


def test_devices_and_dtypes():
    assert resolve_device("cpu").type == "cpu"
    assert resolve_dtype("auto", torch.device("cpu")) is torch.float32
    assert resolve_dtype("auto", torch.device("cuda")) is torch.bfloat16
    assert resolve_device(torch.device("cpu")).type == "cpu"
    assert resolve_dtype(torch.bfloat16, torch.device("cpu")) is torch.bfloat16
    for wrong in ("gpu", "cuda:x", "cuda:", "cuda:٣", "cpu:0", "cuda:99", 0, None, torch.device("meta")):
        with pytest.raises(InputError, match="device"):
            resolve_device(wrong)
    for precision in ("fp8", torch.float8_e4m3fn):
        with pytest.raises(InputError, match=r"dtype: fp8 needs a GPU .* this is a CPU: use bfloat16"):
            resolve_dtype(precision, torch.device("cpu"))
    for wrong in ("float64", torch.float64, ["float32"], None):
        with pytest.raises(InputError, match=r"no dtype is called .*: use auto, float32"):
            resolve_dtype(wrong, torch.device("cpu"))

import json

import numpy as np
import pytest
import torch
from safetensors.numpy import save, save_file

from omnitts.audio import resample
from omnitts.errors import InputError
from omnitts.model.checkpoint import open_checkpoint
from omnitts.model.codec import load_codec
from omnitts.model.voice import Voice, load_voice, prepare_reference, save_voice

METADATA = {"format": "omnitts-voice", "version": "1", "text": "A voice.", "rms": "0.05", "codec": "c0dec"}
CODES = np.arange(8 * 5, dtype=np.int16).reshape(8, 5)


def speech(level: float, seconds: float = 1.0, rate: int = 24_000) -> np.ndarray:
    return (level * np.sin(2 * np.pi * 440 / rate * np.arange(int(seconds * rate)))).astype(np.float32)


# ---- Preparing ----


@pytest.mark.parametrize("index", range(3))
def test_published_prompts(cases, vectors, index):
    case = cases["voices"][index]
    reference = prepare_reference(vectors[f"voice/{index}/audio"].numpy(), 24_000, case["ref_text"])
    assert reference.text == case["out_text"]
    assert reference.rms == pytest.approx(case["rms"], rel=1e-6)
    assert reference.frames == vectors[f"voice/{index}/codes"].shape[1]
    assert len(reference.wave) == 960 * reference.frames


def test_published_codes(checkpoint_dir, cases, vectors):
    codec = load_codec(open_checkpoint(checkpoint_dir), "cpu")
    for index, case in enumerate(cases["voices"]):
        reference = prepare_reference(vectors[f"voice/{index}/audio"].numpy(), 24_000, case["ref_text"])
        expected = vectors[f"voice/{index}/codes"].numpy()
        np.testing.assert_array_equal(codec.encode(reference.wave), expected)


def test_quiet_recordings_are_amplified_and_loud_ones_left():
    quiet = prepare_reference(speech(0.05), 24_000, "Hi", preprocess=False)
    assert quiet.rms == pytest.approx(0.05 / np.sqrt(2), rel=1e-5)
    assert np.sqrt(np.mean(quiet.wave**2)) == pytest.approx(0.1, rel=1e-5)
    assert quiet.wave.dtype == np.float32

    loud = prepare_reference(speech(0.5), 24_000, "Hi", preprocess=False)
    assert loud.rms == pytest.approx(0.5 / np.sqrt(2), rel=1e-5)
    np.testing.assert_array_equal(loud.wave, speech(0.5))


def test_silence_is_judged_after_amplification():
    recording = np.concatenate([speech(0.02), speech(0.002), speech(0.02)])
    reference = prepare_reference(recording, 24_000, "Hi")
    assert len(reference.wave) == len(recording)


def test_preprocessing_cuts_silences_and_ends_the_text():
    recording = np.concatenate([np.zeros(24_000), speech(0.5), np.zeros(24_000), speech(0.5), np.zeros(24_000)])
    recording = recording.astype(np.float32)
    raw = prepare_reference(recording, 24_000, "Hi", preprocess=False)
    assert (raw.text, raw.frames) == ("Hi", 125)
    done = prepare_reference(recording, 24_000, "Hi")
    assert (done.text, done.frames) == ("Hi.", int(25 * (0.1 + 1 + 0.4 + 1 + 0.2)))


def test_other_rates_are_resampled():
    recording = speech(0.5, rate=44_100)
    reference = prepare_reference(recording, 44_100, "Hi", preprocess=False)
    expected = resample(torch.from_numpy(recording), 44_100, 24_000).numpy()
    np.testing.assert_array_equal(reference.wave, expected)


def test_an_unfinished_frame_is_dropped():
    reference = prepare_reference(speech(0.5)[: 960 * 3 + 959], 24_000, "Hi", preprocess=False)
    np.testing.assert_array_equal(reference.wave, speech(0.5)[: 960 * 3])


@pytest.mark.parametrize(
    ("recording", "preprocess", "says"),
    [
        (np.zeros(48_000, np.float32), True, "silent"),
        (np.zeros(48_000, np.float32), False, "silent"),
        (np.zeros(0, np.float32), True, "silent"),
        (speech(0.5)[:900], True, "too short"),
        (speech(0.5)[:959], False, "too short"),
        (speech(32767.0), True, "reaches 32767 where 1 is full scale"),
        (speech(1e30), False, "full scale"),
        (np.where(speech(0.5) > 0.49, np.float32(np.nan), speech(0.5)), False, "reaches nan"),
    ],
)
def test_unusable_recordings(recording, preprocess, says):
    with pytest.raises(InputError, match=says):
        prepare_reference(recording, 24_000, "Hi", preprocess=preprocess)


# ---- Files ----


def test_a_voice_survives_its_file(tmp_path):
    voice = Voice(CODES, "Eine Stimme – 声音。\n", 0.1 + 0.2, "c0dec")
    save_voice(tmp_path / "a.voice", voice)
    loaded = load_voice(tmp_path / "a.voice")
    np.testing.assert_array_equal(loaded.codes, CODES)
    assert loaded.codes.dtype == np.int16
    assert (loaded.text, loaded.rms, loaded.codec) == (voice.text, voice.rms, voice.codec)


def test_equal_voices_give_equal_files(tmp_path):
    for name in "abcdef":  # the order of safetensors' metadata is random, and right by chance once in a while
        save_voice(tmp_path / name, Voice(CODES, "Hi.", 0.05, "c0dec"))
    assert len({(tmp_path / name).read_bytes() for name in "abcdef"}) == 1


@pytest.mark.parametrize(
    ("metadata", "codes", "says"),
    [
        (None, CODES, "not a voice file"),
        ({"format": "pt"}, CODES, "not a voice file"),
        (METADATA | {"version": "2"}, CODES, "version '2'"),
        ({k: v for k, v in METADATA.items() if k != "codec"}, CODES, "no codec"),
        (METADATA | {"rms": "loud"}, CODES, "rms 'loud'"),
        (METADATA | {"rms": "nan"}, CODES, "rms 'nan'"),
        (METADATA | {"rms": "0.0"}, CODES, "rms '0.0'"),
        (METADATA, CODES.astype(np.int32), "int32"),
        (METADATA, CODES[:7], r"\[7, 5\]"),
        (METADATA, CODES[0], r"\[5\]"),
        (METADATA, CODES[:, :0], r"\[8, 0\]"),
        (METADATA, CODES - 1, "-1 .. 38"),
        (METADATA, CODES + 1024 - 39, "985 .. 1024"),
    ],
)
def test_bad_voices(tmp_path, metadata, codes, says):
    save_file({"codes": np.ascontiguousarray(codes)}, tmp_path / "a.voice", metadata)
    with pytest.raises(InputError, match=says) as error:
        load_voice(tmp_path / "a.voice")
    assert str(tmp_path / "a.voice") in str(error.value)


def test_bad_files(tmp_path):
    whole = save({"codes": CODES}, METADATA)
    bfloat16 = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    bfloat16["codes"]["dtype"] = "BF16"
    header = json.dumps(bfloat16).encode()
    contents = {
        "truncated": whole[:-1],
        "header only": whole[:100],
        "text": b"hello",
        "nothing": b"",
        "no codes": save({"other": CODES}, METADATA),
        "bfloat16": len(header).to_bytes(8, "little") + header + CODES.tobytes(),
    }
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(InputError, match="not a voice file, or a damaged one"):
            load_voice(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        load_voice(tmp_path / "missing")
    with pytest.raises(InputError, match=r"a folder, not a voice file: .*omnitts voice create. makes one"):
        load_voice(tmp_path)

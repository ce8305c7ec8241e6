import io
import os
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from omnitts.audio import resample
from omnitts.encoding import FORMATS, SAMPLE_RATES, AudioOptions, check_encoder, encode_audio, write_audio
from omnitts.errors import InputError
from omnitts.recording import read_audio


def sine(frequency: float, rate: int, seconds: float) -> np.ndarray:
    return np.sin(2 * np.pi * frequency / rate * np.arange(int(rate * seconds))).astype(np.float32)


# ---- Options ----


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("aiff",), "--format: 'aiff' is none: choose from wav, flac, ogg, opus, mp3"),
        (("wav", 7_999), "--sample-rate: wav cannot hold 7999 Hz, only 8000 to 48000"),
        (("mp3", 16_001), "--sample-rate: mp3 cannot hold 16001 Hz, only 8000, 11025, 12000, .*, 48000"),
        (("opus", 44_100), "--sample-rate: opus cannot hold 44100 Hz, only 8000, 12000, 16000, 24000, 48000"),
        (("flac", 24_000, "PCM_32"), "--subtype: flac has no PCM_32: choose from PCM_16, PCM_24"),
        (("ogg", 24_000, "PCM_16"), "--subtype: ogg has no PCM_16: leave it out"),
        (("ogg", 24_000, "VORBIS"), "--subtype: ogg has no VORBIS: leave it out"),
        (("wav", 24_000, None, 0.5), "--audio-quality: wav keeps every sample .* --format of ogg, opus, mp3"),
        (("flac", 24_000, None, 0.5), "--audio-quality: flac keeps every sample"),
        (("mp3", 24_000, None, 1.5), "--audio-quality: 1.5 is not from 0 to 1"),
        (("mp3", 24_000, None, float("nan")), "--audio-quality: nan is not from 0 to 1"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, says):
    with pytest.raises(InputError, match=f"^{says}"):
        AudioOptions(*options)


@pytest.mark.parametrize("format", FORMATS)
def test_libsndfile_holds_just_the_rates_that_are_offered(format):
    offered = FORMATS[format].rates or SAMPLE_RATES
    for rate in (8_000, 8_001, 11_025, 12_000, 16_000, 16_001, 22_050, 24_000, 32_000, 44_100, 47_999, 48_000):
        if rate in offered:
            data = encode_audio(np.full(1000, 0.1, np.float32), rate, AudioOptions(format, rate))
            info = soundfile.info(io.BytesIO(data))
            assert (info.samplerate, info.frames) == (rate, 1000)
        else:
            kind = FORMATS[format].container, FORMATS[format].subtypes[0]
            with pytest.raises(soundfile.SoundFileError):
                soundfile.SoundFile(io.BytesIO(), "w", rate, 1, kind[1], format=kind[0])


def test_an_encoder_that_is_not_there_is_told_before_work(monkeypatch):
    def cannot(*_arguments):
        raise soundfile.LibsndfileError(1)

    check_encoder(AudioOptions("mp3"))
    monkeypatch.setattr("omnitts.encoding.encode_audio", cannot)
    with pytest.raises(InputError, match=r"--format: libsndfile .* cannot write mp3: .*; install a newer one"):
        check_encoder(AudioOptions("mp3"))


# ---- Samples ----


@pytest.mark.parametrize(("format", "subtype"), [(f, s) for f in ("wav", "flac") for s in FORMATS[f].subtypes])
def test_each_subtype_rounds_to_its_steps_and_clips(format, subtype):
    wave = np.concatenate([np.random.default_rng(0).uniform(-1, 1, 10_000), [1.5, 1, -1, -1.5]]).astype(np.float32)
    data = encode_audio(wave, 24_000, AudioOptions(format, subtype=subtype))
    assert soundfile.info(io.BytesIO(data)).subtype == subtype
    back = soundfile.read(io.BytesIO(data), dtype="float64")[0]
    if subtype == "FLOAT":
        np.testing.assert_array_equal(back, wave)
        return
    scale = 2.0 ** (int(subtype[4:]) - 1)
    np.testing.assert_array_equal(back * scale, np.rint(wave.astype(np.float64) * scale).clip(-scale, scale - 1))


def test_files_of_floats_do_not_hold_the_time_of_day(monkeypatch):
    options = AudioOptions(subtype="FLOAT")
    first = encode_audio(sine(440, 24_000, 0.1), 24_000, options)
    time.sleep(1.1)  # libsndfile's clock counts seconds
    assert encode_audio(sine(440, 24_000, 0.1), 24_000, options) == first


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100, 48_000])
def test_another_rate_is_resampled_to(rate):
    wave = 0.5 * sine(440, 24_000, 0.5)
    back, got = soundfile.read(io.BytesIO(encode_audio(wave, 24_000, AudioOptions(sample_rate=rate))))
    assert got == rate and len(back) == rate // 2
    expected = resample(torch.from_numpy(wave), 24_000, rate).numpy()
    assert np.abs(back - expected).max() <= 0.51 / 32768
    np.testing.assert_allclose(back[200:-200], 0.5 * sine(440, rate, 0.5)[200:-200], atol=2e-3)


def test_full_scale_that_overshoots_in_resampling_is_clipped():
    square = np.sign(sine(300, 24_000, 0.2)).astype(np.float32)
    back = soundfile.read(io.BytesIO(encode_audio(square, 24_000, AudioOptions(sample_rate=48_000))), dtype="int16")[0]
    assert back.max() == 32767 and back.min() == -32768
    assert np.abs(np.diff(back[100:-100].astype(int))).max() < 50_000  # none wrapped around


@pytest.mark.parametrize("format", ["ogg", "opus", "mp3"])
def test_more_quality_is_a_larger_and_truer_file(format):
    wave = (0.3 * sine(440, 24_000, 2) + np.random.default_rng(0).normal(0, 0.05, 48_000)).astype(np.float32)
    sizes, errors = [], []
    for quality in (0.0, 0.5, 1.0):
        data = encode_audio(wave, 24_000, AudioOptions(format, quality=quality))
        back = soundfile.read(io.BytesIO(data))[0]
        assert len(back) == len(wave)
        sizes.append(len(data))
        errors.append(np.abs(back - wave).mean())
    assert sizes == sorted(sizes) and sizes[2] > 1.5 * sizes[0]
    assert errors == sorted(errors, reverse=True)


# ---- Writing ----


@pytest.mark.parametrize("format", ["wav", "flac"])
def test_lossless_formats_are_within_half_a_16_bit_step(tmp_path, format):
    wave = np.random.default_rng(0).uniform(-1, 32767 / 32768, 10_000).astype(np.float32)
    write_audio(tmp_path / "a", wave, 24_000, AudioOptions(format))
    info = soundfile.info(tmp_path / "a")
    assert (info.subtype, info.samplerate, info.channels) == ("PCM_16", 24_000, 1)
    back = soundfile.read(tmp_path / "a")[0]
    assert np.abs(back - wave).max() <= 0.5 / 32768


def test_samples_beyond_full_scale_are_clipped():
    data = encode_audio(np.array([2.0, 1.0, -1.0, -2.0], np.float32), 24_000, AudioOptions())
    samples = soundfile.read(io.BytesIO(data), dtype="int16")[0]
    np.testing.assert_array_equal(samples, [32767, 32767, -32768, -32768])


@pytest.mark.parametrize("format", ["ogg", "opus", "mp3"])
def test_lossy_formats_sound_alike(tmp_path, format):
    wave = 0.5 * sine(440, 24_000, 1)
    write_audio(tmp_path / "a", wave, 24_000, AudioOptions(format))
    back, rate = read_audio(tmp_path / "a")
    assert rate == 24_000
    assert len(back) == len(wave)
    assert np.abs(back - wave)[2400:-2400].max() < (0.1 if format == "opus" else 0.05)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rate", [24_000, 48_000])
def test_equal_samples_give_equal_bytes(format, rate):
    wave, options = 0.5 * sine(440, 24_000, 0.5), AudioOptions(format, rate)
    assert encode_audio(wave, 24_000, options) == encode_audio(wave, 24_000, options)


def test_long_audio_is_encoded_in_blocks(monkeypatch):
    """In one write, a few minutes of Vorbis crash the process inside libsndfile."""
    written = []
    original = soundfile.SoundFile.write
    monkeypatch.setattr(
        soundfile.SoundFile, "write", lambda self, data: written.append(len(data)) or original(self, data)
    )
    samples = np.arange(150_000) % 32768
    data = encode_audio((samples / 32768).astype(np.float32), 24_000, AudioOptions())
    assert len(written) == 3 and max(written) <= 65_536
    np.testing.assert_array_equal(soundfile.read(io.BytesIO(data), dtype="int16")[0], samples)


def test_write_replaces_and_leaves_no_other_file(tmp_path):
    path = tmp_path / "a.wav"
    path.write_text("old")
    write_audio(path, np.zeros(10, np.float32), 24_000, AudioOptions())
    assert soundfile.info(path).frames == 10
    assert os.listdir(tmp_path) == ["a.wav"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.wav"
    path.write_text("old")

    def disk_full(self, data):
        self.write_text("half")
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", disk_full)
    with pytest.raises(OSError):
        write_audio(path, np.zeros(10, np.float32), 24_000, AudioOptions())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.wav"]

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile
import torch

from omnitts import audio
from omnitts.audio import (
    SAMPLE_RATE,
    join_chunks,
    postprocess,
    probe_audio,
    read_audio,
    resample,
)
from omnitts.encoding import AudioOptions, encode_audio, write_audio
from omnitts.errors import InputError

RATES = ["16000-24000", "22050-24000", "24000-16000", "44100-24000", "48000-24000", "8000-24000"]


def sine(frequency: float, rate: int, seconds: float, dtype=np.float32) -> np.ndarray:
    return np.sin(2 * np.pi * frequency / rate * np.arange(int(rate * seconds))).astype(dtype)


# ---- Reading ----


def test_read_gives_the_mean_of_the_channels_and_the_rate(tmp_path):
    stereo = np.array([[0.5, -0.25], [0.25, 0.25], [-1.0, 0.0]])
    soundfile.write(tmp_path / "a.wav", stereo, 22_050, "PCM_16")
    wave, rate = read_audio(tmp_path / "a.wav")
    assert rate == 22_050
    assert wave.dtype == np.float32
    np.testing.assert_array_equal(wave, [0.125, 0.25, -0.5])


def bad_files(folder):
    """Name -> (path, what the message must say) for files that neither reader accepts."""
    (folder / "folder.wav").mkdir()
    (folder / "text.wav").write_text("no audio here")
    (folder / "headerless.raw").write_bytes(bytes(100))
    (folder / "nothing.wav").write_bytes(b"")
    soundfile.write(folder / "no-samples.wav", np.zeros(0), 24_000)
    soundfile.write(folder / "nan.wav", np.array([0.0, np.nan]), 24_000, "FLOAT")
    flac = encode_audio(sine(440, 24_000, 1), 24_000, AudioOptions("flac"))
    (folder / "damaged.flac").write_bytes(flac[:100] + bytes(len(flac) - 100))
    return {
        "missing": (folder / "missing.wav", "no such file"),
        "name too long": (folder / ("a" * 5000), "no such file"),
        "folder": (folder / "folder.wav", "a folder, not an audio file"),
        "not audio": (folder / "text.wav", "cannot read as audio"),
        "headerless": (folder / "headerless.raw", "cannot read as audio"),
        "zero bytes": (folder / "nothing.wav", "an empty file, of 0 bytes"),
        "no samples": (folder / "no-samples.wav", "without samples"),
        "not finite": (folder / "nan.wav", "not finite"),
        "damaged": (
            folder / "damaged.flac",
            "damaged audio file, not all of it can be decoded: .*; copy or convert it",
        ),
    }


@pytest.mark.parametrize("read", [read_audio, probe_audio])
@pytest.mark.parametrize(
    "kind",
    [
        "missing",
        "name too long",
        "folder",
        "not audio",
        "headerless",
        "zero bytes",
        "no samples",
        "not finite",
        "damaged",
    ],
)
def test_bad_files_are_input_errors_of_one_line(tmp_path, read, kind):
    path, says = bad_files(tmp_path)[kind]
    with pytest.raises(InputError, match=says) as error:
        read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("format", ["wav", "aiff", "au", "w64", "rf64"])
def test_recordings_cut_short_are_told_by_their_header(tmp_path, format):
    path = tmp_path / f"a.{format}"
    soundfile.write(path, sine(200, 24000, 2.0), 24000, format=format.upper())
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    for read in (read_audio, probe_audio):
        with pytest.raises(InputError, match=r"audio file cut short, [0-9,]+ of [0-9,]+ bytes are there"):
            read(path)


def test_an_mp3_cut_short_is_told_when_it_is_read(tmp_path):
    path = tmp_path / "a.mp3"
    soundfile.write(path, sine(200, 24000, 4.0), 24000)
    assert len(read_audio(path)[0]) > 95_000
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(InputError, match=r"cut short, [12]\.\d+ s of 4\.00 s"):
        read_audio(path)


def test_an_ogg_cut_short_is_told_by_its_missing_last_page(tmp_path):
    path = tmp_path / "a.ogg"
    soundfile.write(path, sine(200, 24000, 4.0), 24000)
    assert len(read_audio(path)[0]) == 96_000
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    for read in (read_audio, probe_audio):
        with pytest.raises(InputError, match="cut short, its last page is missing"):
            read(path)


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "a.wav")  # opened, it would wait for a writer
    with pytest.raises(InputError, match="not a regular file"):
        probe_audio(tmp_path / "a.wav")


def test_damaged_mp3s_say_nothing_of_their_own(tmp_path, capfd):
    path = tmp_path / "a.mp3"
    soundfile.write(path, sine(200, 24000, 4.0), 24000)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(data)
    with pytest.raises(InputError):
        read_audio(path)
    path.write_bytes(data[:40])
    with pytest.raises(InputError, match="no audio in it"):
        probe_audio(path)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000])
def test_a_wav_whose_writer_did_not_know_its_length_is_whole(tmp_path, size):
    wave = sine(200, 24000, 1.0)
    soundfile.write(tmp_path / "a.wav", wave, 24000)
    data = bytearray((tmp_path / "a.wav").read_bytes())
    data[40:44] = size.to_bytes(4, "little")
    (tmp_path / "a.wav").write_bytes(data)
    assert len(read_audio(tmp_path / "a.wav")[0]) == len(wave)


def test_probe_finds_sound_after_a_long_silence(tmp_path):
    wave = np.zeros(5 * 16_000)
    wave[-1] = -0.01
    soundfile.write(tmp_path / "a.wav", wave, 16_000)
    assert probe_audio(tmp_path / "a.wav") == 5.0


def test_probe_stops_at_the_first_sound(tmp_path, monkeypatch):
    soundfile.write(tmp_path / "a.wav", np.full(100_000, 0.5), 16_000)
    read = []
    original = soundfile.SoundFile.read
    monkeypatch.setattr(
        soundfile.SoundFile, "read", lambda self, n, **kwargs: read.append(n) or original(self, n, **kwargs)
    )
    probe_audio(tmp_path / "a.wav")
    assert len(read) == 1 and 0 < read[0] < 10_000


@pytest.mark.parametrize("level", [0.0, 3 / 32768])
def test_probe_refuses_silence(tmp_path, level):
    soundfile.write(tmp_path / "a.wav", np.full(50_000, level), 24_000, "PCM_16")
    with pytest.raises(InputError, match="silent audio file"):
        probe_audio(tmp_path / "a.wav")


def test_probe_accepts_the_faintest_sound(tmp_path):
    soundfile.write(tmp_path / "a.wav", np.full(50_000, 4 / 32768), 24_000, "PCM_16")
    assert probe_audio(tmp_path / "a.wav") == 50_000 / 24_000


# ---- Resampling ----


@pytest.mark.parametrize("rates", RATES)
def test_published_resampling(vectors, rates):
    from_rate, to_rate = map(int, rates.split("-"))
    out = resample(vectors[f"resample/{rates}/in"], from_rate, to_rate)
    torch.testing.assert_close(out, vectors[f"resample/{rates}/out"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("from_rate", "to_rate"),
    [(44_101, 24_000), (22_050, 16_000), (8_000, 24_000), (7, 24_000), (48_001, 16_000)],
)
def test_phases_in_groups_equal_the_sum_written_out(from_rate, to_rate):
    """Groups of phases, and their stretches of the input, against a direct sum in float64."""
    wave = torch.randn(from_rate // 20 + 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    out = resample(wave, from_rate, to_rate)
    assert len(out) == math.ceil(len(wave) * to_rate / from_rate)

    cutoff = min(from_rate, to_rate) * 0.99
    for index in [*range(0, len(out), 97), len(out) - 1]:
        distance = (np.arange(len(wave)) / from_rate - index / to_rate) * cutoff
        window = np.where(abs(distance) < 6, np.cos(distance * np.pi / 12) ** 2, 0)
        expected = (wave.numpy() * np.sinc(distance) * window).sum() * cutoff / from_rate
        assert float(out[index]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("from_rate", [8_000, 22_050, 44_100, 44_101, 48_000])
def test_constants_and_sines_keep_their_level(from_rate):
    constant = resample(torch.full((from_rate,), 0.5), from_rate, SAMPLE_RATE)
    torch.testing.assert_close(constant[300:-300], torch.full_like(constant[300:-300], 0.5), rtol=0, atol=1e-3)

    out = resample(torch.from_numpy(sine(1000, from_rate, 0.5)), from_rate, SAMPLE_RATE)
    expected = torch.from_numpy(sine(1000, SAMPLE_RATE, 0.5))
    torch.testing.assert_close(out[300:-300], expected[300:-300], rtol=0, atol=2e-3)


def test_downsampling_removes_what_the_lower_rate_cannot_hold():
    out = resample(torch.from_numpy(sine(18_000, 48_000, 0.5)), 48_000, SAMPLE_RATE)
    assert out[300:-300].abs().max() < 2e-3


def test_resampling_keeps_leading_dimensions_and_dtype():
    waves = torch.randn(2, 3, 1000, dtype=torch.float64)
    out = resample(waves, 16_000, 24_000)
    assert out.shape == (2, 3, 1500)
    torch.testing.assert_close(out[1, 2], resample(waves[1, 2], 16_000, 24_000))


def test_resampling_of_nothing_or_to_the_same_rate():
    wave = torch.randn(10)
    assert resample(wave, 24_000, 24_000) is wave
    assert resample(torch.zeros(2, 0), 44_100, 24_000).shape == (2, 0)


def test_kernels_stay_small_for_coprime_rates():
    audio._sinc_kernel.cache_clear()
    resample(torch.zeros(1000), 44_101, 24_000)
    info = audio._sinc_kernel.cache_info()
    assert info.currsize <= 16
    assert audio._sinc_kernel(44_101, 24_000, 0).numel() < 50_000


# ---- Joining and finishing ----


def test_published_join(vectors):
    wave = vectors["post/input"].numpy()
    joined = join_chunks([wave[9_000:39_000], wave[63_000:78_000], wave[9_000:20_000]])
    np.testing.assert_allclose(joined, vectors["post/cross_fade"].numpy(), rtol=0, atol=1e-6)


def test_join_leaves_its_inputs_and_a_single_chunk_alone():
    chunk = np.ones(5000, np.float32)
    np.testing.assert_array_equal(join_chunks([chunk]), np.ones(5000))
    join_chunks([chunk, chunk])
    assert (chunk == 1).all()


def test_join_of_chunks_shorter_than_the_fade():
    joined = join_chunks([np.ones(960, np.float32)] * 3)
    fall, rise = np.linspace(1, 0, 960), np.linspace(0, 1, 960)
    np.testing.assert_allclose(joined[:960], fall, atol=1e-6)
    middle = joined[960 + 2400 : 2 * 960 + 2400]
    np.testing.assert_allclose(middle, rise * np.linspace(1, 0, 2400)[-960:], atol=1e-6)
    np.testing.assert_allclose(joined[-960:], rise, atol=1e-6)
    assert len(joined) == 3 * 960 + 2 * 2400
    assert np.count_nonzero(joined) == 959 + 958 + 959


@pytest.mark.parametrize(("name", "ref_rms"), [("no_ref", None), ("quiet_ref", 0.04), ("loud_ref", 0.2)])
def test_published_postprocessing(vectors, name, ref_rms):
    out = postprocess(vectors["post/input"].numpy(), ref_rms=ref_rms, postprocess_output=True)
    np.testing.assert_allclose(out, vectors[f"post/{name}"].numpy(), rtol=0, atol=1e-6)


def test_without_postprocessing_silence_and_precision_stay():
    wave = np.concatenate([np.zeros(48_000), np.full(24_000, 0.123456789)]).astype(np.float32)
    before = wave.copy()
    out = postprocess(wave, ref_rms=0.5, postprocess_output=False)
    np.testing.assert_array_equal(wave, before)
    assert out.dtype == np.float32
    assert len(out) == len(wave) + 2 * 2400
    np.testing.assert_array_equal(out[2400:-4800], wave[:-2400])
    np.testing.assert_allclose(out[-4800:-2400], wave[-1] * np.linspace(1, 0, 2400), rtol=0, atol=1e-6)
    assert not out[:2400].any() and not out[-2400:].any()


def test_fades_of_a_short_wave_meet_in_its_middle():
    out = postprocess(np.ones(1001, np.float32), ref_rms=1.0, postprocess_output=False)[2400:-2400]
    np.testing.assert_allclose(out[:500], np.linspace(0, 1, 500), atol=1e-6)
    assert out[500] == 1
    np.testing.assert_allclose(out[501:], np.linspace(1, 0, 500), atol=1e-6)


def test_silent_output():
    silent = np.zeros(24_000, np.float32)
    assert len(postprocess(silent, ref_rms=None, postprocess_output=True)) == 0
    kept = postprocess(silent, ref_rms=None, postprocess_output=False)
    np.testing.assert_array_equal(kept, np.zeros(24_000 + 4800))


# ---- The process ----


def test_importing_is_light():
    """`omnitts check` probes files, and must not wait for torch."""
    code = "import sys, omnitts.audio, omnitts.model.voice; print({'torch', 'soundfile'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "set()"


def test_threads_that_read_leave_stderr_as_it_was(tmp_path):
    path = tmp_path / "a.mp3"
    write_audio(path, sine(440, 24000, 0.2), 24000, AudioOptions("mp3"))
    before = os.fstat(2)
    with ThreadPoolExecutor(8) as threads:
        waves = list(threads.map(lambda _: read_audio(path)[0], range(100)))
    assert os.path.samestat(os.fstat(2), before)
    assert all(np.array_equal(wave, waves[0]) for wave in waves)

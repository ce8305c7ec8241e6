import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from omnitts import audio
from omnitts.audio import SAMPLE_RATE, join_chunks, postprocess, resample

RATES = ["16000-24000", "22050-24000", "24000-16000", "44100-24000", "48000-24000", "8000-24000"]


def sine(frequency: float, rate: int, seconds: float, dtype=np.float32) -> np.ndarray:
    return np.sin(2 * np.pi * frequency / rate * np.arange(int(rate * seconds))).astype(dtype)


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


@pytest.mark.parametrize("ref_rms", [None, 0.004, 0.5])
def test_loudness_is_left_alone_where_that_is_asked_for(ref_rms):
    wave = sine(200, 24_000, 1.0) * np.float32(0.75)
    out = postprocess(wave, ref_rms=ref_rms, postprocess_output=False, match_loudness=False)
    np.testing.assert_array_equal(out[4800:-4800], wave[2400:-2400])
    matched = postprocess(wave, ref_rms=ref_rms, postprocess_output=False)
    peak = {None: 0.5, 0.004: 0.03, 0.5: 0.75}[ref_rms]
    assert np.abs(matched).max() == pytest.approx(peak, rel=1e-3)


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

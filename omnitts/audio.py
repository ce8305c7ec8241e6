"""Waveforms: resampling, joining, finishing. `recording` reads them from files, `encoding` writes them.

A waveform is float32 [N], mono, nominally in -1 .. 1, at 24 kHz unless a rate is given.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from omnitts.model.duration import FRAME_RATE
from omnitts.silence import remove_silence

if TYPE_CHECKING:
    import torch

SAMPLE_RATE = 24_000
FRAME_SAMPLES = SAMPLE_RATE // FRAME_RATE

_FADE_SAMPLES = SAMPLE_RATE // 10

_SINC_ZERO_CROSSINGS = 6
_SINC_ROLLOFF = 0.99
_SINC_PHASES = 128


# ---- Resampling ----


def resample(wave: "torch.Tensor", from_rate: int, to_rate: int) -> "torch.Tensor":
    """Resample [..., N] to [..., ceil(N * to_rate / from_rate)] with a Hann-windowed sinc low-pass filter.

    The filter spans 6 zero crossings to each side and cuts off at 0.99 of the lower Nyquist frequency: the
    resampler of the OmniVoice decoder (torchaudio's `sinc_interp_hann`). It works in the dtype and on the
    device of `wave`.

    With the rates reduced to orig : new, output sample q * new + r lies at q * orig + r * orig / new of the
    input. So each of the `new` phases r is a fixed filter that moves by `orig` samples: a convolution of
    stride `orig` with one output channel a phase. A kernel over all the phases of a ratio like 44101 : 24000
    would be huge and mostly zero, so phases go in groups of 128, each over its own stretch of the input.
    """
    import torch.nn.functional as F

    length = wave.shape[-1]
    if from_rate == to_rate or length == 0:
        return wave
    divisor = math.gcd(from_rate, to_rate)
    orig, new = from_rate // divisor, to_rate // divisor
    out_length = -(-length * new // orig)
    periods = -(-out_length // new)

    reach = _sinc_reach(orig, new)
    padded = F.pad(wave.reshape(-1, 1, length), (reach, periods * orig + reach - length))
    out = wave.new_empty(padded.shape[0], periods, new)
    for first in range(0, new, _SINC_PHASES):
        kernel = _sinc_kernel(orig, new, first).to(wave)
        start = first * orig // new
        stretch = padded[..., start : start + (periods - 1) * orig + kernel.shape[-1]]
        out[..., first : first + len(kernel)] = F.conv1d(stretch, kernel, stride=orig).transpose(1, 2)
    return out.reshape(*wave.shape[:-1], periods * new)[..., :out_length]


def _sinc_reach(orig: int, new: int) -> int:
    """How many input samples the filter extends to either side."""
    return math.ceil(_SINC_ZERO_CROSSINGS * orig / (min(orig, new) * _SINC_ROLLOFF))


@lru_cache(maxsize=16)
def _sinc_kernel(orig: int, new: int, first: int) -> "torch.Tensor":
    """The filters of the phases first .. first + 127: float64 [phases, 1, taps].

    Tap 0 is the input sample first * orig // new - reach, counted from the start of the period.
    """
    import torch

    last = min(first + _SINC_PHASES, new)
    reach = _sinc_reach(orig, new)
    phase = torch.arange(first, last, dtype=torch.float64)[:, None, None]
    tap = torch.arange(first * orig // new - reach, (last - 1) * orig // new + reach + 1, dtype=torch.float64)
    cutoff = min(orig, new) * _SINC_ROLLOFF
    crossings = (tap / orig - phase / new) * cutoff
    crossings = crossings.clamp(-_SINC_ZERO_CROSSINGS, _SINC_ZERO_CROSSINGS)
    window = torch.cos(crossings * math.pi / (2 * _SINC_ZERO_CROSSINGS)) ** 2
    return torch.sinc(crossings) * window * (cutoff / orig)


# ---- Joining and finishing ----


def join_chunks(waves: Sequence[np.ndarray]) -> np.ndarray:
    """Join one or more waves, each two with 0.1 s of fade-out, 0.1 s of silence and 0.1 s of fade-in."""
    total = sum(map(len, waves)) + _FADE_SAMPLES * (len(waves) - 1)
    joined = np.zeros(total, np.float32)
    start = 0
    for index, wave in enumerate(waves):
        end = start + len(wave)
        joined[start:end] = wave
        if index > 0:
            _fade_in(joined[start:end][:_FADE_SAMPLES])
        if index < len(waves) - 1:
            # The fade-out before a chunk's end also takes in what precedes a chunk of less than 0.1 s.
            _fade_out(joined[max(0, end - _FADE_SAMPLES) : end])
        start = end + _FADE_SAMPLES
    return joined


def postprocess(
    wave: np.ndarray, *, ref_rms: float | None, postprocess_output: bool, match_loudness: bool = True
) -> np.ndarray:
    """Finish a generated 24 kHz wave as the OmniVoice decoder does.

    1. With `postprocess_output`, silences of over 1 s are cut to 1 s, and those at the edges to 0.1 s.
    2. Loudness, with `match_loudness`: with a reference whose RMS `ref_rms` is below 0.1, as much quieter as the
       reference was amplified; with a louder one, unchanged; without one (None), a peak of 0.5.
    3. A fade over 0.1 s, but at most half the wave, and then 0.1 s of silence at both ends.

    Returns a new float32 array. It is empty if step 1 leaves nothing: the wave was silent throughout.
    """
    if postprocess_output:
        wave = remove_silence(wave, mid_ms=500, lead_ms=100, trail_ms=100)
    if not len(wave):
        return np.zeros(0, np.float32)
    finished = np.pad(_as_loud_as(ref_rms, wave) if match_loudness else wave, _FADE_SAMPLES)
    fade = min(_FADE_SAMPLES, len(wave) // 2)
    sound = finished[_FADE_SAMPLES:-_FADE_SAMPLES]
    _fade_in(sound[:fade])
    _fade_out(sound[len(sound) - fade :])
    return finished


def _as_loud_as(ref_rms: float | None, wave: np.ndarray) -> np.ndarray:
    if ref_rms is None:
        peak = np.abs(wave).max()
        return wave / peak * 0.5 if peak > 1e-6 else wave
    return wave * ref_rms / 0.1 if ref_rms < 0.1 else wave


def _fade_in(samples: np.ndarray) -> None:
    samples *= np.linspace(0, 1, len(samples), dtype=np.float32)


def _fade_out(samples: np.ndarray) -> None:
    samples *= np.linspace(1, 0, len(samples), dtype=np.float32)

"""Audio files and waveforms: reading, resampling, joining, finishing; `encoding` writes them.

A waveform is float32 [N], mono, nominally in -1 .. 1, at 24 kHz unless a rate is given.
"""

import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from os import PathLike
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np

from omnitts.errors import InputError, shown_path
from omnitts.model.duration import FRAME_RATE
from omnitts.silence import remove_silence

if TYPE_CHECKING:
    import soundfile
    import torch

SAMPLE_RATE = 24_000
FRAME_SAMPLES = SAMPLE_RATE // FRAME_RATE

# The peak that recordings must exceed: about three 16-bit steps, so that dither alone counts as silence.
SILENT_PEAK = 1e-4

_FADE_SAMPLES = SAMPLE_RATE // 10
_PROBE_SAMPLES = 1 << 12

# How libsndfile's log tells that a header promises more than the file holds. Sizes from 2**31 - 2**16 on stand for
# "not known": programs that write to a pipe cannot go back to fill them in.
_PROMISED = re.compile(r"^\s*(?:data|SSND|Data Size|riff|Riff size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
_UNKNOWN_SIZE = 2**31 - 2**16
_NO_LAST_PAGE = "Last page lacks an end-of-stream bit"  # in its log of an Ogg file
# MP3s are counted in blocks of 1,152 samples, and decoders differ by a few of them.
_MISSING_SAMPLES = 4 * 1152

# Held while the process's stderr leads nowhere. Whoever has to be heard while other threads read audio takes it.
stderr_lock = RLock()

_SINC_ZERO_CROSSINGS = 6
_SINC_ROLLOFF = 0.99
_SINC_PHASES = 128


# ---- Reading ----


def read_audio(path: str | PathLike) -> tuple[np.ndarray, int]:
    """Read any file that libsndfile knows: (float32 [N], the mean of the channels; the file's sample rate).

    Raises InputError for a path that is missing, a folder, not audio, damaged or cut short, and for a file without
    samples or with samples that are not finite.
    """
    with _open_audio(path) as file:
        wave = _read_mono(file, -1, path)
        if not len(wave):
            raise InputError(f"audio file without samples: {shown_path(path)}; choose another")
        if len(wave) + _MISSING_SAMPLES < file.frames:
            held, promised = len(wave) / file.samplerate, file.frames / file.samplerate
            raise InputError(
                f"audio file cut short, {held:.2f} s of {promised:.2f} s are there: {shown_path(path)}; copy it anew"
            )
        return wave, file.samplerate


def probe_audio(path: str | PathLike) -> float:
    """Check cheaply that a file is a usable recording: its header, and its samples up to the first sound.

    Returns its length in seconds.

    Raises InputError as `read_audio` does, for as much of the file as it looks at, and for a file that is
    silent: no sample is further from zero than `SILENT_PEAK`.
    """
    with _open_audio(path) as file:
        if file.frames == 0:
            raise InputError(f"audio file without samples: {shown_path(path)}; choose another")
        while len(block := _read_mono(file, _PROBE_SAMPLES, path)):
            if not is_silent(block):
                return file.frames / file.samplerate
    raise InputError(
        f"silent audio file, no sample above {SILENT_PEAK:g} of full scale: {shown_path(path)}; choose another"
    )


def is_silent(wave: np.ndarray) -> bool:
    """Whether no sample exceeds `SILENT_PEAK`; true of an empty wave."""
    return bool(np.abs(wave).max(initial=0.0) <= SILENT_PEAK)


def _open_audio(path: str | PathLike) -> "soundfile.SoundFile":
    import soundfile

    # os.path's tests are false, not errors, for names that the system refuses, such as too long ones.
    if os.path.isdir(path):
        raise InputError(f"a folder, not an audio file: {shown_path(path)}")
    if not os.path.exists(path):
        raise InputError(f"no such file: {shown_path(path)}")
    if not os.path.isfile(path):
        raise InputError(f"not a regular file: {shown_path(path)}; copy the recording into one")
    try:
        if not os.path.getsize(path):
            raise InputError(f"an empty file, of 0 bytes: {shown_path(path)}; copy the recording anew")
        open(path, "rb").close()  # libsndfile does not say why the system refuses a file
        with _muted():
            file = soundfile.SoundFile(path)
    except OSError as error:
        raise InputError(f"cannot read: {shown_path(path)} ({error.strerror or error})") from error
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: headerless formats such as .raw
        raise InputError(
            f"cannot read as audio: {shown_path(path)} ({_reason(error)}); convert it to WAV or FLAC"
        ) from error
    if _NO_LAST_PAGE in file.extra_info:
        file.close()
        raise InputError(
            f"audio file cut short, its last page is missing: {shown_path(path)}; if it is whole, convert it anew"
        )
    for promised, held in _PROMISED.findall(file.extra_info):
        if int(held) < int(promised) < _UNKNOWN_SIZE:
            file.close()
            raise InputError(
                f"audio file cut short, {int(held):,} of {int(promised):,} bytes are there: {shown_path(path)}; "
                "copy it anew"
            )
    return file


def _read_mono(file: "soundfile.SoundFile", frames: int, path: str | PathLike) -> np.ndarray:
    import soundfile

    try:
        with _muted():
            samples = file.read(frames, dtype="float32", always_2d=True)
    except soundfile.SoundFileError as error:
        mend = "copy or convert it anew, or choose another"
        raise InputError(f"damaged audio file, not all of it can be decoded: {shown_path(path)}; {mend}") from error
    wave = samples.mean(axis=1)
    if not np.isfinite(wave).all():
        raise InputError(f"audio file with samples that are not finite: {shown_path(path)}; choose another")
    return wave


def _reason(error: Exception) -> str:
    reason = getattr(error, "error_string", str(error)).removeprefix("Error : ").rstrip(".")
    # libsndfile's words for an MP3 without a whole frame.
    return "no audio in it" if "does not exist or is not a regular file" in reason else reason


@contextmanager
def _muted() -> Iterator[None]:
    """Nothing on the process's stderr meanwhile: the MP3 reader inside libsndfile writes there, naming no file."""
    with stderr_lock, _null_stderr():
        yield


@contextmanager
def _null_stderr() -> Iterator[None]:
    try:
        kept = os.dup(2)
    except OSError:  # closed
        yield
        return
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


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


def postprocess(wave: np.ndarray, *, ref_rms: float | None, postprocess_output: bool) -> np.ndarray:
    """Finish a generated 24 kHz wave as the OmniVoice decoder does.

    1. With `postprocess_output`, silences of over 1 s are cut to 1 s, and those at the edges to 0.1 s.
    2. Loudness: with a reference whose RMS `ref_rms` is below 0.1, as much quieter as the reference was
       amplified; with a louder one, unchanged; without one (None), a peak of 0.5.
    3. A fade over 0.1 s, but at most half the wave, and then 0.1 s of silence at both ends.

    Returns a new float32 array. It is empty if step 1 leaves nothing: the wave was silent throughout.
    """
    if postprocess_output:
        wave = remove_silence(wave, mid_ms=500, lead_ms=100, trail_ms=100)
    if not len(wave):
        return np.zeros(0, np.float32)
    finished = np.pad(_match_loudness(wave, ref_rms), _FADE_SAMPLES)
    fade = min(_FADE_SAMPLES, len(wave) // 2)
    sound = finished[_FADE_SAMPLES:-_FADE_SAMPLES]
    _fade_in(sound[:fade])
    _fade_out(sound[len(sound) - fade :])
    return finished


def _match_loudness(wave: np.ndarray, ref_rms: float | None) -> np.ndarray:
    if ref_rms is None:
        peak = np.abs(wave).max()
        return wave / peak * 0.5 if peak > 1e-6 else wave
    return wave * ref_rms / 0.1 if ref_rms < 0.1 else wave


def _fade_in(samples: np.ndarray) -> None:
    samples *= np.linspace(0, 1, len(samples), dtype=np.float32)


def _fade_out(samples: np.ndarray) -> None:
    samples *= np.linspace(1, 0, len(samples), dtype=np.float32)

"""Reference voices: from a recording to what the codec encodes, and encoded voices kept in files."""

import json
import math
import os
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from omnitts.audio import FRAME_SAMPLES, SAMPLE_RATE, resample
from omnitts.errors import InputError, shown_path
from omnitts.levels import is_silent
from omnitts.model.duration import FRAME_RATE
from omnitts.recording import Probe, probe_audio
from omnitts.silence import remove_silence
from omnitts.targets import Kind, Target, writing

REFERENCE_RMS = 0.1  # quieter references are amplified to this
LOUDEST = 100.0  # times full scale: what is beyond was not meant to have its full scale at 1
CODEBOOKS = 8
CODEBOOK_SIZE = 1024

FORMAT = "omnitts-voice"
VERSION = 1
_MOST_HEADER = 1 << 20  # bytes
_MAKE_ONE = "`omnitts voice create` makes one of a recording"


@dataclass(frozen=True)
class Reference:
    """A recording made ready for the codec."""

    wave: np.ndarray  # float32 [frames * 960] at 24 kHz
    text: str  # what is said in it, with an end mark
    rms: float  # of the recording, before any amplification

    @property
    def frames(self) -> int:
        return len(self.wave) // FRAME_SAMPLES


@dataclass(frozen=True)
class Voice:
    """An encoded reference."""

    codes: np.ndarray  # int16 [8, frames], each in 0 .. 1023
    text: str
    rms: float
    codec: str  # digest of the codec that made the codes: another one would read them as other sounds

    @property
    def frames(self) -> int:
        """Frames of 1/25 s."""
        return self.codes.shape[1]


def check_recording(path: str | PathLike) -> Probe:
    """Looks into a recording; raises InputError, with the path, where it cannot serve as a reference."""
    probe = probe_audio(path)
    if probe.seconds < 1 / FRAME_RATE:
        raise InputError(f"only {probe.seconds:.3f} s long: {shown_path(path)}; choose a recording of 3 to 10 s")
    if reason := _beyond_scale(probe.levels.peak):
        raise InputError(f"{reason}: {shown_path(path)}")
    return probe


def _beyond_scale(peak: float) -> str | None:
    if peak <= LOUDEST:
        return None
    return (
        f"the reference recording reaches {peak:g} where 1 is full scale: if these are whole numbers in a file of "
        "floats, divide them by their own full scale"
    )


def prepare_reference(audio: np.ndarray, sample_rate: int, text: str, *, preprocess: bool = True) -> Reference:
    """Make a recording ready for the codec, as the OmniVoice decoder does.

    It is resampled to 24 kHz and, if its RMS is below 0.1, amplified to that. With `preprocess`, silences
    over 0.4 s are shortened to that and those at the edges cut to 0.1 s before and 0.2 s after the speech, and `text`
    gets an end mark if it has none. Samples at the end that do not fill a frame are dropped.

    Args:
        audio: float32 [N], mono, at `sample_rate`.
        text: the transcript.

    Raises InputError for a recording that is silent, shorter than a frame, or far beyond full scale.
    """
    from omnitts.model.text import add_end_mark

    if is_silent(audio):
        raise InputError("the reference recording is silent; choose another")
    if reason := _beyond_scale(np.abs(audio).max()):
        raise InputError(reason)
    wave = _to_24k(audio, sample_rate)
    rms = float(np.sqrt(np.mean(np.square(wave))))
    if 0 < rms < REFERENCE_RMS:
        wave = wave * REFERENCE_RMS / rms
    if preprocess:
        wave = remove_silence(wave, mid_ms=200, lead_ms=100, trail_ms=200)
        text = add_end_mark(text)
    wave = wave[: len(wave) // FRAME_SAMPLES * FRAME_SAMPLES]
    if not len(wave):
        raise InputError(
            f"the reference recording is too short: {len(audio) / sample_rate:.3f} s, "
            f"not one frame of {1 / FRAME_RATE:g} s; choose one of 3 to 10 s"
        )
    return Reference(wave, text, rms)


def _to_24k(audio: np.ndarray, sample_rate: int) -> np.ndarray:
    if sample_rate == SAMPLE_RATE:
        return audio
    import torch

    return resample(torch.from_numpy(np.ascontiguousarray(audio)), sample_rate, SAMPLE_RATE).numpy()


def _is_voice(path: Path) -> bool:
    """Whether `save_voice` wrote a file, of whatever version."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size)) if size <= _MOST_HEADER else None
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return isinstance(metadata, dict) and metadata.get("format") == FORMAT


KIND = Kind("a voice file", (".safetensors",), _is_voice)


def save_voice(path: str | PathLike | Target, voice: Voice) -> None:
    """Write a voice as a safetensors file, whole or not at all."""
    from safetensors.numpy import save

    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "text": voice.text,
        "rms": repr(float(voice.rms)),
        "codec": voice.codec,
    }
    data = save({"codes": np.ascontiguousarray(voice.codes, dtype=np.int16)}, metadata)
    with writing(path) as temporary:
        temporary.write_bytes(_with_sorted_header(data))


def _with_sorted_header(data: bytes) -> bytes:
    """Sort the header of a safetensors file (metadata come in random order): equal voices, equal bytes."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[end:]


def load_voice(path: str | PathLike) -> Voice:
    """Read a voice that `save_voice` wrote; raises InputError for anything else."""
    from safetensors import SafetensorError, safe_open

    if os.path.isdir(path):
        raise InputError(f"a folder, not a voice file: {shown_path(path)}; {_MAKE_ONE}")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            _check_metadata(metadata, path)
            codes = file.get_tensor("codes")
    except FileNotFoundError as error:
        raise InputError(f"no such file: {shown_path(path)}") from error
    except (SafetensorError, OSError, TypeError) as error:  # TypeError: a dtype that numpy lacks
        raise InputError(f"not a voice file, or a damaged one: {shown_path(path)} ({error}); {_MAKE_ONE}") from error
    _check_codes(codes, path)
    return Voice(codes, metadata["text"], _parse_rms(metadata["rms"], path), metadata["codec"])


def _check_metadata(metadata: dict[str, str], path: str | PathLike) -> None:
    if metadata.get("format") != FORMAT:
        raise InputError(f"a safetensors file, but not a voice file: {shown_path(path)}; {_MAKE_ONE}")
    version = metadata.get("version", "")
    if version != str(VERSION):
        raise InputError(
            f"voice file of version {version!r}, this omnitts reads {VERSION}: {shown_path(path)}; "
            "update omnitts or make the voice again"
        )
    missing = [key for key in ("text", "rms", "codec") if key not in metadata]
    if missing:
        raise _damaged(path, f"no {', '.join(missing)}")


def _check_codes(codes: np.ndarray, path: str | PathLike) -> None:
    if codes.dtype != np.int16 or codes.ndim != 2 or codes.shape[0] != CODEBOOKS or codes.shape[1] == 0:
        found = f"{codes.dtype} {list(codes.shape)}"
        raise _damaged(path, f"codes are {found} instead of int16 [{CODEBOOKS}, frames]")
    if codes.min() < 0 or codes.max() >= CODEBOOK_SIZE:
        found = f"{codes.min()} .. {codes.max()}"
        raise _damaged(path, f"codes reach over {found} instead of 0 .. {CODEBOOK_SIZE - 1}")


def _parse_rms(value: str, path: str | PathLike) -> float:
    try:
        rms = float(value)
    except ValueError:
        rms = math.nan
    if not 0 < rms < math.inf:
        raise _damaged(path, f"rms {value!r} is not a positive number")
    return rms


def _damaged(path: str | PathLike, reason: str) -> InputError:
    return InputError(f"damaged voice file: {shown_path(path)} ({reason}); make the voice again")

"""Recordings: audio files of any kind that libsndfile knows, read whole or looked into, with what is wrong told.

A waveform is float32 [N], mono, the mean of the channels, nominally in -1 .. 1. `read_audio` and `probe_audio` open
and decode a file in one way, so what one takes the other takes.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from omnitts.errors import InputError, shown_path
from omnitts.levels import SILENT_PEAK, Levels, Meter

if TYPE_CHECKING:
    from omnitts.stream import Stream

PROBED_SECONDS = 60.0  # after the first sound, as far as `probe_audio` decodes and measures
_LOWEST_RATE, _HIGHEST_RATE = 1_000, 768_000  # Hz. Rates beyond come of damaged headers, or of kHz taken for Hz
# MP3s are counted in blocks of 1,152 samples, and decoders differ by a few of them.
_MISSING_SAMPLES = 4 * 1152


@dataclass(frozen=True)
class Probe:
    """What is known of a recording that was looked into."""

    seconds: float
    levels: Levels  # up to a minute after its first sound


def read_audio(path: str | PathLike) -> tuple[np.ndarray, int]:
    """Read any file that libsndfile knows: (float32 [N], the mean of the channels; the file's sample rate).

    Raises InputError for a path that is missing, a folder, not audio, damaged or cut short, and for a file without
    samples, with samples that are not finite, or with channels that cancel out.
    """
    with _opened(path) as source:
        waves = list(source.blocks())
        source.check_end()
        return np.concatenate(waves), source.stream.samplerate


def probe_audio(path: str | PathLike) -> Probe:
    """Check that a file is a usable recording, and measure it: up to 60 s after its first sound.

    Of a file that does not say how long it is, all is decoded.

    Raises InputError as `read_audio` does, for as much of the file as it looks at, and for a file that is
    silent: no sample is further from zero than `SILENT_PEAK`.
    """
    with _opened(path) as source:
        enough = PROBED_SECONDS * source.stream.samplerate
        levels = silence = None
        for wave in source.blocks():
            if silence is None and source.meter.peak > SILENT_PEAK:
                silence = source.count - len(wave)
            if silence is not None and source.count - silence >= enough:
                levels = levels or source.meter.levels()
                if source.stream.length is not None:
                    return Probe(source.stream.length / source.stream.samplerate, levels)
        source.check_end()
        if source.meter.peak <= SILENT_PEAK:
            raise InputError(
                f"silent audio file, no sample above {SILENT_PEAK:g} of full scale: {source.where}; choose another"
            )
        return Probe(source.count / source.stream.samplerate, levels or source.meter.levels())


def mean_of(channels: np.ndarray) -> np.ndarray:
    """float32 [channels, frames] -> [frames]: numpy's mean over each frame to the bit, several times faster."""
    if len(channels) >= 8:  # numpy adds so many in another order
        return np.ascontiguousarray(channels.T).mean(axis=1)
    wave = channels[0].copy()
    for channel in channels[1:]:
        wave += channel
    return np.divide(wave, np.float32(len(channels)), out=wave)


class _Source:
    """An open file that is read to its end, or not: counts and measures."""

    def __init__(self, stream: "Stream", promised: int | None, path: str | PathLike):
        self.stream = stream
        self.promised = promised
        self.path = path
        self.where = shown_path(path)
        self.count = 0  # frames so far
        self.meter = Meter(stream.samplerate, stream.channels)

    def blocks(self) -> Iterator[np.ndarray]:
        """The mean of the channels, float32 [frames], block after block."""
        import soundfile

        try:
            for samples in self.stream.blocks_to_end():
                channels = np.ascontiguousarray(samples.T)
                with np.errstate(all="ignore"):  # samples that are not finite are told of just below
                    wave = mean_of(channels)
                if not np.isfinite(wave).all():
                    raise InputError(f"audio file with samples that are not finite: {self.where}; choose another")
                self.count += len(wave)
                self.meter.add(channels, wave)
                yield wave
        except soundfile.SoundFileError as error:
            mend = "copy or convert it anew, or choose another"
            raise InputError(f"damaged audio file, not all of it can be decoded: {self.where}; {mend}") from error

    def check_end(self) -> None:
        """After the last block: whether there was anything, and all that was promised."""
        if not self.count:
            size = os.path.getsize(self.path)
            what = f"audio file without samples, by its header ({size:,} bytes in all)"
            raise InputError(f"{what}: {self.where}; choose another, or convert it anew")
        if self.promised is not None and self.count + _MISSING_SAMPLES < self.promised:
            held, promised = (frames / self.stream.samplerate for frames in (self.count, self.promised))
            raise InputError(
                f"audio file cut short, {held:.2f} s of {promised:.2f} s are there: {self.where}; copy it anew"
            )
        if self.meter.cancelled:
            raise InputError(
                f"its {self.stream.channels} channels cancel out, their mean is silent: {self.where}; export one "
                "channel as a mono file"
            )


@contextmanager
def _opened(path: str | PathLike) -> Iterator[_Source]:
    """The file, if it is audio and as long as its header says. Raises InputError."""
    where = shown_path(path)
    # os.path's tests are false, not errors, for names that the system refuses, such as too long ones.
    if os.path.isdir(path):
        raise InputError(f"a folder, not an audio file: {where}")
    if not os.path.exists(path):
        raise InputError(f"no such file: {where}")
    if not os.path.isfile(path):
        raise InputError(f"not a regular file: {where}; copy the recording into one")
    import soundfile

    from omnitts.stream import open_stream

    try:
        if not os.path.getsize(path):
            raise InputError(f"an empty file, of 0 bytes: {where}; copy the recording anew")
        open(path, "rb").close()  # libsndfile does not say why the system refuses a file
        with open_stream(path) as (stream, promised):
            _check_header(stream, path)
            yield _Source(stream, promised, path)
    except OSError as error:
        raise InputError(f"cannot read: {where} ({error.strerror or error})") from error
    except soundfile.SoundFileError as error:
        raise InputError(f"cannot read as audio: {where} ({_reason(error)}); convert it to WAV or FLAC") from error


def _check_header(stream: "Stream", path: str | PathLike) -> None:
    from omnitts.stream import is_chained, is_open_ended, missing_bytes

    where = shown_path(path)
    if is_open_ended(stream):
        raise InputError(f"audio file cut short, its last page is missing: {where}; if it is whole, convert it anew")
    if is_chained(stream, path):
        raise InputError(
            f"several recordings one after another in an Ogg file, of which only the first can be read: {where}; "
            "convert it to WAV or FLAC"
        )
    if missing := missing_bytes(stream):
        held, promised = missing
        raise InputError(f"audio file cut short, {held:,} of {promised:,} bytes are there: {where}; copy it anew")
    if "Seems to be a truncated file" in stream.extra_info:  # of a VOC
        raise InputError(f"audio file cut short: {where}; copy it anew")
    if not _LOWEST_RATE <= stream.samplerate <= _HIGHEST_RATE:
        raise InputError(
            f"audio file of {stream.samplerate:,} samples a second, at most {_HIGHEST_RATE:,} and at least "
            f"{_LOWEST_RATE:,} can be: {where}; is its header damaged? Convert it anew"
        )


def _reason(error: Exception) -> str:
    reason = getattr(error, "error_string", str(error)).removeprefix("Error : ").rstrip(".")
    # libsndfile's words for an MP3 without a whole frame.
    return "no audio in it" if "does not exist or is not a regular file" in reason else reason

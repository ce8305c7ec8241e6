"""Waveforms to the bytes of audio files: formats, sample rates, sample widths, the quality of lossy ones.

Equal samples give equal bytes, in all formats.
"""

import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike

import numpy as np

from omnitts.audio import SAMPLE_RATE, resample
from omnitts.errors import InputError
from omnitts.files import atomic_path
from omnitts.ogg import with_serial

SAMPLE_RATES = range(8_000, 48_001)


@dataclass(frozen=True)
class Format:
    """A file format. `container` and `subtypes` in libsndfile's names; the first of the subtypes is the default."""

    container: str
    subtypes: tuple[str, ...]
    rates: tuple[int, ...] = ()  # that it can hold; none: all of SAMPLE_RATES
    lossy: bool = False


FORMATS: Mapping[str, Format] = {
    "wav": Format("WAV", ("PCM_16", "PCM_24", "PCM_32", "FLOAT")),
    "flac": Format("FLAC", ("PCM_16", "PCM_24")),
    "ogg": Format("OGG", ("VORBIS",), lossy=True),
    "opus": Format("OGG", ("OPUS",), (8_000, 12_000, 16_000, 24_000, 48_000), lossy=True),
    "mp3": Format(
        "MP3",
        ("MPEG_LAYER_III",),
        (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
        lossy=True,
    ),
}

SUBTYPES = ("PCM_16", "PCM_24", "PCM_32", "FLOAT")

_ENCODE_SAMPLES = 1 << 16
_WORST_MP3 = 0.999  # times full compression, which libsndfile refuses for MP3
_FULL_SCALE = {"PCM_24": 1 << 23, "PCM_32": 1 << 31}  # what 1.0 stands for; of all others 1 << 15


@dataclass(frozen=True)
class AudioOptions:
    """How audio files are written; by its name the format is the files' extension, too.

    sample_rate: Hz, one of SAMPLE_RATES that the format can hold. subtype: the samples of a lossless format; None
    is its default. quality: of a lossy format, from 0 to 1, the best; None is the encoder's own choice.
    Raises InputError, in the words of the command line's options, where these do not go together.
    """

    format: str = "wav"
    sample_rate: int = SAMPLE_RATE
    subtype: str | None = None
    quality: float | None = None

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InputError(f"{self.format!r} is none: choose from {', '.join(FORMATS)}", field="--format")
        format = FORMATS[self.format]
        if self.sample_rate not in (format.rates or SAMPLE_RATES):
            rates = ", ".join(map(str, format.rates)) or f"{SAMPLE_RATES[0]} to {SAMPLE_RATES[-1]}"
            raise InputError(f"{self.format} cannot hold {self.sample_rate} Hz, only {rates}", field="--sample-rate")
        if self.subtype is not None and (format.lossy or self.subtype not in format.subtypes):
            mend = "leave it out" if format.lossy else f"choose from {', '.join(format.subtypes)}"
            raise InputError(f"{self.format} has no {self.subtype}: {mend}", field="--subtype")
        if self.quality is not None and not format.lossy:
            lossy = ", ".join(name for name, each in FORMATS.items() if each.lossy)
            message = f"{self.format} keeps every sample as it is: leave it out, or choose a --format of {lossy}"
            raise InputError(message, field="--audio-quality")
        if self.quality is not None and not 0 <= self.quality <= 1:
            raise InputError(f"{self.quality:g} is not from 0 to 1", field="--audio-quality")

    @property
    def encoding(self) -> str:
        """The samples' encoding, in libsndfile's name."""
        return self.subtype or FORMATS[self.format].subtypes[0]

    @property
    def compression(self) -> float | None:
        """libsndfile's compression level, from 0, the best, to 1."""
        if self.quality is None:
            return None
        return (1 - self.quality) * (_WORST_MP3 if self.format == "mp3" else 1)


def check_encoder(options: AudioOptions) -> None:
    """Raises InputError where the libsndfile that is installed cannot write such files: older ones know no MP3."""
    import soundfile

    try:
        encode_audio(np.zeros(1, np.float32), SAMPLE_RATE, options)
    except (soundfile.SoundFileError, ValueError, TypeError) as error:  # ValueError: a format it has never heard of
        version = soundfile.__libsndfile_version__
        message = f"libsndfile {version} cannot write {options.format}: {error}; install a newer one, or choose another"
        raise InputError(message, field="--format") from None


def write_audio(path: str | PathLike, wave: np.ndarray, sample_rate: int, options: AudioOptions) -> None:
    """Write a wave, float32 [N] at `sample_rate`, whole or not at all."""
    data = encode_audio(wave, sample_rate, options)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def encode_audio(wave: np.ndarray, sample_rate: int, options: AudioOptions) -> bytes:
    """The bytes of an audio file of a wave, float32 [N] at `sample_rate`; it is resampled to the options' rate.

    Samples are rounded to the subtype's steps, in lossy formats to 16 bits, and clipped where they exceed full scale.
    FLOAT keeps them as they are.
    """
    import soundfile

    samples = _samples(_resampled(wave, sample_rate, options.sample_rate), options.encoding)
    buffer = io.BytesIO()
    with soundfile.SoundFile(
        buffer,
        "w",
        options.sample_rate,
        1,
        options.encoding,
        format=FORMATS[options.format].container,
        compression_level=options.compression,
    ) as file:
        # In blocks: libsndfile's Vorbis encoder crashes on a single write of minutes of audio.
        for start in range(0, len(samples), _ENCODE_SAMPLES):
            file.write(samples[start : start + _ENCODE_SAMPLES])
    data = buffer.getvalue()
    if FORMATS[options.format].container == "OGG":
        return with_serial(data, zlib.crc32(samples.tobytes()))  # libsndfile draws it at random
    return _without_time(data) if options.encoding == "FLOAT" else data


def _resampled(wave: np.ndarray, from_rate: int, to_rate: int) -> np.ndarray:
    if from_rate == to_rate:
        return wave
    import torch

    # In float64, whose rounding is too fine to reach the samples of a file: no difference between machines does.
    return resample(torch.from_numpy(wave).double(), from_rate, to_rate).numpy()


def _samples(wave: np.ndarray, encoding: str) -> np.ndarray:
    """What libsndfile takes without rounding anything itself: int16, int32 (the upper 24 bits, or all), or float32."""
    if encoding == "FLOAT":
        return wave.astype(np.float32)
    scale = _FULL_SCALE.get(encoding)
    if scale is None:
        return np.rint(wave * 32768.0).clip(-32768, 32767).astype(np.int16)
    steps = np.rint(wave.astype(np.float64) * scale).clip(-scale, scale - 1)
    return steps.astype(np.int32) * ((1 << 31) // scale)


def _without_time(wav: bytes) -> bytes:
    """A WAV file of floats without the time of day that libsndfile puts into its PEAK chunk."""
    start = 12
    while start + 8 <= len(wav):
        name, size = wav[start : start + 4], int.from_bytes(wav[start + 4 : start + 8], "little")
        if name == b"PEAK":
            time = start + 12  # behind name, size and version
            return wav[:time] + bytes(4) + wav[time + 4 :]
        start += 8 + size + size % 2
    return wav

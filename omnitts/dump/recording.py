"""The audio that belongs to a dump: a file of the same name beside it, or in another folder."""

import io
from pathlib import Path

from omnitts.audio import read_audio
from omnitts.dump.format import SUFFIX
from omnitts.encoding import FORMATS
from omnitts.errors import InputError, shown_path
from omnitts.layout import LAYOUTS

_TYPES = {".mp3": "audio/mpeg", ".ogg": "audio/ogg"}
_MP3_LEVEL = 0.8  # about 40 kbit/s at 24 kHz, on LAME's scale from 0 (160) to 1 (8)
_BLOCK = 1 << 16


def find_audio(dump_path: Path, folder: Path | None = None) -> Path | None:
    """The audio file named as the dump is, in `folder` or, without one, beside it, in any layout; None without any."""
    id = dump_path.name.removesuffix(SUFFIX)
    stems = [layout.stem(id) for layout in LAYOUTS]
    candidates = ((folder or dump_path.parent) / f"{stem}.{extension}" for stem in stems for extension in FORMATS)
    return next((path for path in candidates if path.is_file()), None)


def compact_audio(path: Path) -> tuple[str, bytes]:
    """An audio file for a page: its media type and its bytes, those of WAV and FLAC as an MP3 of about 40 kbit/s.

    Raises InputError for a file that cannot be read, or that MP3 has no sample rate for.
    """
    kept = _TYPES.get(path.suffix.lower())
    if kept is not None:
        try:
            return kept, path.read_bytes()
        except OSError as error:
            raise InputError(f"cannot read: {shown_path(path)} ({error.strerror or error})") from error
    import soundfile

    wave, rate = read_audio(path)
    buffer = io.BytesIO()
    try:
        with soundfile.SoundFile(
            buffer, "w", rate, 1, "MPEG_LAYER_III", format="MP3", bitrate_mode="CONSTANT", compression_level=_MP3_LEVEL
        ) as file:
            for start in range(0, len(wave), _BLOCK):
                file.write(wave[start : start + _BLOCK])
    except soundfile.SoundFileError as error:
        raise InputError(f"cannot make an MP3 of {rate} Hz: {shown_path(path)}; convert it to 24000 Hz") from error
    return "audio/mpeg", buffer.getvalue()

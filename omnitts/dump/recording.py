"""The audio that belongs to a dump: a file of the same name beside it, or in another folder."""

from pathlib import Path

from omnitts.audio import FORMATS
from omnitts.dump.format import SUFFIX


def find_audio(dump_path: Path, folder: Path | None = None) -> Path | None:
    """The audio file named as the dump is, in `folder` or, without one, beside it; None when there is none."""
    stem = dump_path.name.removesuffix(SUFFIX)
    candidates = ((folder or dump_path.parent) / f"{stem}.{extension}" for extension in FORMATS)
    return next((path for path in candidates if path.is_file()), None)

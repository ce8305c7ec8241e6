"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from omnitts.errors import InputError


def check_folder(folder: Path, option: str) -> None:
    """Make the folder that `option` names; raise InputError when files could not be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_path(folder / "omnitts-probe") as probe:
            probe.touch()
        (folder / "omnitts-probe").unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"cannot write to {folder}: {reason}; choose another folder", field=option) from None


@contextmanager
def atomic_path(path: str | PathLike) -> Iterator[Path]:
    """Yield a hidden temporary path beside `path`; rename it to `path` when the block ends without an error.

    Whoever looks at `path` sees the old file or the whole new one, also when the process is killed half way.
    On an error the temporary file is removed and `path` stays as it was. The process id in its name keeps two
    runs from writing into each other's file.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # after a rename there is nothing left to remove

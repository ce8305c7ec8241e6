"""Paths as options give them: what no file can be called is refused before anything looks for it."""

import os
from pathlib import Path

from omnitts.errors import InputError, shown_path
from omnitts.recipe import shown

_NAME_BYTES = 255  # of a name in a folder, where the system does not tell


def check_path(path: str, option: str) -> None:
    """Raises InputError, naming the option, for a path that leads nowhere and cannot be made to.

    It is blank, has a NUL or a name that is too long, goes through a file, in circles, or where one may not look.
    That nothing is there is no mistake as such.
    """
    if not path.strip():
        raise InputError("is blank: give a name", field=option)
    if "\0" in path:
        raise InputError(f"{shown(path)} has a NUL, which no path holds: leave it out", field=option)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        raise InputError(f"{shown(path)} has half a surrogate pair, which is no text", field=option) from None
    try:
        os.stat(path)
    except FileNotFoundError:
        _check_names(Path(path), option)
    except NotADirectoryError:
        file = next((above for above in reversed(Path(path).parents) if above.is_file()), Path(path))
        raise InputError(f"{shown_path(file)} is a file, not a folder: {_no_way(path)}", field=option) from None
    except OSError as error:
        _check_names(Path(path), option)
        raise InputError(f"{_no_way(path)} ({error.strerror or error}): choose another", field=option) from None


def check_readable(path: str, option: str) -> None:
    """Raises InputError, naming the option, for a file or folder that is there and may not be read."""
    if os.path.exists(path) and not os.access(path, os.R_OK):
        raise InputError(f"{shown_path(path)} may not be read: change its permissions, or copy it", field=option)


def standing(path: Path) -> Path:
    """The path, or the nearest of the folders above it that is there."""
    return next((each for each in (path, *path.parents) if os.path.lexists(each)), Path())


def _check_names(path: Path, option: str) -> None:
    """The system looks at names only as far as folders are there."""
    for name in path.parts:
        size = len(os.fsencode(name))
        if size > _NAME_BYTES:
            message = f"{shown(name)} is {size:,} bytes long, and a name has room for {_NAME_BYTES}: shorten it"
            raise InputError(message, field=option)


def _no_way(path: str) -> str:
    text = shown_path(path)
    return f"no way to {text if len(text) <= 300 else shown(path)}"

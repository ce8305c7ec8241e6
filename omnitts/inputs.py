"""The files that a command reads, so that nothing it writes takes the place of one."""

import os
import unicodedata
from dataclasses import dataclass
from os import PathLike

from omnitts.errors import shown_path


@dataclass(frozen=True, slots=True)
class Input:
    """A file that is read: what it is to the command, and its path as the user wrote it."""

    what: str  # "the manifest", "a reference recording"
    path: str

    def __str__(self) -> str:
        return f"{self.what} {shown_path(self.path)}"


class Inputs:
    """Files that are read, found again under any of their names.

    A link, hard or symbolic, is the file that it leads to. Names that differ only in letter case or in their Unicode
    form are one name on many systems, and taken for one on all.
    """

    def __init__(self) -> None:
        self._by_file: dict[tuple[int, int], Input] = {}  # by device and inode
        self._by_name: dict[str, Input] = {}  # by real path, folded
        self._folders: dict[str, str] = {}  # as they were given -> real and folded

    def add(self, path: str | PathLike[str], what: str) -> None:
        """Adds a file; one that is not there counts by its name."""
        found = Input(what, os.fspath(path))
        if (number := _number(path)) is not None:
            self._by_file.setdefault(number, found)
        for name in {self._key(path), self._key(os.path.realpath(path))}:
            self._by_name.setdefault(name, found)

    def find(self, path: str | PathLike[str]) -> Input | None:
        """The input that would be lost if `path` was written or removed, if there is one."""
        if not self._by_name:
            return None
        number = _number(path)
        found = None if number is None else self._by_file.get(number)
        return found or self._by_name.get(self._key(path))

    def _key(self, path: str | PathLike[str]) -> str:
        """A path whose folder is real, in one spelling for all that some system takes for the same."""
        folder, name = os.path.split(path)
        if name in ("", ".", ".."):
            folder, name = os.path.split(os.path.abspath(path))
        if folder not in self._folders:
            self._folders[folder] = _folded(os.path.realpath(folder))
        return os.path.join(self._folders[folder], _folded(name))


def _number(path: str | PathLike[str]) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a NUL in it
        return None
    return (status.st_dev, status.st_ino) if status.st_ino else None


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())

"""Files put into their place before a line of results.jsonl tells of them: their names are kept in a journal meanwhile.

So a file that is there is always known for what it is, also after a kill at any moment: omnitts's own, or somebody's,
and somebody's is neither replaced nor removed.
"""

import errno
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from omnitts.errors import naming
from omnitts.files import atomic_path, temporary_path
from omnitts.fingerprint import Fingerprint, file_digest, fingerprint

_MOST_LINES = 4096  # of a journal, before those that count no more are dropped


def name_in(folder: Path, path: Path) -> str:
    """A file's path from a folder, with slashes, as results.jsonl has it. It leads there also through links."""
    if path.is_relative_to(folder):
        return path.relative_to(folder).as_posix()
    place = os.path.join(os.path.realpath(path.parent), path.name)
    return Path(os.path.relpath(place, os.path.realpath(folder))).as_posix()


@dataclass(frozen=True)
class Claim:
    """A file that a run was about to put into its place."""

    path: Path
    bytes: int
    digest: str

    def holds(self) -> bool:
        """Whether it did, and nobody has put another file there."""
        try:
            return self.path.stat().st_size == self.bytes and file_digest(self.path) == self.digest
        except OSError:
            return False


def read_claims(folder: Path, journal: Path) -> dict[str, Claim]:
    """What a run that was killed has left in its journal, by name in the folder; the last claim of each counts."""
    claims = {}
    with suppress(OSError, ValueError):
        for line in journal.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError):
                name, size, digest = json.loads(line)
                claims[name] = Claim(folder / name, size, digest)
    return claims


class Claims:
    """The files of a run; any thread may use it. Only one run at a time may have a journal."""

    def __init__(self, folder: Path, journal: Path, is_own: Callable[[Path], bool], *, replace_files: bool = False):
        """is_own: whether omnitts wrote a file, by results.jsonl. replace_files: whether others may be replaced too."""
        self.folder, self.journal, self.is_own, self.replace_files = folder, journal, is_own, replace_files
        self._pending: dict[str, str] = {}  # by name in the folder, with their lines in the journal
        self._lines = 0
        self._lock = Lock()

    def clear_left_behind(self) -> None:
        """Removes what a killed run put into its place and could not record: it is made again."""
        for claim in read_claims(self.folder, self.journal).values():
            if not self.is_own(claim.path) and claim.holds():
                claim.path.unlink()
        self.journal.unlink(missing_ok=True)

    def put(self, path: Path, data: bytes) -> Fingerprint:
        """Writes a file, whole or not at all. Raises OSError: FileExistsError where somebody's file is in the way."""
        made = fingerprint(data)
        temporary = temporary_path(path)
        try:
            with naming(path):
                temporary.write_bytes(data)
                self.place(temporary, path, made)
        finally:
            with suppress(OSError):  # after a rename there is nothing left to remove
                temporary.unlink()
        return made

    def place(self, temporary: Path, path: Path, made: Fingerprint) -> None:
        """Renames a whole file to its path. Raises OSError as `put` does."""
        if not self.may_replace(path):
            raise FileExistsError(errno.EEXIST, "a file is there that omnitts did not write: move it", str(path))
        name = name_in(self.folder, path)
        self._claim(name, made)
        try:
            os.replace(temporary, path)
        except OSError:
            self.settle([name])
            raise

    def may_replace(self, path: Path) -> bool:
        """Whether nothing is there, or what omnitts wrote. A folder is left to the system, which refuses it."""
        return self.replace_files or not os.path.lexists(path) or path.is_dir() or self._wrote(path)

    def remove(self, path: Path) -> None:
        """Removes a file of omnitts's own; somebody's stays, whatever `replace_files` says."""
        if self._wrote(path):
            with suppress(OSError):  # most often there is none
                path.unlink()
            self.settle([name_in(self.folder, path)])

    def settle(self, names: Iterable[str]) -> None:
        """Of these files, by their names in the folder, a line tells now; or they are gone."""
        with self._lock:
            for name in names:
                self._pending.pop(name, None)

    def close(self) -> None:
        """Ends the run: where all files are recorded, nothing is left of the journal."""
        with self._lock, suppress(OSError):
            if not self._pending:
                self.journal.unlink()

    def _wrote(self, path: Path) -> bool:
        return name_in(self.folder, path) in self._pending or self.is_own(path)

    def _claim(self, name: str, made: Fingerprint) -> None:
        line = json.dumps([name, made.bytes, made.digest]) + "\n"
        with self._lock, naming(self.journal):
            self._pending[name] = line
            self._lines += 1
            if self._lines > _MOST_LINES:
                self._lines = len(self._pending)
                with atomic_path(self.journal) as temporary:
                    temporary.write_text("".join(self._pending.values()), encoding="utf-8")
            else:
                with open(self.journal, "a", encoding="utf-8") as file:
                    file.write(line)

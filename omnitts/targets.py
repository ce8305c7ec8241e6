"""The one file that a command writes, the value of -o or --json: what it may take the place of, and how it gets there.

A file that omnitts did not write is foreign: it is replaced only where that is asked for, and one that the command
reads never. Whether omnitts wrote a file is told by a mark in it, which all kinds that are written this way have.
"""

import errno
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from omnitts.errors import InputError, naming, shown_path
from omnitts.files import atomic_path, temporary_path
from omnitts.inputs import Inputs
from omnitts.paths import check_path, standing

# As redirections of a shell make them.
_STREAMS = {"__stdin__": "standard input", "__stdout__": "standard output", "__stderr__": "standard error"}


@dataclass(frozen=True)
class Kind:
    """What a command writes: its name in messages, the endings it may have (any, without one), how a file is known."""

    what: str
    suffixes: tuple[str, ...]
    is_marked: Callable[[Path], bool]  # whether omnitts wrote it; many errors count as no

    def wrote(self, path: Path) -> bool:
        """Whether omnitts wrote the file, or there is nothing in it to lose."""
        try:
            return not os.path.getsize(path) or self.is_marked(path)
        except (OSError, ValueError, RecursionError, ImportError):  # no file of ours, or none that can be looked into
            return False


@dataclass(frozen=True)
class Target:
    """A file to be written. path: as the user wrote it; option: that named it; replace: also a foreign one.

    A link stays, and what it leads to is written. Devices and pipes are written into.
    """

    path: str
    option: str
    kind: Kind
    replace: bool = False

    def __fspath__(self) -> str:
        return self.path

    def check(self) -> None:
        """Raises InputError when no file could be written there, or it would have none of the kind's endings.

        Folders may be missing; nothing is made here.
        """
        check_path(self.path, self.option)
        name = shown_path(self.path)
        if self.path.endswith(("/", os.sep)) or os.path.isdir(self.path):
            raise InputError(f"{name} is a folder: name a file", field=self.option)
        self._check_suffix()
        if self._is_stream():
            return
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise InputError(f"{name} is a device or a socket, no file: name a file", field=self.option)
        folder = standing(self._file.parent)
        if not folder.is_dir():
            raise InputError(f"{shown_path(folder)} is a file, not a folder: no way to {name}", field=self.option)
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"cannot write to {shown_path(folder)}: {reason}; choose another folder"
            raise InputError(message, field=self.option) from None

    def check_free(self, inputs: Inputs) -> None:
        """Raises InputError when the file is one that the command reads, or a foreign one and not to be replaced."""
        found = inputs.find(self.path)
        if found is not None:
            message = f"{shown_path(self.path)} is {found}, which is read: choose another name"
            raise InputError(message, field=self.option)
        if self._is_stream() or not os.path.exists(self.path):
            return
        for stream, what in _STREAMS.items():
            if _is_same(self.path, getattr(sys, stream)):
                message = f"{shown_path(self.path)} is the file that is {what}: choose another name"
                raise InputError(message, field=self.option)
        if self._is_foreign():
            raise InputError(f"{shown_path(self.path)} {self._refusal}", field=self.option)

    @contextmanager
    def writing(self) -> Iterator[Path]:
        """Yields a temporary path; puts what is written there in place when the block ends without an error.

        Makes the folders that are missing. What came there since `check_free`, and is foreign, raises FileExistsError
        and stays. On any error all is as it was.
        """
        with naming(self.path):
            if self._is_stream():
                with tempfile.TemporaryDirectory() as folder:
                    yield Path(folder, "file")
                    # A reader that goes away has had enough, as one of standard output.
                    with (
                        suppress(BrokenPipeError),
                        open(Path(folder, "file"), "rb") as made,
                        open(self.path, "wb") as stream,
                    ):
                        shutil.copyfileobj(made, stream)
                return
            folder, temporary = self._file.parent, temporary_path(self._file)
            missing = [each for each in (folder, *folder.parents) if not each.exists()]
            try:
                folder.mkdir(parents=True, exist_ok=True)
                yield temporary
                self._put(temporary)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                for folder in missing:
                    with suppress(OSError):  # somebody else's files are in it
                        folder.rmdir()
                raise

    @property
    def _file(self) -> Path:
        """The path with its links followed, the last one too."""
        return Path(os.path.realpath(self.path))

    @property
    def _refusal(self) -> str:
        return (
            f"is there, and nothing in it says that omnitts wrote it as {self.kind.what}: choose another name, or add "
            "--replace-files"
        )

    def _check_suffix(self) -> None:
        path, endings = Path(self.path), self.kind.suffixes
        if path.name.lower() in endings:
            example = path.with_name(f"NAME{path.name}")
            message = f"{shown_path(path)} is an ending without a name: write {shown_path(example)}"
            raise InputError(message, field=self.option)
        if endings and path.suffix.lower() not in endings:
            message = f"{shown_path(path)} does not end in {' or '.join(endings)}, as {self.kind.what} does"
            raise InputError(message, field=self.option)

    def _is_stream(self) -> bool:
        try:
            mode = os.stat(self.path).st_mode
        except OSError:
            return False
        return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)

    def _is_foreign(self) -> bool:
        return not self.replace and not self.kind.wrote(self._file)

    def _put(self, temporary: Path) -> None:
        """Moves it into place; a link, other than a rename, fails where a file has come meanwhile."""
        if not os.path.lexists(self._file):
            try:
                os.link(temporary, self._file)
                temporary.unlink()
                return
            except FileExistsError:
                pass
            except OSError:  # a file system without hard links
                if not os.path.lexists(self._file):
                    os.replace(temporary, self._file)
                    return
        if self._is_foreign():
            raise FileExistsError(errno.EEXIST, f"it {self._refusal}", self.path)
        os.replace(temporary, self._file)


def writing(path: "str | PathLike | Target") -> AbstractContextManager[Path]:
    """`atomic_path`, or what a target has in its place."""
    return path.writing() if isinstance(path, Target) else atomic_path(path)


def _is_same(path: str, stream: object) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(stream.fileno()))
    except (OSError, ValueError, AttributeError):  # a stream that is closed, or none
        return False

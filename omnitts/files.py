"""Files that appear whole or not at all, and one that only one run at a time writes."""

import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from os import PathLike
from pathlib import Path
from typing import IO

from omnitts.errors import InputError, naming, shown_path

_NAME_BYTES = 255  # that a name in a folder has room for

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


def check_folder(folder: Path, option: str, names: Sequence[str] = ()) -> None:
    """Make the folder that `option` names; raise InputError when files could not be written there.

    names: files to be written that a folder of the same name would keep out.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{shown_path(folder)} is a file: name a folder", field=option)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot write to {shown_path(folder)}: {reason}; choose another folder", field=option
        ) from None
    for name in names:
        if (folder / name).is_dir():
            raise InputError(
                f"{shown_path(folder / name)} is a folder, where a file is to be written: move it", field=option
            )


def sweep(folder: Path) -> None:
    """Remove what `atomic_path` left in a folder, and below, in processes of this machine that were killed."""
    for path in folder.rglob(f".*.tmp-{_host()}-*"):
        process = path.name.rpartition("-")[2]
        if process.isdecimal() and not _is_running(int(process)):
            path.unlink(missing_ok=True)


def temporary_path(path: Path) -> Path:
    """Beside a path, hidden; it names the process, so that `sweep` knows whether anybody still writes there."""
    name, ending = path.name, f".tmp-{_host()}-{os.getpid()}"
    if len(os.fsencode(name)) + len(ending) >= _NAME_BYTES:
        name = hashlib.blake2b(os.fsencode(name), digest_size=16).hexdigest()
    return path.with_name(f".{name}{ending}")


@cache
def _host() -> str:
    """Stands for this machine: folders may be shared by several."""
    return hashlib.blake2b(socket.gethostname().encode(), digest_size=3).hexdigest()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        pass
    return True


@contextmanager
def open_alone(path: Path, option: str) -> Iterator[IO[str]]:
    """Open a file to append to it, unless another process has it open this way: InputError, and it stays as it is.

    The system takes the lock back when a process ends, however it does, so that none is ever left behind. Whoever
    writes has to flush, too: closing tells of no error.
    """
    try:
        # Not "w", which would empty another run's file.
        file = open(path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 (closed below)
    except OSError as error:
        raise InputError(
            f"cannot write {shown_path(path)}: {error.strerror}; choose another folder", field=option
        ) from None
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise another_run(path.parent, option) from None
    except OSError:
        pass  # a file system without locks
    try:
        yield file
    finally:
        with suppress(OSError):
            file.close()


def another_run(folder: Path, option: str) -> InputError:
    """The error of a run into a folder that another one has."""
    return InputError(
        f"another run is writing into {shown_path(folder)}: wait for it, or choose another folder", field=option
    )


def is_open_alone(path: Path) -> bool:
    """Whether a process has the file open by `open_alone`, as far as the file system can tell."""
    if fcntl is None:
        return False
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
    return False


@contextmanager
def atomic_path(path: str | PathLike) -> Iterator[Path]:
    """Yield a hidden temporary path beside `path`; rename it to `path` when the block ends without an error.

    Whoever looks at `path` sees the old file or the whole new one, also when the process is killed half way.
    On an error the temporary file is removed and `path` stays as it was; an OSError then names `path`. The
    process in the temporary name keeps two runs from writing into each other's file.
    """
    path = Path(path)
    temporary = temporary_path(path)
    try:
        with naming(path):
            yield temporary
            os.replace(temporary, path)
    finally:
        with suppress(OSError):  # after a rename there is nothing left to remove
            temporary.unlink()

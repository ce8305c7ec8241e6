"""The standard streams, which may be closed, full, or a pipe that nobody reads any more."""

import io
import os
import sys
from contextlib import suppress


class _Lossy(io.TextIOWrapper):
    """A stream that drops what cannot be written: audio is worth more than a word about it."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


def prepare_streams() -> None:
    """Make stderr one that never fails, and both streams print any file name.

    A stream that is closed (`2>&-`) gets the null device: else a file that is opened later would take its
    descriptor, and with it what libraries print there. Streams that a caller put in place stay as they are.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (open until the process ends)
    elif sys.stderr is sys.__stderr__:
        stderr = sys.stderr
        sys.stderr = _Lossy(stderr.buffer, stderr.encoding, "backslashreplace", line_buffering=True)
    if sys.stdout is not None and sys.stdout is sys.__stdout__:
        sys.stdout.reconfigure(errors="backslashreplace")


def close_stdout() -> None:
    """Give up on stdout after an error: what it still holds would fail once more when Python shuts down."""
    if sys.stdout is not None and sys.stdout is sys.__stdout__:
        with suppress(OSError):
            sys.stdout.close()

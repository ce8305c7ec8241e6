"""What surrounds a command: standard streams that may be gone, signals that end a run, cores shared with others."""

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from omnitts.errors import naming

_STOPS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_PATIENCE = 0.2  # seconds in which a second signal counts as the first one's echo; nobody presses keys that fast
_AGAIN = 0.02  # seconds after which a signal that came at a bad time is sent again


class _Lossy(io.TextIOWrapper):
    """A stream that drops what cannot be written: audio is worth more than a word about it."""

    def write(self, text: str) -> int:
        with suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            super().flush()


class _Named(io.TextIOWrapper):
    """Standard output, whose errors name it as those of files name these; its reader may go away."""

    def write(self, text: str) -> int:
        with naming("standard output"), self._unread():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with naming("standard output"), self._unread():
            super().flush()

    @contextmanager
    def _unread(self) -> Iterator[None]:
        """A reader that goes away, as `head` does, has had enough: what comes after goes nowhere, and is no error."""
        try:
            yield
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)


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
        stdout = sys.stdout
        sys.stdout = _Named(stdout.buffer, stdout.encoding, "backslashreplace", line_buffering=stdout.line_buffering)


def close_stdout() -> None:
    """Give up on stdout after an error: what it still holds would fail once more when Python shuts down."""
    if isinstance(sys.stdout, _Named):
        with suppress(OSError):
            sys.stdout.close()


def stop_on_signals() -> None:
    """Let SIGTERM and SIGHUP end a run as Ctrl-C does: by a KeyboardInterrupt.

    Whoever stops a job often signals twice (the terminal and its shell, a scheduler and its wrapper), and the second
    one shall not break off what the first one started to put in order. What is ignored, as under nohup, stays so.

    Libraries' C++ code may abort the process when an import is interrupted, so that is waited for. Where Python cannot
    raise it, in a callback of the garbage collector, it would only print that it was ignored: the signal is then sent
    once more.
    """
    last, came = -_PATIENCE, 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal last, came
        now = time.monotonic()
        if now - last >= _PATIENCE:
            if _imports(frame):
                _send_again(number)
                return
            last, came = now, number
            raise KeyboardInterrupt

    tell = sys.unraisablehook

    def try_again(unraisable: "sys.UnraisableHookArgs") -> None:
        nonlocal last
        if not (came and issubclass(unraisable.exc_type, KeyboardInterrupt)):
            tell(unraisable)
            return
        last = -_PATIENCE
        _send_again(came)

    sys.unraisablehook = try_again
    for number in _STOPS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None and "importlib._bootstrap" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


def _send_again(number: int) -> None:
    timer = threading.Timer(_AGAIN, signal.raise_signal, [number])
    timer.daemon = True
    timer.start()


class Stopping:
    """Whether a run was asked to stop; `requested` is read between two batches."""

    requested = False


@contextmanager
def stop_gently() -> Iterator[Stopping]:
    """In the block the first signal to stop is a request, and the next one that is no echo, an interrupt."""
    stopping, last = Stopping(), -_PATIENCE

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < _PATIENCE:
            return
        last = now
        if stopping.requested:
            raise KeyboardInterrupt
        stopping.requested = True
        print("\nstopping after the current batch; once more to stop at once", file=sys.stderr)

    before = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        before = {number: signal.getsignal(number) for number in _STOPS}
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, stop)
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore_signals() -> None:
    """For the last moments of a run, whose outcome is settled."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)


def spin_less() -> None:
    """Let torch's threads sleep soon when they wait for each other; to be called before torch is imported.

    OpenMP lets them spin for a millisecond or so. That is quicker by a tenth while all cores are free, but when another
    process has one of them, each step waits for a thread that does not run: 13 times the time was measured.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")

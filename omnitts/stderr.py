"""The process's stderr led nowhere, while a library writes there that cannot be told not to."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

# Held while the process's stderr leads nowhere. Whoever has to be heard while other threads read audio takes it.
stderr_lock = RLock()


@contextmanager
def muted() -> Iterator[None]:
    """Nothing on the process's stderr meanwhile: the MP3 reader inside libsndfile writes there, naming no file."""
    with stderr_lock, _null_stderr():
        yield


@contextmanager
def _null_stderr() -> Iterator[None]:
    try:
        kept = os.dup(2)
    except OSError:  # closed
        yield
        return
    try:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)

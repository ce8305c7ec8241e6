"""Who does the work around the engine: threads when the model runs on a GPU, else the caller itself, in order.

A GPU idles while Python does something else. On a CPU there is nothing to gain: the engine takes all cores.
"""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

_MOST_THREADS = 4  # of a kind
_TURN = 0.0005  # seconds for which a thread may keep Python's lock while the engine waits for it; by default ten times


class InPlace(Executor):
    """Runs what it is given at once; `map` runs each as it is asked for. A KeyboardInterrupt goes to the caller."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future:
        future: Future = Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., Any], *items: Iterable[Any], **_options: Any) -> Iterator[Any]:
        return map(function, *items)


@dataclass(frozen=True)
class Stages:
    """An executor a stage. `stream`: the CUDA stream of the codec, beside the engine's, or None."""

    threaded: bool
    readers: Executor  # of references
    preparer: Executor  # one window ahead
    decoder: Executor
    finishers: Executor  # post-processing, files
    stream: torch.cuda.Stream | None = None
    turn: float = field(default_factory=sys.getswitchinterval)  # as it was before

    def on_stream(self) -> AbstractContextManager:
        """What the thread that enters it does on a GPU goes to the codec's stream."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def close(self) -> None:
        """Drops what has not begun and waits for what has. The readers first: the preparer waits for them."""
        for executor in (self.readers, self.preparer, self.decoder, self.finishers):
            executor.shutdown(wait=True, cancel_futures=True)
        sys.setswitchinterval(self.turn)


def in_place() -> Stages:
    one = InPlace()
    return Stages(False, one, one, one, one)


def on_threads(stream: torch.cuda.Stream | None) -> Stages:
    several = max(2, min(_MOST_THREADS, os.cpu_count() or 1))
    readers, preparer, decoder, finishers = (
        ThreadPoolExecutor(count, thread_name_prefix=f"omnitts-{name}")
        for name, count in (("read", several), ("prepare", 1), ("decode", 1), ("finish", several))
    )
    stages = Stages(True, readers, preparer, decoder, finishers, stream)
    sys.setswitchinterval(_TURN)
    return stages


def stages_for(device: torch.device) -> Stages:
    if device.type == "cpu":
        return in_place()
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))  # on which the weights were loaded
    return on_threads(stream)

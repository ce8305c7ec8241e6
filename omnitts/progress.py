"""How far a run is, on stderr: a bar on a terminal, a line now and then in a log."""

import sys
import time
from typing import Any, Protocol

from tqdm import tqdm

from omnitts.model.duration import FRAME_RATE
from omnitts.pipeline import Progress
from omnitts.stderr import stderr_lock
from omnitts.summary import Totals

LOG_SECONDS = 30


class _SecondsBar(tqdm):
    """tqdm counts in floats here; shows them with one decimal, and "?" until the total is known."""

    @property
    def format_dict(self) -> dict[str, Any]:
        values = super().format_dict
        total = values["total"]
        values.update(done=f"{values['n']:.1f}", all="?" if total is None else f"{total:.1f}")
        return values


class Reporter(Progress, Protocol):
    """Shows a run's progress on stderr."""

    def skipped(self) -> None:
        """An utterance needs nothing to be done."""

    def finished(self, totals: Totals) -> None:
        """An utterance ended."""

    def close(self) -> None: ...


def reporter(utterances: int, *, quiet: bool) -> Reporter:
    """A bar on a terminal; elsewhere, as in a log file, a line now and then; nothing when quiet."""
    if quiet or sys.stderr.isatty():
        return Bar(utterances, quiet=quiet)
    return Log(utterances)


class Goal:
    """Seconds of audio to make: what comes after the planned windows is taken to be like what has been seen."""

    def __init__(self, utterances: int):
        self._utterances = utterances
        self._planned_utterances = 0
        self._planned_seconds = 0.0

    def skipped(self) -> None:
        self._utterances -= 1

    def planned(self, utterances: int, frames: int) -> float:
        self._planned_utterances += utterances
        self._planned_seconds += frames / FRAME_RATE
        return self._planned_seconds * self._utterances / self._planned_utterances


class Log:
    """Progress for a file: plain lines, LOG_SECONDS apart, and none in a short run."""

    def __init__(self, utterances: int):
        self._goal = Goal(utterances)
        self._total = 0.0
        self._done = 0.0
        self._start = self._told = time.monotonic()

    def skipped(self) -> None:
        self._goal.skipped()

    def prepared(self, utterances: int, of: int) -> None:
        if utterances < of:
            self._tell(f"references {utterances} of {of}")

    def planned(self, utterances: int, frames: int) -> None:
        self._total = self._goal.planned(utterances, frames)

    def advanced(self, frames: float) -> None:
        self._done = min(self._done + frames / FRAME_RATE, self._total)
        if self._done:
            elapsed = time.monotonic() - self._start
            left = tqdm.format_interval(elapsed * (self._total - self._done) / self._done)
            factor = f"real-time factor {elapsed / self._done:.3f}"
            self._tell(f"{self._done:.0f} of {self._total:.0f} s of audio, {factor}, {left} left")

    def finished(self, totals: Totals) -> None:
        pass

    def close(self) -> None:
        pass

    def _tell(self, message: str) -> None:
        now = time.monotonic()
        if now - self._told >= LOG_SECONDS:
            self._told = now
            with stderr_lock:
                print(f"progress: {message}", file=sys.stderr, flush=True)


class Bar:
    """The progress bar: seconds of audio made, of those to make, with the running real-time factor."""

    def __init__(self, utterances: int, *, quiet: bool):
        self._goal = Goal(utterances)
        self._bar = _SecondsBar(
            disable=quiet,
            dynamic_ncols=True,
            bar_format="{l_bar}{bar}| {done}/{all} s of audio [{elapsed}<{remaining}{postfix}]",
        )
        self._start = time.monotonic()

    def skipped(self) -> None:
        self._goal.skipped()

    def prepared(self, utterances: int, of: int) -> None:
        """A reference was made ready, or there was none to make ready."""
        self._bar.set_description("" if utterances == of else f"references {utterances}/{of}", refresh=False)
        self._bar.update(0)

    def planned(self, utterances: int, frames: int) -> None:
        self._bar.total = self._goal.planned(utterances, frames)
        self._bar.refresh()

    def advanced(self, frames: float) -> None:
        # Never past the end: the sum of many steps is off in its last digits, and a step may have to be done again.
        left = self._bar.total - self._bar.n
        self._bar.update(min(frames / FRAME_RATE, left))

    def finished(self, totals: Totals) -> None:
        """An utterance ended: shows the running real-time factor and the failures."""
        elapsed = time.monotonic() - self._start
        shown = {"rtf": f"{elapsed / self._bar.n:.3f}"} if self._bar.n else {}
        if totals.failed:
            shown["failed"] = str(totals.failed)
        self._bar.set_postfix(shown, refresh=False)

    def close(self) -> None:
        self._bar.close()

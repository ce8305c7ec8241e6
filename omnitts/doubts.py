"""What in a line can be voiced, but is hardly meant: lengths no speech has, and words that are no words.

Each doubt is a warning; none of them keeps a line from being made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from omnitts.clips import speed_of
from omnitts.errors import shown_path
from omnitts.model.duration import FRAME_RATE, estimate_frames, estimate_seconds
from omnitts.model.markup import find_oddities
from omnitts.model.spoken import weighed_text
from omnitts.recipe import shown

if TYPE_CHECKING:
    from omnitts.manifest import Utterance

LONG_REFERENCE = 30.0  # seconds from which one is warned of
LONG_FILE = 3600.0
_ODD_HASTE = 5  # times faster than usual
_ODD_SLOWNESS = 3  # times slower: slow speech is up to 2.5 times, in any script
_STILLNESS = 1.5  # seconds around the words, as a recording of one word may have: they are trimmed off later
_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Doubt:
    """A warning about a field. Of a kind that many lines have, the first is told, with their number."""

    field: str
    message: str
    kind: str


def reference_doubts(path: str, seconds: float, ref_text: str) -> Iterator[tuple[str, str]]:
    """What makes a poor reference of a recording and its transcript, as (field, warning)."""
    if seconds > LONG_REFERENCE:
        yield (
            "ref_audio",
            f"{seconds:.0f} s long: {shown_path(path)}; 3 to 10 s serve best, and every further second slows the work",
        )
    spoken = estimate_seconds(ref_text)
    if _too_slow(seconds, spoken) or (spoken > 2 and _too_fast(seconds, spoken)):
        pace = f"would take about {_told(spoken)} s to say, but {shown_path(path)} lasts {seconds:.1f} s"
        yield "ref_text", f"{pace}: are these the words in it? Speech is made at the pace of the two"


def text_doubts(text: str) -> Iterator[Doubt]:
    """What in a text will be read out though it was meant as a sign, and signs that files were joined badly."""
    for odd in find_oddities(text):
        yield Doubt("text", f"{shown(odd.written)} is read out as it is written: {odd.mend}", odd.kind)
    if _BYTE_ORDER_MARK in text:
        yield Doubt(
            "text",
            "a byte-order mark stands in it and is left out: were two files joined without a line break between?",
            "mark",
        )


def length_doubts(utterance: "Utterance", seconds: float) -> Iterator[Doubt]:
    """What is odd about how long an utterance is to be; `seconds` is its whole length, as planned."""
    duration, speed = utterance.duration, speed_of(utterance)
    if duration is not None:
        spoken = estimate_frames(weighed_text(utterance.text)) / FRAME_RATE  # a lone word is spoken slower
        if _too_slow(duration, spoken):
            fits = not _too_slow(duration / 1000, spoken) and not _too_fast(duration / 1000, spoken)
            mend = f"milliseconds meant? Then write {duration / 1000:g}" if fits else "leave it out for the usual pace"
            yield Doubt("duration", f"{duration:g} s for words that take about {_told(spoken)} s: {mend}", "too slow")
        elif _too_fast(duration, spoken):
            mend = "nobody speaks so fast; leave it out for the usual pace"
            yield Doubt("duration", f"{duration:g} s for words that take about {_told(spoken)} s: {mend}", "too fast")
    elif not 1 / _ODD_SLOWNESS <= speed <= _ODD_HASTE:
        field = "speed" if utterance.speed is not None else "recipe.speed"
        yield Doubt(
            field, f"{speed:g} times the usual pace, at which nobody speaks: 1 is usual, 2 twice as fast", field
        )
    if seconds > LONG_FILE:
        yield Doubt(
            "text",
            f"about {seconds / 3600:.1f} hours in one file, which is written when all of it is done: cut it into "
            "lines, and a run that ends midway can go on",
            "long",
        )


def _too_slow(seconds: float, spoken: float) -> bool:
    return seconds > _STILLNESS + _ODD_SLOWNESS * spoken


def _too_fast(seconds: float, spoken: float) -> bool:
    return spoken > seconds * _ODD_HASTE


def _told(seconds: float) -> str:
    return f"{seconds:.{0 if seconds >= 10 else 1}f}"

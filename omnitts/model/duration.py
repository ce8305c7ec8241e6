"""How many frames a text takes: a weight for each character, scaled by the pace of a reference.

Rule and numbers: OmniVoice decoder. Frames are 1/25 s. The rule takes every character into account; what is not spoken
is left out before, see `weighed_text`.
"""

import functools
import unicodedata
from bisect import bisect_left
from importlib.resources import files

from omnitts.model.spoken import weighed_text

FRAME_RATE = 25  # frames a second

# The pace without a reference: this sentence in one second.
_DEFAULT_TEXT = "Nice to meet you."
_DEFAULT_FRAMES = 25

_SHORT_FRAMES = 50  # shorter estimates are drawn towards this: a word on its own is spoken slower

_CATEGORY_WEIGHTS = {"M": 0.0, "P": 0.5, "S": 0.5, "Z": 0.2, "N": 3.5}  # by the category's first letter
_TATWEEL = "\u0640"  # lengthens a written word, not the spoken one


def estimate_frames(text: str, ref_text: str | None = None, ref_frames: int | None = None, speed: float = 1.0) -> int:
    """Frames for `text` at the pace of the reference, at least 1; `speed` 2.0 halves them.

    Without a reference, or with one whose text has no weight (an empty transcript), a fixed pace is taken.
    """
    ref_weight = text_weight(ref_text or "")
    if not ref_weight or not ref_frames:
        ref_weight, ref_frames = _default_weight(), _DEFAULT_FRAMES
    # Not weight * frames / weight: the order of rounding decides whether a whole number is truncated.
    frames = text_weight(text) / (ref_weight / ref_frames)
    if frames < _SHORT_FRAMES:
        frames = _SHORT_FRAMES * (frames / _SHORT_FRAMES) ** (1 / 3)
    return max(1, int(frames / speed))


def estimate_seconds(text: str) -> float:
    """How long what is spoken of `text` takes to say, at the pace that is usual without a reference."""
    return text_weight(weighed_text(text)) / _default_weight() * _DEFAULT_FRAMES / FRAME_RATE


def frames_for(
    text: str,
    *,
    ref_text: str | None = None,
    ref_frames: int | None = None,
    speed: float = 1.0,
    duration: float | None = None,
) -> int:
    """Frames to generate for `text`: `duration` in seconds when given, else the estimate at `speed`."""
    if duration is not None:
        return max(1, int(duration * FRAME_RATE))
    return estimate_frames(text, ref_text, ref_frames, speed)


def text_weight(text: str) -> float:
    """How long `text` takes to say, where an ASCII letter takes 1."""
    # Added one by one: sum() compensates its rounding from Python 3.12 on, and the last digit decides here.
    total = 0.0
    for weight in map(_char_weight, text):
        total += weight
    return total


@functools.cache
def _default_weight() -> float:
    return text_weight(_DEFAULT_TEXT)


@functools.cache
def _char_weight(char: str) -> float:
    if char == _TATWEEL:
        return 0.0
    by_category = _CATEGORY_WEIGHTS.get(unicodedata.category(char)[0])
    if by_category is not None:
        return by_category
    last_code_points, weights = _script_weights()
    block = bisect_left(last_code_points, ord(char))
    if block < len(weights):
        return weights[block]
    return 3.0 if ord(char) > 0x20000 else 1.0  # rarer CJK ideographs; any other script


@functools.cache
def _script_weights() -> tuple[list[int], list[float]]:
    """The last code point of each block of scripts, ascending, and the weight of its letters."""
    rows = files("omnitts.model").joinpath("data/script_weights.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [row.split("\t") for row in rows if not row.startswith("#")]
    return [int(last, 16) for last, _ in pairs], [float(weight) for _, weight in pairs]

"""Long text in pieces: split after punctuation, merge neighbours up to a length.

A text is never copied until its pieces are known: sentences and chunks are cut positions in it, so that no
character can get lost and the time is linear in its length.
"""

import re
from itertools import pairwise

from omnitts.model.duration import FRAME_RATE

_SPLIT_MARKS = ".,;:!?。，；：！？"
# Opening quotes are in the list, and the ASCII ")" is not, because the OmniVoice decoder has it so.
_CLOSING_MARKS = "\"'“”‘’）]》>」】"
_SPLIT = re.compile(f"[{re.escape(_SPLIT_MARKS)}]")
_JOINED_MARKS = re.compile(f"[{re.escape(_SPLIT_MARKS + _CLOSING_MARKS)}]*")

# "i.e." and "e.g." have no effect, as their first full stop has already ended a sentence.
_ABBREVIATED = """
Mr. Mrs. Ms. Dr. Prof. Sr. Jr. Rev. Fr. Hon. Pres. Gov. Capt. Gen. Sen. Rep. Col. Maj. Lt. Cmdr. Sgt. Cpl. Co.
Corp. Inc. Ltd. Est. Dept. St. Ave. Blvd. Rd. Mt. Ft. No. Jan. Feb. Mar. Apr. Aug. Sep. Sept. Oct. Nov. Dec.
i.e. e.g. vs. Vs. Etc. approx. fig. def.
"""
_ABBREVIATIONS = frozenset(_ABBREVIATED.split())
_LONGEST_ABBREVIATION = max(map(len, _ABBREVIATIONS))

_MIN_CHUNK = 3  # characters, the white space around them included


def chunk_text(text: str, chunk_len: int) -> list[str]:
    """Split `text` after punctuation into pieces of at most `chunk_len` characters where sentences allow it.

    A sentence longer than `chunk_len` stays whole: without punctuation there is nowhere to breathe. Pieces
    are stripped and blank ones left out, so that only white space can get lost. Algorithm: OmniVoice decoder.
    """
    cuts = [0]
    sentence = 0
    for end in _sentence_ends(text):
        if end - cuts[-1] > chunk_len and sentence > cuts[-1]:
            cuts.append(sentence)
        sentence = end
    cuts.append(len(text))
    pieces = (text[start:end].strip() for start, end in pairwise(_without_slivers(cuts)))
    return [piece for piece in pieces if piece]


def chunk_length(text: str, frames: int, seconds: float) -> int:
    """Characters that take about `seconds`, at the pace of a text that is estimated at `frames` frames."""
    return int(seconds * FRAME_RATE / (frames / len(text)))


def _sentence_ends(text: str) -> list[int]:
    """Where each sentence of `text` ends; together they cover it."""
    ends = []
    start = 0
    for mark in _SPLIT.finditer(text):
        end = mark.end()
        if end <= start or _ends_in_abbreviation(text, start, end):
            continue
        # Marks that would open the next sentence belong to this one: "...", "?!", '."'.
        start = _JOINED_MARKS.match(text, end).end()
        ends.append(start)
    if start < len(text):
        ends.append(len(text))
    return ends


def _ends_in_abbreviation(text: str, start: int, end: int) -> bool:
    # One character more than the longest: a longer word cannot then be taken for an abbreviation by its tail.
    tail = text[max(start, end - _LONGEST_ABBREVIATION - 1) : end]
    return tail.split()[-1] in _ABBREVIATIONS


def _without_slivers(cuts: list[int]) -> list[int]:
    """Drop the cut before each piece that is too short to speak, and the one after a first such piece."""
    kept = [
        cut
        for index, (cut, after) in enumerate(pairwise(cuts[1:]))
        if after - cut >= _MIN_CHUNK and not (index == 0 and cut < _MIN_CHUNK)
    ]
    return [0, *kept, cuts[-1]]

"""Long text in pieces: at the ends of sentences where that can be, else of clauses, else of words.

`split_text` is what is spoken. `chunk_text` is the published decoder's rule, which knows no difference between a full
stop, a comma and the point in a number: what the decoder's own vectors hold. The two give the same pieces unless the
published ones end at a clause though a sentence would have fitted, inside a token or behind an abbreviation, or have
marks of other scripts in them, or stay whole for want of marks.

A text is never copied until its pieces are known: sentences and chunks are cut positions in it, so that no
character can get lost and the time is linear in its length.
"""

import re
from bisect import bisect_right
from itertools import pairwise

from omnitts.model.duration import FRAME_RATE
from omnitts.model.sentences import Ends, find_ends, last_gap, next_gap

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


def split_text(text: str, chunk_len: int, longest: int) -> list[str]:
    """Split `text` into pieces of at most `chunk_len` characters, where its sentences allow it.

    A piece ends with a sentence. One that is too long is parted at its clauses; what then is longer than `longest`
    characters, between its words, and never inside one. Pieces are stripped and blank ones left out, so that only
    white space can get lost.
    """
    ends = find_ends(text)
    cuts = [0]
    while cuts[-1] < len(text):
        cuts.append(_next_cut(text, ends, cuts[-1], chunk_len, max(chunk_len, longest)))
    return _pieces(text, cuts)


def chunk_text(text: str, chunk_len: int) -> list[str]:
    """The pieces of `text` by the rule of the OmniVoice decoder: split after punctuation, merged up to `chunk_len`.

    A sentence longer than `chunk_len` characters stays whole. Pieces are stripped and blank ones left out.
    """
    cuts = [0]
    sentence = 0
    for end in _sentence_ends(text):
        if end - cuts[-1] > chunk_len and sentence > cuts[-1]:
            cuts.append(sentence)
        sentence = end
    cuts.append(len(text))
    return _pieces(text, cuts)


def chunk_length(text: str, frames: int, seconds: float) -> int:
    """Characters that take about `seconds`, at the pace of a text that is estimated at `frames` frames."""
    return int(seconds * FRAME_RATE / (frames / len(text)))


def _next_cut(text: str, ends: Ends, start: int, chunk_len: int, longest: int) -> int:
    """Where the piece that begins at `start` ends."""
    reach = start + chunk_len
    sentence = _last_of(ends.sentences, start, reach)
    clause = _last_of(ends.clauses, start, reach)
    if sentence is not None:
        # A short sentence takes clauses of the next along if that one is parted anyway.
        alone = _first_of(ends.sentences, sentence, len(text)) - sentence <= chunk_len
        return sentence if clause is None or alone or 2 * (sentence - start) >= chunk_len else max(sentence, clause)
    if clause is None:
        clause = _last_of(ends.list_items, start, reach)
    if clause is not None:
        return clause
    mark = min(_first_of(some, start, len(text)) for some in (ends.sentences, ends.clauses, ends.list_items))
    if mark - start <= longest:
        return mark
    return last_gap(text, start, reach) or min(mark, next_gap(text, max(start, reach)))


def _last_of(places: list[int], start: int, reach: int) -> int | None:
    """The last of the ascending `places` above `start` and up to `reach`."""
    index = bisect_right(places, reach) - 1
    return places[index] if index >= 0 and places[index] > start else None


def _first_of(places: list[int], start: int, otherwise: int) -> int:
    """The first of the ascending `places` above `start`."""
    index = bisect_right(places, start)
    return places[index] if index < len(places) else otherwise


def _pieces(text: str, cuts: list[int]) -> list[str]:
    pieces = (text[start:end].strip() for start, end in pairwise(_without_slivers(cuts)))
    return [piece for piece in pieces if piece]


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

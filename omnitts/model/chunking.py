"""Long text in pieces: at the ends of sentences where that can be, else of clauses, else of words.

The published decoder knows no difference between a full stop, a comma and the point in a number. Its pieces are the
same unless they end at a clause though a sentence would have fitted, inside a token or behind an abbreviation, or have
marks of other scripts in them, or stay whole for want of marks.

A text is never copied until its pieces are known: sentences and chunks are cut positions in it, so that no
character can get lost and the time is linear in its length.
"""

from bisect import bisect_right
from itertools import pairwise

from omnitts.model.duration import FRAME_RATE
from omnitts.model.sentences import Ends, find_ends, last_gap, next_gap

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
    return pieces_between(text, cuts)


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


def pieces_between(text: str, cuts: list[int]) -> list[str]:
    """The stripped pieces of `text` between ascending `cuts`, from 0 to its end; slivers join a neighbour."""
    pieces = (text[start:end].strip() for start, end in pairwise(_without_slivers(cuts)))
    return [piece for piece in pieces if piece]


def _without_slivers(cuts: list[int]) -> list[int]:
    """Drop the cut before each piece that is too short to speak, and the one after a first such piece."""
    kept = [
        cut
        for index, (cut, after) in enumerate(pairwise(cuts[1:]))
        if after - cut >= _MIN_CHUNK and not (index == 0 and cut < _MIN_CHUNK)
    ]
    return [0, *kept, cuts[-1]]

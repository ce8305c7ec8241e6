"""The published decoder's rule for long texts, as its vectors have it: what ours is compared with."""

import re

from omnitts.model.chunking import pieces_between

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
    return pieces_between(text, cuts)


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

"""Where in a text a reader can pause: the ends of its sentences and clauses, and the gaps between its words.

Marks are those of all scripts (Unicode). A mark inside a token without blanks, such as a number, a time or an address,
ends nothing, and neither does the full stop of an abbreviation or an initial.
"""

import functools
import re
import unicodedata
from dataclasses import dataclass, field
from importlib.resources import files

from omnitts.model.spoken import is_cjk
from omnitts.model.text import TAGS

# These also stand inside of tokens: they need a blank behind them, or ideographs around them.
_LATIN_MARKS = frozenset(".,;:!?…")
# The full-width forms do so in addresses and times between letters and digits, others between digits alone.
_WIDE_POINTS = frozenset("．：")
# The comma of lists: a text that has other commas has better places. Japanese has no other.
_LIST_MARKS = frozenset("、､")

# Closing marks stay with what they close; some languages close with what others open with.
_CLOSERS = "\"'“”‘’«»‹›)]}）】》〉」』］｝"
_OPENERS = "\"'“”‘’„‚«»‹›([{¿¡（【《〈「『［｛—–-"
_TAG = re.compile(rf"\[(?:{'|'.join(TAGS)})\]")
_BEFORE_WORD = re.compile(rf"(?:\s|{_TAG.pattern}|[{re.escape(_OPENERS)}])*")

_BLANKS = re.compile(r"\s*")
_LAST_WORD = re.compile(rf"[^\s{re.escape(_OPENERS)}/,;:!?…]*$")
_LONGEST_WORD = 24  # characters: what is longer is no abbreviation
_DOTTED = re.compile(r"[^\W\d_]|(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}")  # J, U.S, i.e, z.B, Ph.D
_HOURS = frozenset(("a.m", "p.m", "A.M", "P.M"))  # a sentence may well end in these

_LONGEST_BRACKET = 64  # characters: one that was opened further back is never closed
_GOES_ON = frozenset("ぁぃぅぇぉっゃゅょゎァィゥェォッャュョヮヵヶーｰ々ゝゞヽヾ")  # begins no word
_KATAKANA = re.compile("[ァ-ヿㇰ-ㇿｦ-ﾟ]")
_WORD_BREAK = "\u200b"  # the zero-width space of scripts that have no other


@dataclass(frozen=True)
class Ends:
    """Positions in a text, ascending, at which a piece of it may end, by what ends there."""

    sentences: list[int] = field(default_factory=list)  # the end of the text is the last
    clauses: list[int] = field(default_factory=list)
    list_items: list[int] = field(default_factory=list)


def find_ends(text: str) -> Ends:
    """The ends of sentences and clauses in `text`, each behind its marks and what closes with them."""
    ends = Ends()
    one_case = text.islower()  # then the case of what follows a full stop says nothing
    sentence = 0  # where it begins
    for run in _mark_runs().finditer(text):
        marks = run[1].rstrip(_CLOSERS)
        if not _ends_token(text, run, marks) or (marks == "." and _is_part_of_word(text, sentence, run.start())):
            continue
        end, mark = run.end(), marks[-1]
        if mark in _LIST_MARKS:
            ends.list_items.append(end)
        elif mark not in _sentence_marks() or (
            mark in _LATIN_MARKS and not one_case and _next_letter(text, end).islower()
        ):
            ends.clauses.append(end)
        else:
            ends.sentences.append(end)
            sentence = end
    if sentence < len(text):
        ends.sentences.append(len(text))
    return ends


def last_gap(text: str, start: int, stop: int) -> int | None:
    """The last position above `start` and up to `stop` at which a word ends, if there is one."""
    return next((place for place in range(min(stop, len(text) - 1), start, -1) if _is_gap(text, place)), None)


def next_gap(text: str, start: int) -> int:
    """The first position above `start` at which a word ends; the end of the text is one."""
    return next((place for place in range(start + 1, len(text)) if _is_gap(text, place)), len(text))


# --- Marks -----------------------------------------------------------------------------------------------


@functools.cache
def _terminal_marks() -> dict[str, str]:
    """Every mark at which a sentence or a clause can end -> which of them."""
    rows = files("omnitts.model").joinpath("data/terminal_marks.tsv").read_text(encoding="utf-8").splitlines()
    pairs = [row.split("\t") for row in rows if not row.startswith("#")]
    return {chr(int(code, 16)): kind for code, kind in pairs} | {"…": "sentence"}  # as "..." does


@functools.cache
def _sentence_marks() -> frozenset[str]:
    return frozenset(mark for mark, kind in _terminal_marks().items() if kind == "sentence")


@functools.cache
def _mark_runs() -> re.Pattern[str]:
    """Marks with what closes behind them, as group 1; also behind a space, as French quotes are closed."""
    marks, closers = re.escape("".join(_terminal_marks())), re.escape(_CLOSERS)
    return re.compile(rf"((?:[{marks}]+[{closers}]*)+)(?:\s[»›](?=\s|$))?")


def _ends_token(text: str, run: re.Match[str], marks: str) -> bool:
    """Whether a run of marks stands at the end of a word, and not inside a number, a time, an address."""
    before, after = text[max(run.start() - 1, 0) : run.start()], text[run.end() : run.end() + 1]
    if not after or after.isspace() or _TAG.match(text, run.end()):
        return True
    if all(mark in _LATIN_MARKS or mark in _CLOSERS for mark in marks):
        return bool(before) and is_cjk(before) and is_cjk(after) and not (_is_plain(before) and _is_plain(after))
    if marks in _WIDE_POINTS:
        return not (_is_plain(before) and _is_plain(after))
    return not (before.isnumeric() and after.isnumeric())


def _is_plain(char: str) -> bool:
    """Whether a character is an ASCII letter or digit, or a full-width one."""
    return unicodedata.normalize("NFKC", char).isascii() and char.isalnum()


def _is_part_of_word(text: str, sentence: int, stop: int) -> bool:
    """Whether the full stop at `stop` belongs to an abbreviation, an initial or the number of a list's item."""
    word = _LAST_WORD.search(text, max(sentence, stop - _LONGEST_WORD), stop)[0]
    if word in _abbreviations() or (_DOTTED.fullmatch(word) and word not in _HOURS and not is_cjk(word[0])):
        return True
    return word.isdecimal() and _BLANKS.match(text, sentence).end() == stop - len(word)


@functools.cache
def _abbreviations() -> frozenset[str]:
    rows = files("omnitts.model").joinpath("data/abbreviations.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(word for row in rows if not row.startswith("#") for word in row.split())


def _next_letter(text: str, end: int) -> str:
    """What comes after `end`, behind spaces, tags and opening marks; "" at the end of the text."""
    begin = _BEFORE_WORD.match(text, end).end()
    return text[begin : begin + 1]


# --- Gaps ------------------------------------------------------------------------------------------------


def _is_gap(text: str, place: int) -> bool:
    """Whether a word ends before `place`: at white space, or between two characters that are written without."""
    before, after = text[place - 1], text[place]
    if before == _WORD_BREAK:
        return True
    if not after.isspace():
        return _may_part(before, after)
    following = text[place + 1 : place + 2]
    return not (
        before.isspace()
        or (before.isdecimal() and following.isdecimal())  # 10 000
        or (before == "." and _is_part_of_word(text, max(place - 1 - _LONGEST_WORD, 0), place - 1))
        or _in_bracket(text, place)
    )


def _may_part(before: str, after: str) -> bool:
    """Whether a word may end between two neighbours: both CJK letters, and not surely parts of one word."""
    if not (is_cjk(before) and is_cjk(after) and before.isalpha() and after.isalpha()):
        return False
    one_word = after in _GOES_ON or (_KATAKANA.match(before) and _KATAKANA.match(after))
    return not one_word and not (_is_plain(before) and _is_plain(after))


def _in_bracket(text: str, place: int) -> bool:
    """Whether `place` lies in a bracket, as the spaces between phones do."""
    since = max(place - _LONGEST_BRACKET, 0)
    return text.rfind("[", since, place) > text.rfind("]", since, place)

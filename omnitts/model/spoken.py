"""What is spoken of a text: the raw text without what makes no sound. Prompts and lengths both begin with it.

The published OmniVoice decoder takes texts as they are: it weighs every blank and every zero-width character, and
drops line breaks with no space in their place. Here these come out as a reader sees them, so that lengths and prompts
depart from the published ones on such texts. All others, of any script, come out as they went in, but for white space
at their ends, and are spoken as published.
"""

import functools
import re
import unicodedata
from collections.abc import Iterator
from itertools import groupby

# Controls, characters that Unicode lets be ignored where they cannot be shown, annotations, private use, and code
# points that are no characters. Not the variation selectors among them: these weigh nothing, and belong to emoji.
_UNSPEAKABLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u061c\u115f\u1160\u200e\u200f\u202a-\u202e\u2060-\u206f\ufdd0-\ufdef\ufeff"
    "\ufff0-\ufffc\ufffe\uffff\ue000-\uf8ff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff"
    "\U000e01f0-\U0010ffff]+"
)

# Joiners (ZWSP, ZWNJ, ZWJ, the Mongolian vowel separator) are part of the spelling in the scripts from Arabic to
# Myanmar, from Tagalog to Mongolian and so on: there one of them stays, behind a letter or a mark.
_JOINERS = "\u180e\u200b-\u200d"
_ANY_JOINER = re.compile(f"[{_JOINERS}]")
_STRAY_JOINER = re.compile(
    "(?<![\u0600-\u109f\u1700-\u180d\u180f-\u1cff\ua800-\uabff\ufb50-\ufdff\ufe70-\ufefe\U00010a00-\U00011fff"
    rf"\U0001e900-\U0001e95f])[{_JOINERS}]"
)

# The blank letters of Hangul and Braille are read as spaces. A single space of any width stays what it is.
_BLANK = r"[\s\u2800\u3164\uffa0]"
_LINE_BREAK = re.compile(r"[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
_ODD_BLANKS = re.compile(rf"{_BLANK}{{2,}}|[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029\u2800\u3164\uffa0]")
_CJK = re.compile(
    r"[\u2e80-\u303f\u3041-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\ufe30-\ufe4f"
    r"\uff01-\uff9f\U00020000-\U0003ffff]"
)

# Combining marks and joiners are among what is neither word nor blank: which are which, is seen in each run.
_MARK = r"(?:[^\w\s]|_)"
_MARKS = re.compile(rf"{_MARK}(?:\s?{_MARK}){{4,}}")
_MARK_AND_BLANK = re.compile(rf"\s?{_MARK}")
_MOST_ALIKE = 4  # "...." is an ellipsis and a full stop
_MOST_AT_EACH_END = 4


@functools.lru_cache(maxsize=4)  # a line's text is asked for several times in a row
def spoken_text(text: str) -> str:
    """`text` without what cannot be spoken, and with single spaces; ordinary texts come out as they are, stripped.

    - White space: a run of it is one space, as is a single line break or tab; none is left where a line breaks
      between two CJK characters, nor at the ends.
    - Zero-width characters, controls and private use go. A joiner that belongs to a word's spelling, as in Persian,
      Hindi or Khmer, stays; `weighed_text` leaves it out.
    - Runs of punctuation and symbols, with or without single spaces between: of one mark up to four stay, of a run of
      over eight the first and the last four.
    """
    text = _STRAY_JOINER.sub("", _UNSPEAKABLE.sub("", text))
    return _MARKS.sub(_shortened, _ODD_BLANKS.sub(_one_blank, text).strip())


def weighed_text(text: str) -> str:
    """What a text's length is estimated from: what is spoken of it, without joiners, which take no time."""
    return _ANY_JOINER.sub("", spoken_text(text))


def is_cjk(char: str) -> bool:
    """Whether a character is of those that are written without spaces: ideographs, kana, bopomofo, and their marks."""
    return _CJK.match(char) is not None


def _one_blank(run: re.Match[str]) -> str:
    start, end = run.span()
    around = run.string[max(start - 1, 0) : start], run.string[end : end + 1]
    return "" if all(map(is_cjk, around)) and _LINE_BREAK.search(run[0]) else " "


def _shortened(run: re.Match[str]) -> str:
    return "".join(
        part
        for audible, marks in groupby(_units(run[0]), key=_has_letter)
        for part in (marks if audible else _few(list(marks)))
    )


def _units(run: str) -> Iterator[str]:
    """Each mark of a run, with the space before it and what combines with it."""
    unit = ""
    for part in _MARK_AND_BLANK.findall(run):
        if unit and (unicodedata.category(part[-1])[0] == "M" or _ANY_JOINER.match(part[-1])):
            unit += part
        else:
            if unit:
                yield unit
            unit = part
    yield unit


def _has_letter(unit: str) -> bool:
    """Whether a symbol stands for letters or digits, as ⓗ and ℃ do, or combines with a letter before the run."""
    symbol = unit.strip()
    return unicodedata.category(symbol[0])[0] == "M" or any(map(str.isalnum, unicodedata.normalize("NFKC", symbol)))


def _few(units: list[str]) -> list[str]:
    alike = (list(same)[:_MOST_ALIKE] for _, same in groupby(units, key=str.strip))
    kept = [unit for same in alike for unit in same]
    most = 2 * _MOST_AT_EACH_END
    return kept if len(kept) <= most else kept[:_MOST_AT_EACH_END] + kept[-_MOST_AT_EACH_END:]

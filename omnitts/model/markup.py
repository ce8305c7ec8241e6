"""What in a text looks like a tag, or like markup of another program, but is none here: it is read out as letters."""

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape

from omnitts.model.text import TAGS

# What other programs and transcripts call the same sounds.
_SYNONYMS = {
    **dict.fromkeys(("laugh", "laughs", "laughing", "laughed", "chuckle", "chuckles", "giggle", "giggles"), "laughter"),
    **dict.fromkeys(("haha", "lol", "笑", "笑声", "笑聲", "笑い", "大笑"), "laughter"),
    **dict.fromkeys(("sighs", "sighing", "sighed", "叹气", "嘆氣", "叹息", "ため息"), "sigh"),
    **dict.fromkeys(("gasp", "gasps"), "surprise-oh"),
}
# In square brackets these are tags without their ending; in others they may be words as any.
_BEGINNINGS = {
    "question": "question-en",
    "confirmation": "confirmation-en",
    "surprise": "surprise-oh",
    "surprised": "surprise-oh",
    "dissatisfaction": "dissatisfaction-hnn",
}
_NEAR = 0.7  # by difflib: a letter or two

# CMU phones, or pinyin with a tone, in upper case: these are read as they are meant.
_PHONES = re.compile(r"[A-Z]{1,2}[0-2]?(?: [A-Z]{1,2}[0-2]?)*|[A-Z]+[1-5]")
_BRACKET = re.compile(r"\[\s*([^\W\d][^\[\]\n]{0,31}?)\s*\]")
_MOST_WORDS = 3  # in a bracket that was meant for a tag
_ENCLOSED = re.compile(
    r"(?:[(（{【〈《<]|(?<!\w)\*{1,2}|(?<!\w)_)\s*/?([^\W\d_][\w -]{0,20}?)\s*/?(?:[)）}】〉》>]|\*{1,2}(?!\w)|_(?!\w))"
)
_ATTRIBUTE = r"""\s+[\w:.-]+\s*=\s*(?:"[^"<>]*"|'[^'<>]*')"""
_ELEMENT = re.compile(rf"</?([A-Za-z][\w:.-]{{0,31}})(?:{_ATTRIBUTE})*\s*/?>|<!--|<\?xml|<!\[CDATA\[|<!DOCTYPE")
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_ANY = re.compile(r"[\[(（{【〈《<*_&]")


@dataclass(frozen=True)
class Oddity:
    """Something that will be read out as it is written. Of one kind, one is enough to tell."""

    written: str
    mend: str  # what to do about it
    kind: str


def find_oddities(text: str) -> Iterator[Oddity]:
    """Tags that are nearly right, brackets that are no tags, elements of markup and HTML entities in `text`.

    Phones in brackets, ordinary parentheses, "a < b" and "AT&T" are none.
    """
    if not _ANY.search(text):
        return
    for bracket in _BRACKET.finditer(text):
        yield from _odd_bracket(bracket[0], bracket[1])
    for enclosed in _ENCLOSED.finditer(text):
        if tag := _meant(enclosed[1]):
            yield Oddity(enclosed[0], f"write [{tag}]", enclosed[0])
    for element in _ELEMENT.finditer(text):
        if not _meant(element[0].strip("</>")):
            mend = "leave markup out, for there is none but the tags in square brackets"
            yield Oddity(element[0], mend, element[1] or "<")
    for entity in _ENTITY.finditer(text):
        if (character := unescape(entity[0])) != entity[0]:
            yield Oddity(entity[0], _entity_mend(character), "&#" if entity[0][1] == "#" else entity[0])


def _odd_bracket(written: str, content: str) -> Iterator[Oddity]:
    if written[1:-1] in TAGS or _PHONES.fullmatch(content):
        return
    if tag := _meant(content) or _nearly(content):
        yield Oddity(written, f"write [{tag}]", written)
    elif len(content.split()) <= _MOST_WORDS:
        yield Oddity(written, f"the tags are {', '.join(f'[{tag}]' for tag in TAGS)}", "[")


def _meant(content: str) -> str | None:
    """The tag that is written in another case or spelling, or by another name."""
    name = _plain(content)
    return name if name in TAGS else _SYNONYMS.get(name)


def _nearly(content: str) -> str | None:
    """The tag that is mistyped or without its ending."""
    name = _plain(content)
    return _BEGINNINGS.get(name) or next(iter(difflib.get_close_matches(name, TAGS, n=1, cutoff=_NEAR)), None)


def _plain(content: str) -> str:
    return re.sub(r"[\s_-]+", "-", content.strip().casefold())


def _entity_mend(character: str) -> str:
    return f"write {character}" if character.isprintable() and not character.isspace() else "write a space, or nothing"

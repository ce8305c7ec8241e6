"""A user's words and values in messages: short, on one line, and what they may have been meant to be."""

import difflib
from collections.abc import Iterable, Mapping


def shown(value: object) -> str:
    """A user's value for a message: short, on one line, with anything unprintable escaped."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 256:  # Python refuses to print the largest ones
        return "an enormous number"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}...{text[-10:]}"


def printable(name: str) -> str:
    """A user's key or name for a message: bare when that is readable, quoted and escaped when it is not."""
    return name if name.isprintable() and 0 < len(name) <= 80 else shown(name)


def nearest(word: str, valid: Iterable[str]) -> str | None:
    """The valid word that a mistyped one is closest to, or None."""
    return next(iter(difflib.get_close_matches(word[:64].lower(), list(valid), n=1)), None)

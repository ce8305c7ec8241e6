"""The one exception for mistakes of the user's: bad manifests, recipes, options. How messages are worded."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike


class InputError(Exception):
    """A mistake that the user can mend, told in one line.

    `message` says what is wrong, with the value, and the mend. `file`, `line` (1-based) and `field` say where,
    and are left out of the text when None.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | PathLike | None = None,
        line: int | None = None,
        field: str | None = None,
    ):
        super().__init__(message)
        self.message = message
        self.file = file
        self.line = line
        self.field = field

    def __str__(self) -> str:
        place = "" if self.file is None else shown_path(self.file)
        if self.line is not None:
            place = f"{place}:{self.line}" if place else f"line {self.line}"
        parts = [part for part in (place, self.field, self.message) if part]
        return one_line(": ".join(parts))


_BREAKS = re.compile(r"\s*[\n\r\t\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


def one_line(text: str) -> str:
    """A text without its line breaks. Blanks within a line stay as they are: they may be those of a path."""
    return _BREAKS.sub(" ", text.strip())


def shown_path(path: str | bytes | PathLike) -> str:
    """A path for a message: bare, or in quotes where blanks at an end, or what cannot be seen, would mislead."""
    text = os.fsdecode(path) if isinstance(path, str | bytes | PathLike) else str(path)
    return text if text and text.isprintable() and text == text.strip() else repr(text)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 batch`, `2,000 lines`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def reason(error: BaseException) -> str:
    """Why something failed, in one line; of what tells little by itself, the class too."""
    text = one_line(str(error))
    if text and isinstance(error, InputError | RuntimeError):  # ours, and torch's
        return text
    return f"{type(error).__name__}: {text}".rstrip(": ")


@contextmanager
def naming(file: str | PathLike) -> Iterator[None]:
    """An OSError of the block names this file, and no other."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(file), None
        raise

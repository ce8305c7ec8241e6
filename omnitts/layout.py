"""Where in an output folder an utterance's files lie: side by side, or spread over folders."""

import re
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePosixPath

from omnitts.errors import InputError

_MOST_LEVELS = 4


@dataclass(frozen=True)
class Layout:
    """Levels of folders between the output folder and the files; each has up to 256, named by two hex digits."""

    levels: int = 0

    def stem(self, id: str) -> str:
        """An utterance's files without their endings, relative to the output folder: `ID`, `ab/cd/ID`.

        The folders are the first digits of a BLAKE2b hash of the id: they stay the same in every run, and fill evenly.
        """
        digits = blake2b(id.encode(), digest_size=_MOST_LEVELS).hexdigest()
        return str(PurePosixPath(*(digits[2 * level : 2 * level + 2] for level in range(self.levels)), id))

    def __str__(self) -> str:
        return f"nested:{self.levels}" if self.levels else "flat"


LAYOUTS = [Layout(levels) for levels in range(_MOST_LEVELS + 1)]


def read_layout(text: str) -> Layout:
    """The value of --layout. Raises InputError."""
    if text == "flat":
        return Layout()
    if match := re.fullmatch(f"nested:([1-{_MOST_LEVELS}])", text):
        return Layout(int(match[1]))
    message = f"{text!r}: wanted flat, or nested:N with 1 to {_MOST_LEVELS} levels of folders, such as nested:2"
    raise InputError(message, field="--layout")

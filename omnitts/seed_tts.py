"""Lines of seed-tts lists, which TTS test sets are published as: columns between pipes.

    id|ref_text|ref_audio|text
    id|ref_text|ref_audio|text|gt_audio

`gt_audio` is a recording of the text, to compare with; nothing is made of it.
"""

import re
from typing import Any

from omnitts.errors import InputError
from omnitts.recipe import shown

_COLUMNS = ("id", "ref_text", "ref_audio", "text")
_AUDIO_FILE = re.compile(r"\S+\.(?:wav|flac|ogg|opus|mp3|m4a|aac|aiff?|wma|pcm|sph)", re.IGNORECASE)
_WITHOUT_PIPE = "leave out the pipe, or write the line as JSON Lines, where a text may hold one"


def seed_tts_record(line: str) -> dict[str, Any]:
    """The fields of a line. Raises InputError where a column is missing, or one too many."""
    columns = [column.strip() for column in line.split("|")]
    if not 4 <= len(columns) <= 5:
        mend = f"; if one of them is parted by a pipe: {_WITHOUT_PIPE}" if len(columns) > 5 else ""
        raise InputError(f"wanted 4 columns, {'|'.join(_COLUMNS)}, or one more, gt_audio, got {len(columns)}{mend}")
    # A text with a pipe would be voiced up to there, so a fifth column has to look like what it is.
    if columns[4:] and columns[4] and not _AUDIO_FILE.fullmatch(columns[4]):
        raise InputError(
            f"the fifth column is the file of a recording, {'|'.join(_COLUMNS)}|gt_audio, and "
            f"{shown(columns[4])} is none; if a text or transcript has a pipe in it: {_WITHOUT_PIPE}"
        )
    return dict(zip(_COLUMNS, columns, strict=False))

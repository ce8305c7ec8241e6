"""How a file that was written is known again: whole, damaged, or no longer the same file."""

import hashlib
import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

HEAD_BYTES = 64  # hold the length in all formats of audio, and the first name and length in a tar archive
DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Of a file's bytes: their number, and digests (16 hex digits of BLAKE2b) of the first 64 and of all."""

    bytes: int
    head: str
    digest: str


class State(Enum):
    """What became of a file since it was written, as far as its length and its first bytes tell."""

    WHOLE = "whole"
    MISSING = "missing"
    DAMAGED = "damaged"  # begins as it was written, but is shorter or longer
    CHANGED = "changed"  # begins otherwise: somebody put another file there


def fingerprint(data: bytes) -> Fingerprint:
    """Of a file's content."""
    return Fingerprint(len(data), digest_of(data[:HEAD_BYTES]), digest_of(data))


def digest_of(data: bytes) -> str:
    """16 hex digits of BLAKE2b."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def file_digest(path: str | os.PathLike[str]) -> str:
    """`digest_of` a file's content. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()


def state_of(path: Path, size: int | None, head: str | None) -> State:
    """How a file is, of which `size` bytes were written. None where that is not known: then any byte will do."""
    try:
        found = path.stat().st_size
        if found == size or (size is None and found):
            return State.WHOLE
        if found < HEAD_BYTES:
            return State.DAMAGED
        with open(path, "rb") as file:
            return State.DAMAGED if digest_of(file.read(HEAD_BYTES)) == head else State.CHANGED
    except OSError:
        return State.MISSING

"""WAV and CAF files whose writer could not go back to fill in their length, in forms that libsndfile takes for empty.

It knows most words for "not known", as 2**32 - 1 in a WAV. It does not know 0 there, nor the -1 of a CAF file.
"""

import io
import os
import struct
from os import PathLike

_WAV_HEAD, _CAF_HEAD = 12, 8
_UNKNOWN = b"\xff" * 4


class Patched(io.FileIO):
    """A file of which some bytes read as others."""

    def __init__(self, path: str | PathLike, offset: int, replacement: bytes):
        super().__init__(path)
        self._offset, self._replacement = offset, replacement

    def readinto(self, buffer) -> int:
        view, start = memoryview(buffer), self.tell()
        count = super().readinto(view)
        for place, byte in enumerate(self._replacement, self._offset - start):
            if 0 <= place < count:
                view[place : place + 1] = bytes([byte])
        return count


def length_mended(path: str | PathLike) -> Patched | None:
    """The file with a length that libsndfile understands; None where it needs none. Raises OSError."""
    with open(path, "rb") as file:
        head = file.read(_WAV_HEAD)
        if head[:4] == b"RIFF" and head[8:] == b"WAVE":
            offset = _of_no_size(file, _WAV_HEAD, "<I", 0)
            return None if offset is None or _has_chunk(file) else Patched(path, offset, _UNKNOWN)
        if head[:4] == b"caff":
            offset = _of_no_size(file, _CAF_HEAD, ">q", -1)
            size = os.fstat(file.fileno()).st_size
            return None if offset is None else Patched(path, offset, struct.pack(">q", size - file.tell()))
    return None


def _of_no_size(file: io.BufferedReader, start: int, form: str, unknown: int) -> int | None:
    """Where the size of the data chunk stands, if it is `unknown`; the file is then behind it."""
    while True:
        file.seek(start)
        head = file.read(4 + struct.calcsize(form))
        if len(head) < 4 + struct.calcsize(form):
            return None
        (size,) = struct.unpack(form, head[4:])
        if head[:4] == b"data":
            return start + 4 if size == unknown else None
        if size < 0:
            return None
        start += len(head) + size + (size % 2 if form == "<I" else 0)


def _has_chunk(file: io.BufferedReader) -> bool:
    """Whether a WAV goes on with another chunk, or ends, so that the one before is indeed empty."""
    room = os.fstat(file.fileno()).st_size - file.tell() - 8
    head = file.read(8)
    if len(head) < 8:
        return True
    return head[:4].isascii() and head[:4].strip().isalnum() and int.from_bytes(head[4:], "little") <= room

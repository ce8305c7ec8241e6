"""MP3 streams, as far as their length goes: where one lies in its file, and how many frames its writer noted.

An MP3 has no length of its own. Most encoders put a first frame before the others that tells how many there are, with
"Xing" or "Info" in it, or "VBRI". Without one, readers guess from the first frame's bit rate and the file's size, which
is far off where the rate varies or a cover picture is in the file.
"""

import io
import struct
from dataclasses import dataclass
from os import PathLike

_SEARCHED = 1 << 16  # bytes after the tags in which the first frame is looked for
_ENDLESS = 2**63 - 1
_MPEG_1, _LAYER_3, _MONO = 3, 1, 3
_SIDE_BYTES = {(True, True): 17, (True, False): 32, (False, True): 9, (False, False): 17}  # by (MPEG 1, mono)


@dataclass(frozen=True)
class Noted:
    """What the first frame tells of the length, without itself."""

    samples: int
    by_xing: bool  # in the form that libsndfile understands
    next: int  # where in the file the frame after it begins


def noted_length(path: str | PathLike) -> Noted | None:
    """What the writer of an MP3 noted of its length, or None. Raises OSError.

    The layout of a "Xing" or "Info" frame: after the side information 4 letters, 4 bytes of flags and, if the lowest
    is set, the number of frames; of a "VBRI" frame: 36 bytes in, the number is 14 further on. Numbers are big-endian.
    """
    with open(path, "rb") as file:
        _skip_id3(file)
        offset = file.tell()
        data = file.read(_SEARCHED)
    start = _next_header(data, 0)
    if start is None:
        return None
    frame = data[start : start + 256].ljust(256, b"\0")
    found = _by_xing(frame) or _by_vbri(frame)
    if not found:
        return None
    following = _next_header(data, start + 4, like=frame)
    samples = found * (1152 if _is_mpeg_1(frame) else 576)
    return Noted(samples, _by_xing(frame) is not None, offset + (start if following is None else following))


def _skip_id3(file: io.BufferedIOBase) -> None:
    """Past the ID3v2 tags in front: 10 bytes, the last 4 of which have the size of the rest, 7 bits in each."""
    start = file.tell()
    head = file.read(10)
    while head[:3] == b"ID3" and len(head) == 10:
        size = 0
        for byte in head[6:]:
            size = size << 7 | byte & 0x7F
        start += 10 + size
        file.seek(start)
        head = file.read(10)
    file.seek(start)


def _next_header(data: bytes, start: int, like: bytes | None = None) -> int | None:
    """Where the next frame of layer III begins; of the same version and sample rate as `like`."""
    while 0 <= (start := data.find(b"\xff", start)) <= len(data) - 4:
        head = data[start : start + 4]
        alike = like is None or (head[1] & 0xFE == like[1] & 0xFE and head[2] & 0x0C == like[2] & 0x0C)
        if alike and _is_header(head):
            return start
        start += 1
    return None


def _is_header(head: bytes) -> bool:
    """Whether 4 bytes begin a frame of layer III: 11 bits of 1, and no field with a value that is not in use."""
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    bit_rate, sample_rate = head[2] >> 4, head[2] >> 2 & 3
    return head[1] >= 0xE0 and version != 1 and layer == _LAYER_3 and bit_rate != 15 and sample_rate != 3


def _is_mpeg_1(frame: bytes) -> bool:
    return frame[1] >> 3 & 3 == _MPEG_1


def _by_xing(frame: bytes) -> int | None:
    """The number of frames, unless it is not told, or 0."""
    side = _SIDE_BYTES[_is_mpeg_1(frame), frame[3] >> 6 == _MONO]
    for start in (4 + side, 6 + side):  # with a checksum, 2 bytes later
        tag, flags, frames = struct.unpack_from(">4sII", frame, start)
        if tag in (b"Xing", b"Info") and flags & 1 and frames:
            return frames
    return None


def _by_vbri(frame: bytes) -> int | None:
    """The number of frames, unless it is not told, or 0."""
    tag, frames = struct.unpack_from(">4s10xI", frame, 36)
    return frames if tag == b"VBRI" and frames else None


class Endless(io.RawIOBase):
    """The bytes `start` to `stop` of a file, as a file that tells who asks for its end that it has none.

    From one, libsndfile's MP3 reader cannot guess a length: it counts the frames.
    """

    def __init__(self, path: str | PathLike, start: int = 0, stop: int | None = None):
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (as long as this object)
        end = self._file.seek(0, io.SEEK_END)
        self._start, self._stop = start, end if stop is None else min(stop, end)
        self._asked_for_end = False
        self.seek(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._asked_for_end = whence == io.SEEK_END and offset == 0
        base = {io.SEEK_SET: self._start, io.SEEK_CUR: self._file.tell(), io.SEEK_END: self._stop}[whence]
        return self._file.seek(min(max(self._start, base + offset), self._stop)) - self._start

    def tell(self) -> int:
        return _ENDLESS if self._asked_for_end else self._file.tell() - self._start

    def readinto(self, buffer) -> int:
        room = max(0, min(len(buffer), self._stop - self._file.tell()))
        return self._file.readinto(memoryview(buffer)[:room])

    def close(self) -> None:
        self._file.close()
        super().close()


def wav_data(path: str | PathLike) -> tuple[int, int] | None:
    """Where the data chunk of a WAV file begins and ends, in bytes; None without one. Raises OSError."""
    with open(path, "rb") as file:
        file.seek(12)
        while len(head := file.read(8)) == 8:
            name, size = struct.unpack("<4sI", head)
            if name == b"data":
                return file.tell(), file.tell() + size
            file.seek(size + size % 2, io.SEEK_CUR)
    return None

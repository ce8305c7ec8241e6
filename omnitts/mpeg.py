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


@dataclass(frozen=True)
class Noted:
    """What the first frame tells of the length."""

    frames: int
    samples: int
    by_xing: bool  # in the form that libsndfile understands


def noted_length(path: str | PathLike) -> Noted | None:
    """What the writer of an MP3 noted of its length, or None. Raises OSError.

    The layout of a "Xing" or "Info" frame: after the side information 4 letters, 4 bytes of flags and, if the lowest
    is set, the number of frames; of a "VBRI" frame: 36 bytes in, the number is 14 further on. Numbers are big-endian.
    """
    with open(path, "rb") as file:
        _skip_id3(file)
        data = file.read(_SEARCHED)
    start = data.find(b"\xff")
    while 0 <= start <= len(data) - 4:
        if _is_header(data[start : start + 4]):
            return _noted(data[start : start + 256])
        start = data.find(b"\xff", start + 1)
    return None


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


def _is_header(head: bytes) -> bool:
    """Whether 4 bytes begin a frame of layer III: 11 bits of 1, and no field with a value that is not in use."""
    version, layer = head[1] >> 3 & 3, head[1] >> 1 & 3
    bit_rate, sample_rate = head[2] >> 4, head[2] >> 2 & 3
    return head[1] >= 0xE0 and version != 1 and layer == _LAYER_3 and bit_rate != 15 and sample_rate != 3


def _noted(frame: bytes) -> Noted | None:
    is_mpeg_1, is_mono = frame[1] >> 3 & 3 == _MPEG_1, frame[3] >> 6 == _MONO
    per_frame = 1152 if is_mpeg_1 else 576
    side = {(True, True): 17, (True, False): 32, (False, True): 9, (False, False): 17}[is_mpeg_1, is_mono]
    for start in (4 + side, 6 + side):  # with a checksum, 2 bytes later
        tag, flags, frames = struct.unpack_from(">4sII", frame.ljust(256, b"\0"), start)
        if tag in (b"Xing", b"Info") and flags & 1 and frames:
            return Noted(frames, frames * per_frame, by_xing=True)
    if frame[36:40] == b"VBRI" and len(frame) >= 54:
        (frames,) = struct.unpack_from(">I", frame, 50)
        if frames:
            return Noted(frames, frames * per_frame, by_xing=False)
    return None


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

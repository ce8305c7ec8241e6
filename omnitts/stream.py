"""soundfile's files, read on and on, in blocks: whatever libsndfile decodes, seekable or not. Imports soundfile."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from os import PathLike

import numpy as np
import soundfile

from omnitts.mpeg import Endless, noted_length, wav_data
from omnitts.open_ended import Patched, length_mended
from omnitts.stderr import muted

_BLOCK_SAMPLES = 1 << 18  # of all channels together
_MP3_ROUNDING = 2 * 1152
_NEVER_ENDING = 2**62  # libsndfile's word for a length that it does not know is 2**63 - 1

# How libsndfile's log tells that a header promises more than the file holds. Sizes from 2**31 - 2**16 on stand for
# "not known": programs that write to a pipe cannot go back to fill them in.
_SIZES = re.compile(r"^\s*(?:data|SSND|BODY|Data Size|riff|Riff size)\s*: (\d+) \(should be (\d+)\)", re.MULTILINE)
_UNKNOWN_SIZE = 2**31 - 2**16
_FRAMES = re.compile(r"^\s*Frames\s*: (\d+)$", re.MULTILINE)  # of an AVR file
_NIST_FRAMES = re.compile(rb"^sample_count -i (\d+)", re.MULTILINE)
_PAGE = re.compile(rb"OggS\0(.)", re.DOTALL)
_FIRST_PAGE = 2  # the flag of a page that begins a stream


class Stream(soundfile.SoundFile):
    """A file that is only ever read on from where one is.

    soundfile seeks after each block, to where the file is anyway, unless it takes the file for one that cannot; some
    decoders (DWVW) fail at that.
    """

    def seekable(self) -> bool:
        return False

    def blocks_to_end(self) -> Iterator[np.ndarray]:
        """float32 [frames, channels], one after another. Raises SoundFileError."""
        frames = max(1, _BLOCK_SAMPLES // self.channels)
        while True:
            with muted():
                block = self.read(frames, dtype="float32", always_2d=True)
            if not len(block):
                return
            yield block

    @property
    def length(self) -> int | None:
        """Frames, by its header or, of an MP3, as they were counted; None where only decoding can tell."""
        return None if self.frames >= _NEVER_ENDING else self.frames


@contextmanager
def open_stream(path: str | PathLike) -> Iterator[tuple[Stream, int | None]]:
    """A file, and how many frames its header promises; None if it promises nothing.

    Raises SoundFileError, for files without a header too, and OSError.
    """
    with ExitStack() as stack:
        mended = length_mended(path)
        stream = stack.enter_context(_open(path if mended is None else stack.enter_context(mended)))
        promised = stream.length
        if stream.subtype.startswith("MPEG_LAYER"):
            noted = noted_length(path) if stream.format == "MP3" else None
            start, stop = (wav_data(path) if stream.format == "WAV" else None) or (0, None)
            if noted is None or not noted.by_xing:
                promised = None if noted is None else noted.samples
                stream = stack.enter_context(_counted(path, start, stop))
            else:
                counted = stack.enter_context(_counted(path, noted.next, stop))
                if counted.frames > noted.samples + _MP3_ROUNDING:  # one was appended to another
                    stream, promised = counted, None
        elif stream.format in _PROMISES:
            promised = _PROMISES[stream.format](stream, path)
        yield stream, promised


def _open(file: str | PathLike | Endless | Patched) -> Stream:
    try:
        with muted():
            return Stream(file)
    except TypeError as error:  # soundfile's error for .raw
        raise soundfile.SoundFileRuntimeError("a file without a header") from error


@contextmanager
def _counted(path: str | PathLike, start: int, stop: int | None) -> Iterator[Stream]:
    """An MP3, whose frames libsndfile counts where it otherwise guesses, or believes the first one."""
    with Endless(path, start, stop) as endless, _open(endless) as stream:
        yield stream


def missing_bytes(stream: Stream) -> tuple[int, int] | None:
    """(bytes there, bytes promised) of a file that is shorter than its header says, by libsndfile's log."""
    for promised, held in _SIZES.findall(stream.extra_info):
        if int(held) < int(promised) < _UNKNOWN_SIZE:
            return int(held), int(promised)
    return None


def is_open_ended(stream: Stream) -> bool:
    """Whether an Ogg file lacks its last page."""
    return stream.format == "OGG" and "Last page lacks an end-of-stream bit" in stream.extra_info


def is_chained(stream: Stream, path: str | PathLike) -> bool:
    """Whether streams follow one another in an Ogg file; libsndfile reads the first. Raises OSError."""
    if stream.format != "OGG":
        return False
    with open(path, "rb") as file:
        begins = [bool(flags[0] & _FIRST_PAGE) for flags in _PAGE.findall(file.read())]
    # The streams that run side by side begin together, on the first pages.
    return False in begins and any(begins[begins.index(False) :])


def _avr_frames(stream: Stream, path: str | PathLike) -> int | None:
    found = _FRAMES.search(stream.extra_info)
    return None if found is None else int(found[1])


def _nist_frames(stream: Stream, path: str | PathLike) -> int | None:
    with open(path, "rb") as file:
        found = _NIST_FRAMES.search(file.read(1024))
    return None if found is None else int(found[1])


# Of formats whose promise libsndfile replaces by what the file's size comes to, without a word.
_PROMISES = {"AVR": _avr_frames, "NIST": _nist_frames}

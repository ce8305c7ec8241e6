"""Tar shards, as the webdataset library reads them: DIR/000000.tar and so on, of so many utterances each.

An utterance is a few members side by side, `ID.wav`, `ID.json` and `ID.codes.npy`: the library takes what stands before
the first dot for the key, and the rest for the name of a field. A shard appears whole or not at all.
"""

import io
import json
import os
import re
import tarfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omnitts.encoding import AudioOptions, encode_audio
from omnitts.errors import InputError, counted, naming, shown_path
from omnitts.files import temporary_path
from omnitts.manifest import Utterance
from omnitts.recipe import digest
from omnitts.results import part_name, read_results
from omnitts.speech import Speech

_NAME = re.compile(r"(\d{6,})(?:-\d+-of-\d+)?\.tar")  # of a whole manifest, or of a part of it
_END = bytes(2 * tarfile.BLOCKSIZE)


def check_shards(
    folder: Path, utterances: Iterable[Utterance], *, file: str, goes_on: bool, part: tuple[int, int] | None = None
) -> None:
    """Raises InputError where ids could not be told apart in a shard, or where the folder has shards in the way.

    goes_on: whether the run is to add to those of an earlier one. file: the manifest, for the message.
    """
    dotted = [utterance for utterance in utterances if "." in utterance.id]
    if dotted:
        more = f" (and {counted(len(dotted) - 1, 'more id')})" if len(dotted) > 1 else ""
        message = f"{dotted[0].id!r} has a dot, at which --webdataset would cut it{more}: give ids without dots"
        raise InputError(message, file=file, line=dotted[0].line, field="id")
    if (earlier := shard_paths(folder, part)) and not goes_on:
        message = (
            f"{shown_path(folder)} holds {counted(len(earlier), 'shard')} already: move them, or choose another folder"
        )
        raise InputError(message, field="--out")


def shard_paths(folder: Path, part: tuple[int, int] | None = None) -> list[Path]:
    """The whole shards of a manifest, or of a part of it, in a folder that may be missing, in their order."""
    paths = [path for path in folder.glob("*.tar") if _NAME.fullmatch(path.name)]
    return sorted((path for path in paths if path.name == _shard_name(_number(path), part)), key=_number)


def _shard_name(number: int, part: tuple[int, int] | None) -> str:
    return part_name(f"{number:06d}.tar", part)


def _number(path: Path) -> int:
    return int(_NAME.fullmatch(path.name)[1])


def drop_unrecorded(folder: Path, results: Path, part: tuple[int, int] | None) -> None:
    """Removes the last shard if no line names it: the run was killed before it could, and its utterances are to do."""
    *_, last = [None, *shard_paths(folder, part)]
    if last is not None and all(line.get("shard") != last.name for line in read_results(results)):
        last.unlink()


def members(speech: Speech, utterance: Utterance, options: AudioOptions) -> dict[str, bytes]:
    """The files of a successful utterance in a shard, by name: its audio, what is known of it, its codes."""
    facts = {
        "id": speech.id,
        "text": utterance.text,
        "language": utterance.language,
        "instruct": utterance.instruct,
        "seconds": round(speech.seconds, 3),
        "frames": speech.frames,
        "seed": speech.seed,
        "recipe": speech.recipe.name,
        "recipe_digest": digest(speech.recipe),
        "sample_rate": options.sample_rate,
    }
    codes = io.BytesIO()
    np.save(codes, speech.codes)
    return {
        f"{speech.id}.{options.format}": encode_audio(speech.audio, speech.sample_rate, options),
        f"{speech.id}.json": (json.dumps(facts, ensure_ascii=False) + "\n").encode(),
        f"{speech.id}.codes.npy": codes.getvalue(),
    }


@dataclass(frozen=True)
class Waiting:
    """An utterance in the shard that is being written: its line, and where in the shard it ends."""

    line: dict[str, Any]
    end: int


class ShardWriter:
    """Writes shards, and says which lines of results.jsonl they make true: those of the utterances in whole ones.

    One thread at a time may use it, in a `with` block, at whose end the shard that is not whole is dropped: `close`
    first makes it so. Use it only while no other run writes into the folder.

    What the system refuses is an OSError that names the shard. No line of it was given out, then; the shard may be
    tried again by `close`, with the utterances that are whole in it.
    """

    def __init__(self, folder: Path, size: int, *, part: tuple[int, int] | None = None):
        """size: utterances a shard. part: of the manifest, see `part_name`.

        Shards are numbered from behind those that are there.
        """
        self.folder = folder
        self.size = size
        self.part = part
        self._number = max((_number(path) for path in shard_paths(folder, part)), default=-1) + 1
        self._part: io.FileIO | None = None
        self._waiting: list[Waiting] = []  # those in the part
        self._safe: deque[dict[str, Any]] = deque()

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def add(self, line: dict[str, Any], files: Mapping[str, bytes]) -> Iterator[dict[str, Any]]:
        """Takes an utterance's line and, unless it failed, its files; returns the lines that are now to be recorded.

        A line that failed is one of them. Others wait until their shard is whole. All say where the utterance is:
        "shard", and the "names" in it.
        """
        if line["status"] != "ok":
            self._safe.append(line | {"shard": None, "names": None})
            return self._pop()
        with naming(self.folder / self._name):
            end = self._append(b"".join(_member(name, data) for name, data in files.items()))
        self._waiting.append(Waiting(line | {"path": None, "shard": self._name, "names": list(files)}, end))
        return self.close() if len(self._waiting) == self.size else self._pop()

    def close(self) -> Iterator[dict[str, Any]]:
        """Ends the shard being written, whatever its size; returns its lines, and those that nobody has taken yet."""
        if self._waiting:
            with naming(self.folder / self._name):
                self._append(_END)
                os.replace(self._part.name, self.folder / self._name)
            self._part.close()
            self._safe.extend(waiting.line for waiting in self._waiting)
            self._number += 1
            self._part, self._waiting = None, []
        return self._pop()

    def _pop(self) -> Iterator[dict[str, Any]]:
        """One at a time, so that an interruption between two loses none."""
        while self._safe:
            yield self._safe.popleft()

    @property
    def _name(self) -> str:
        return _shard_name(self._number, self.part)

    def _append(self, data: bytes) -> int:
        """Puts it behind the last utterance and returns where it ends.

        What of another was written when the disk was full, or Ctrl-C came, is overwritten.
        """
        if self._part is None:
            self._part = open(temporary_path(self.folder / self._name), "wb", buffering=0)  # noqa: SIM115
        start = self._waiting[-1].end if self._waiting else 0
        self._part.truncate(start)
        self._part.seek(start)
        rest = memoryview(data)
        while rest:
            rest = rest[self._part.write(rest) :]
        return start + len(data)

    def _drop(self) -> None:
        if self._part is not None:
            self._part.close()
            with suppress(OSError):
                os.unlink(self._part.name)
        self._part = None


def _member(name: str, data: bytes) -> bytes:
    """A file in a tar archive; its header says nothing of when, where and by whom it was made."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return header + data + bytes(-len(data) % tarfile.BLOCKSIZE)

"""results.jsonl: a line an utterance, appended when that is settled. A later run reads from it what is left to do.

A line is written after its audio is whole on disk, in one piece. If a run is killed while it writes one, the next run
cuts off what there is of it. An id that was made again has several lines, and the last one counts.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

from omnitts.errors import InputError, shown_path
from omnitts.files import is_open_alone
from omnitts.fingerprint import digest_of, file_digest
from omnitts.manifest import Utterance
from omnitts.recipe import digest

RESULTS = "results.jsonl"
SUMMARY = "summary.json"
_BEGIN = b'{"id": "'
_PROBE_BYTES = 1 << 16
_RESULTS = re.compile(r"results(-\d+-of-\d+)?\.jsonl")


def line_key(utterance: Utterance, made_by: str) -> str:
    """16 hex digits that stand for all that an utterance's audio follows from, but for the device.

    made_by: the model's digest, and how audio is written. Of recordings and voice files it is the content that counts.
    """
    return _digest([*_content(utterance), made_by])


def content_key(utterance: Utterance) -> str:
    """16 hex digits that stand for what a line of a manifest says, whatever model and audio options are used."""
    return _digest(_content(utterance))


def _content(utterance: Utterance) -> list[Any]:
    return [
        *(utterance.text, utterance.language, utterance.instruct, utterance.ref_text),
        *(utterance.duration, utterance.speed, utterance.seed, digest(utterance.recipe)),
        *(path and reference_digest(path) for path in (utterance.ref_audio, utterance.voice)),
    ]


def _digest(content: list[Any]) -> str:
    return digest_of(json.dumps(content).encode())


@lru_cache(maxsize=1 << 16)
def reference_digest(path: str) -> str:
    """Of a file's content; one that cannot be read has the digest of its path."""
    try:
        return file_digest(path)
    except OSError:
        return digest_of(os.fsencode(path))


def results_files(folder: Path) -> list[Path]:
    """The results of all runs into a folder: of the whole, or of parts (see `part_name`)."""
    found = (path for path in folder.glob("results*.jsonl") if _RESULTS.fullmatch(path.name))
    return sorted(path for path in found if path.is_file())


def by_age(files: Iterable[Path]) -> list[Path]:
    """Results, the latest written last, which counts where a manifest was once cut into another number of parts."""
    return sorted(files, key=lambda path: path.stat().st_mtime_ns)


def refuse_other_parts(folder: Path, own: Path) -> None:
    """Raises InputError while a run over parts of another number, or over the whole, writes into the folder."""
    for path in results_files(folder):
        if number_of_parts(path) != number_of_parts(own) and is_open_alone(path):
            where = f"is writing into {shown_path(folder)}: wait for it, or choose another folder"
            message = f"another run, with another --shard, {where}"
            raise InputError(message, field="--out")


def part_name(name: str, shard: tuple[int, int] | None) -> str:
    """A file's name for one part of a manifest: results.jsonl of shard (2, 8) is results-2-of-8.jsonl."""
    if shard is None:
        return name
    path = Path(name)
    return f"{path.stem}-{shard[0]}-of-{shard[1]}{path.suffix}"


def part_of(name: str) -> tuple[int, int] | None:
    """The part that `part_name` put into a name."""
    match = re.search(r"-(\d+)-of-(\d+)\.", name)
    return match and (int(match[1]), int(match[2]))


def number_of_parts(path: Path) -> int | None:
    """How many parts the manifest was cut into; None for a run over the whole."""
    part = part_of(path.name)
    return part and part[1]


def are_results(path: Path) -> bool:
    """Whether a file is a results.jsonl of omnitts's: empty, or its first lines are results; the last may be cut off.

    Under a link there has to be a whole line, for an empty file may be anybody's.
    """
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        *whole, rest = file.read(_PROBE_BYTES).split(b"\n")
    linked = path.is_symlink() or path.stat().st_nlink > 1
    return all(map(_is_line, whole)) and (bool(whole) or not linked) and (_is_line(rest) or _is_cut_off(rest))


def _is_line(text: bytes) -> bool:
    try:
        return _is_result(json.loads(text))
    except ValueError:
        return False


def _is_cut_off(text: bytes) -> bool:
    """Whether it is the beginning of a line and not all of it: those that omnitts writes begin with their id."""
    try:
        json.loads(text)
    except ValueError:
        return text.startswith(_BEGIN[: len(text)])
    return False


def _is_result(line: object) -> bool:
    return isinstance(line, dict) and isinstance(line.get("id"), str) and "status" in line


def read_results(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a results.jsonl; what is none, as the rest of a line that was cut off, is left out."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if _is_result(line):
                yield line


def cut_to_whole_lines(file: IO[str]) -> None:
    """Cuts off what follows a file's last line break: the beginning of a line that a run was killed over."""
    size = os.fstat(file.fileno()).st_size
    with open(file.name, "rb") as reading:
        end = size
        while end > 0:
            start = max(0, end - 4096)
            reading.seek(start)
            found = reading.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
    if end < size:
        file.truncate(end)

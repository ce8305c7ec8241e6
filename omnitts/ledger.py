"""What all results.jsonl of a folder tell: how each line was settled, and which files are omnitts's own.

A job may have millions of lines, so of each a few numbers are kept, and hashes in place of names.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from omnitts.fingerprint import State, state_of
from omnitts.names import name_hash
from omnitts.results import by_age, read_results, results_files

UNKNOWN = -1  # a length that a line does not tell, as those of earlier versions
_LINES = np.dtype(
    [
        *(("id", "u8"), ("key", "u8"), ("content", "u8"), ("shard", "u8"), ("shard_digest", "u8")),
        *(("path", "u8"), ("seconds", "f8"), ("ordinal", "i8"), ("source", "i4"), ("manifest", "i4"), ("ok", "?")),
    ]
)
_FILES = np.dtype([("path", "u8"), ("size", "i8"), ("head", "u8"), ("digest", "u8")])
_AT_ONCE = 1 << 14


@dataclass(frozen=True, slots=True)
class Entry:
    """The latest line of an id. Hashes are whole numbers of 64 bits, 0 where the line does not tell."""

    key: int
    ok: bool
    content: int
    manifest: str | None  # from the folder; None: standard input, or a line that does not tell
    tells_manifest: bool
    shard: int  # of the path
    shard_digest: int


class Ledger:
    """All lines of a folder's results, as they are when this is made. Of an id, and of a path, the latest counts.

    Where a manifest was once cut into another number of parts, the results that were written last are the latest.
    Raises OSError.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.sources = by_age(results_files(folder))
        self.manifests: list[str | None] = []
        self.shard_names: dict[int, str] = {}  # by their hashes
        self.counts: dict[Path, int] = {}  # lines of each of the sources
        self._whole_shards: dict[int, bool] = {}
        reader = _Reader(self)
        for source, path in enumerate(self.sources):
            ordinal = -1
            for ordinal, line in enumerate(read_results(path)):
                reader.add(line, source, ordinal)
            self.counts[path] = ordinal + 1
        self.lines = _Table(reader.lines.array(), "id")
        self.files = _Table(reader.files.array(), "path")

    def __len__(self) -> int:
        return len(self.lines.rows)

    def entry(self, name: str) -> Entry | None:
        """The latest line of an id."""
        row = self.lines.find(name_hash(name))
        if row is None:
            return None
        manifest = int(row["manifest"])
        return Entry(
            int(row["key"]),
            bool(row["ok"]),
            int(row["content"]),
            self.manifests[manifest] if manifest >= 0 else None,
            manifest >= 0,
            int(row["shard"]),
            int(row["shard_digest"]),
        )

    def tells(self, path: str) -> bool:
        """Whether any line tells of a file, by its path from the folder, with slashes."""
        return self.files.find(name_hash(path)) is not None

    def state(self, path: str) -> State | None:
        """How a file is that the lines tell of; None where they do not."""
        row = self.files.find(name_hash(path))
        return None if row is None else state_of(self.folder / path, *_told(row))

    def holds_shard(self, entry: Entry) -> bool:
        """Whether the shard that an entry names is there, whole, and was not written anew since."""
        if entry.shard not in self._whole_shards:
            name = self.shard_names.get(entry.shard)
            self._whole_shards[entry.shard] = name is not None and self.state(name) is State.WHOLE
        row = self.files.find(entry.shard)
        return self._whole_shards[entry.shard] and row is not None and entry.shard_digest == int(row["digest"])

    def in_use(self, path: str) -> bool:
        """Whether the latest line of any id names this shard, as it was written last."""
        row = self.files.find(name_hash(path))
        if row is None:
            return False
        lines = self.lines.rows
        return bool(((lines["shard"] == row["path"]) & (lines["shard_digest"] == row["digest"]) & lines["ok"]).any())


class _Rows:
    """A growing table."""

    def __init__(self, dtype: np.dtype):
        self.dtype = dtype
        self.done: list[np.ndarray] = []
        self.rows: list[tuple] = []

    def add(self, row: tuple) -> None:
        self.rows.append(row)
        if len(self.rows) == _AT_ONCE:
            self.done.append(np.array(self.rows, self.dtype))
            self.rows = []

    def array(self) -> np.ndarray:
        return np.concatenate([*self.done, np.array(self.rows, self.dtype)])


class _Reader:
    """Lines to rows."""

    def __init__(self, ledger: Ledger):
        self.manifests, self.shard_names = ledger.manifests, ledger.shard_names
        self.numbers: dict[str | None, int] = {}  # of manifests
        self.lines, self.files = _Rows(_LINES), _Rows(_FILES)

    def add(self, line: Mapping[str, Any], source: int, ordinal: int) -> None:
        shard = line.get("shard") if isinstance(line.get("shard"), str) else None
        shard_digest = 0
        if shard is not None:
            self.shard_names[name_hash(shard)] = shard
        for path, size, head, digest in files_of(line):
            self.files.add((name_hash(path), size, head, digest))
            if path == shard:
                shard_digest = digest
        seconds = line.get("seconds", 0.0)
        if not is_length(seconds):
            return
        path = line.get("path") if isinstance(line.get("path"), str) else shard
        self.lines.add(
            (
                *(name_hash(line["id"]), hash_of(line.get("key")), hash_of(line.get("content"))),
                *(0 if shard is None else name_hash(shard), shard_digest, 0 if path is None else name_hash(path)),
                *(seconds, ordinal, source, self._manifest(line), line["status"] == "ok"),
            )
        )

    def _manifest(self, line: Mapping[str, Any]) -> int:
        name = line.get("manifest", 0)
        if name is not None and not isinstance(name, str):
            return -1
        if name not in self.numbers:
            self.numbers[name] = len(self.manifests)
            self.manifests.append(name)
        return self.numbers[name]


def files_of(line: Mapping[str, Any]) -> Iterator[tuple[str, int, int, int]]:
    """The files that a line tells of: path, length (or UNKNOWN), hash of the first bytes, and of all."""
    files = line.get("files")
    if isinstance(files, dict):
        for path, made in files.items():
            if isinstance(made, dict) and isinstance(size := made.get("bytes"), int) and 0 <= size < 1 << 62:
                yield path, size, hash_of(made.get("head")), hash_of(made.get("digest"))
        return
    # As earlier versions wrote them.
    if isinstance(path := line.get("path"), str):
        yield path, UNKNOWN, 0, 0
        yield str(PurePosixPath(path).with_suffix(".codes.npy")), UNKNOWN, 0, 0
    if isinstance(shard := line.get("shard"), str):
        yield shard, UNKNOWN, 0, 0


def hash_of(digits: object) -> int:
    """16 hex digits as a number; 0 for anything else."""
    try:
        return int(digits, 16) if isinstance(digits, str) and len(digits) == 16 else 0
    except ValueError:
        return 0


def is_length(seconds: object) -> bool:
    """Whether it is a number of seconds that a line can tell."""
    return (
        isinstance(seconds, int | float)
        and not isinstance(seconds, bool)
        and 0 <= seconds < 1e9
        and math.isfinite(seconds)
    )


def _told(row: np.void) -> tuple[int | None, str | None]:
    """The length and the digest of the first bytes, for `state_of`."""
    size = int(row["size"])
    return (None, None) if size == UNKNOWN else (size, f"{int(row['head']):016x}")


class _Table:
    """Rows of which the last of each value of a column counts, found by that value."""

    def __init__(self, rows: np.ndarray, column: str):
        order = np.argsort(rows[column], kind="stable")
        values = rows[column][order]
        last = np.ones(len(values), bool)
        last[:-1] = values[1:] != values[:-1]
        self.rows = rows[order[last]]
        self._values = np.ascontiguousarray(values[last])

    def find(self, value: int) -> np.void | None:
        at = int(np.searchsorted(self._values, np.uint64(value)))
        return self.rows[at] if at < len(self._values) and self._values[at] == value else None

"""How far a job is, from what its runs have written into their folder, and whether that is still there."""

import os
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from omnitts.errors import InputError, counted, shown_path
from omnitts.files import is_open_alone
from omnitts.fingerprint import State, file_digest, state_of
from omnitts.ledger import UNKNOWN, Ledger, files_of
from omnitts.names import name_hash
from omnitts.results import RESULTS, SUMMARY, number_of_parts, part_of, read_results, results_files
from omnitts.summary import read_summary


@dataclass(frozen=True)
class Part:
    """One results.jsonl, of a whole manifest or of a shard, and the summary of its latest run."""

    name: str
    running: bool
    utterances: int | None  # of the manifest; None where it is not known
    settled_elsewhere: int  # of other numbers of parts, that may be of this one's utterances
    written: int
    failed: int
    lost: int  # were written, but their files are not there any more, or not as they were
    audio_seconds: float
    seconds_left: float | None  # at the pace of the run that goes on
    latest: float  # when the latest line was written, seconds since 1970

    @property
    def left(self) -> int | None:
        """Utterances without a line; other parts may have had them before."""
        if self.utterances is None:
            return None
        return max(0, self.utterances - self.written - self.failed - self.lost - self.settled_elsewhere)

    @property
    def complete(self) -> bool:
        """Whether all that is known of it is there."""
        return not (self.running or self.failed or self.lost or self.left)


def read_parts(folder: Path, *, verify: bool = False) -> list[Part]:
    """The parts of the job in a folder, with a look at the files: whether they are there, and as long as they were.

    verify: read them all, and compare their digests too. Raises InputError where there is no job.
    """
    if not folder.is_dir():
        raise InputError(f"{'a file' if folder.exists() else 'no such folder'}: {shown_path(folder)}")
    if not results_files(folder):
        raise InputError(f"no {RESULTS} in {shown_path(folder)}: give the --out folder of `omnitts synth`")
    try:
        ledger = Ledger(folder)
        lost = _lost(ledger) | (_altered(ledger) if verify else False)
        return [_read_part(ledger, source, lost) for source in _by_name(ledger)]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=error.filename) from None


def _by_name(ledger: Ledger) -> list[int]:
    return sorted(range(len(ledger.sources)), key=lambda source: ledger.sources[source].name)


def _lost(ledger: Ledger) -> np.ndarray:
    """Of each line of the ledger, whether its file is not as it was written. The folders are listed, no file opened."""
    lines = ledger.lines.rows
    names, lengths = _listing(ledger.folder)
    known, at = _matches(ledger.files.rows["path"], lines["path"])
    told = ledger.files.rows[at] if len(ledger.files.rows) else np.zeros(len(lines), ledger.files.rows.dtype)
    there, at = _matches(names, lines["path"])
    length = np.where(there, lengths[at], 0) if len(names) else np.zeros(len(lines), np.int64)
    as_long = np.where(told["size"] == UNKNOWN, length > 0, length == told["size"])
    written_anew = (lines["shard"] != 0) & (lines["shard_digest"] != told["digest"])
    return lines["ok"] & known & (~there | ~as_long | written_anew)


def _matches(values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each wanted value, whether it is among the sorted ones, and where."""
    at = np.minimum(np.searchsorted(values, wanted), max(0, len(values) - 1))
    return (values[at] == wanted if len(values) else np.zeros(len(wanted), bool)), at


def _listing(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """The files in a folder and below: hashes of their paths from there, sorted, and their lengths."""
    names, lengths = array("Q"), array("q")
    waiting, seen = [("", os.fspath(folder))], set()
    while waiting:
        prefix, path = waiting.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                try:
                    found = entry.stat()
                except OSError:  # a link that leads nowhere
                    continue
                if not entry.is_dir():
                    names.append(name_hash(prefix + entry.name))
                    lengths.append(found.st_size)
                elif (found.st_dev, found.st_ino) not in seen:  # links can go round in a circle
                    seen.add((found.st_dev, found.st_ino))
                    waiting.append((f"{prefix}{entry.name}/", entry.path))
    order = np.argsort(np.asarray(names, np.uint64), kind="stable")
    return np.asarray(names, np.uint64)[order], np.asarray(lengths, np.int64)[order]


def _altered(ledger: Ledger) -> np.ndarray:
    """Of each line of the ledger, whether one of its files has another digest than when it was written."""
    lines = ledger.lines.rows
    latest = {(int(row["source"]), int(row["ordinal"])): number for number, row in enumerate(lines)}
    altered = np.zeros(len(lines), bool)
    digests: dict[str, str | None] = {}  # of shards, which many lines name
    for source, path in enumerate(ledger.sources):
        for ordinal, line in enumerate(read_results(path)):
            number = latest.get((source, ordinal))
            if number is None:
                continue
            for name, size, head, digest in files_of(line):
                if size == UNKNOWN:
                    continue
                if name != line.get("shard"):
                    altered[number] |= not _is_as_written(ledger.folder / name, size, head, digest)
                    continue
                if name not in digests:
                    digests[name] = _digest(ledger.folder / name)
                altered[number] |= digests[name] != f"{digest:016x}"
    return altered


def _is_as_written(path: Path, size: int, head: int, digest: int) -> bool:
    whole = state_of(path, size, f"{head:016x}") is State.WHOLE
    return whole and _digest(path) == f"{digest:016x}"


def _digest(path: Path) -> str | None:
    try:
        return file_digest(path)
    except OSError:
        return None


def _read_part(ledger: Ledger, source: int, lost: np.ndarray) -> Part:
    """One of the results. Ids that another one told of later count there."""
    path, lines = ledger.sources[source], ledger.lines.rows
    own = lines["source"] == source
    written = own & lines["ok"] & ~lost
    summary = read_summary(
        path.with_name(path.name.replace(Path(RESULTS).stem, Path(SUMMARY).stem, 1)).with_suffix(".json")
    )
    others = [number for number, other in enumerate(ledger.sources) if number_of_parts(other) != number_of_parts(path)]
    running = is_open_alone(path)
    return Part(
        path.name,
        running,
        _utterances(ledger, source, summary),
        int(np.isin(lines["source"], others).sum()),
        int(written.sum()),
        int((own & ~lines["ok"]).sum()),
        int((own & lost).sum()),
        float(lines["seconds"][written].sum()),
        _seconds_left(ledger, path, summary, int(own.sum())) if running and summary is not None else None,
        path.stat().st_mtime,
    )


def _utterances(ledger: Ledger, source: int, summary: dict | None) -> int | None:
    """The lines of the manifest's part: as the latest run counted them, or more where the file has more by now."""
    counted_then = None if summary is None else summary["utterances"]
    if summary is not None and summary.get("limit") is not None:
        return counted_then
    lines = ledger.lines.rows
    latest = lines[(lines["source"] == source) & (lines["manifest"] >= 0)]
    name = ledger.manifests[int(latest[np.argmax(latest["ordinal"])]["manifest"])] if len(latest) else None
    now = None if name is None else _lines_in(ledger.folder / name)
    if now is not None and (part := part_of(ledger.sources[source].name)):
        now = len(range(part[0] - 1, now, part[1]))
    return max((count for count in (counted_then, now) if count is not None), default=None)


def _lines_in(path: Path) -> int | None:
    """The lines of a manifest that are not blank; None where it cannot be counted."""
    if not path.is_file():
        return None
    try:
        with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
            return sum(1 for line in file if line.strip("\ufeff").strip())
    except OSError:
        return None


def _seconds_left(ledger: Ledger, path: Path, summary: dict, settled: int) -> float | None:
    done_here = ledger.counts[path] - summary["lines_before"]
    if done_here <= 0:
        return None
    passed = time.time() - datetime.fromisoformat(summary["started"]).timestamp()
    to_do = summary["utterances"] - (settled if summary["settled_before"] else done_here)
    return passed / done_here * max(0, to_do)


def describe(parts: list[Part]) -> Iterator[str]:
    """A line a part, and one for all of them where they are several."""
    for part in parts:
        of = "" if part.utterances is None else f" of {part.utterances:,}"
        line = f"{part.name}: {part.written:,}{of} written, {part.audio_seconds:,.1f} s of audio"
        if part.failed:
            line += f", {part.failed:,} failed"
        if part.lost:
            line += f", {part.lost:,} no longer there as written (the same command makes them again)"
        if part.left:
            line += f", {part.left:,} left"
        yield f"{line}; {_state(part)}"
    if len(parts) > 1:
        written, failed = sum(part.written for part in parts), sum(part.failed for part in parts)
        left = [part.left for part in parts]
        yield (
            f"{counted(len(parts), 'part')}: {written:,} written, {failed:,} failed"
            + ("" if None in left else f", {sum(left):,} left")
        )
    if missing := unbegun(parts):
        yield f"not begun: part {', '.join(missing)}"


def unbegun(parts: list[Part]) -> list[str]:
    """Parts of a manifest that no run has begun, where there are others of as many: "3 of 8"."""
    if any(part.left == 0 and part_of(part.name) is None for part in parts):
        return []  # a run over the whole has seen to them
    begun = {found for part in parts if (found := part_of(part.name))}
    return [
        f"{number} of {count}"
        for count in sorted({count for _, count in begun})
        for number in range(1, count + 1)
        if (number, count) not in begun
    ]


def _state(part: Part) -> str:
    if part.running:
        return "running" if part.seconds_left is None else f"running, about {_span(part.seconds_left)} to go"
    ago = _span(max(0.0, datetime.now(UTC).timestamp() - part.latest))
    if part.complete and part.left == 0:
        return f"complete since {ago}"
    if part.left == 0 and not part.lost:
        return f"all tried, the last one {ago} ago"
    if not (part.written or part.failed):
        return "not running, and no line was written"
    return f"not running, the last line was written {ago} ago"


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"

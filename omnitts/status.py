"""How far a job is, from what its runs have written into their folder."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from omnitts.errors import InputError, counted, shown_path
from omnitts.files import is_open_alone
from omnitts.results import RESULTS, SUMMARY, by_age, part_of, read_results, results_files


@dataclass(frozen=True)
class Part:
    """One results.jsonl, of a whole manifest or of a shard, and the summary of its latest run."""

    name: str
    running: bool
    finished: bool  # its latest run came to the manifest's end
    utterances: int | None  # of the manifest; None where the latest run left no summary
    written: int
    failed: int
    audio_seconds: float
    seconds_left: float | None  # at the pace of the run that goes on
    latest: float  # when the latest line was written, seconds since 1970

    @property
    def left(self) -> int | None:
        """Utterances without a line; other parts may have had them before."""
        if self.finished:
            return 0
        return None if self.utterances is None else max(0, self.utterances - self.written - self.failed)


def read_parts(folder: Path) -> list[Part]:
    """The parts of the job in a folder. Raises InputError where there is none."""
    if not folder.is_dir():
        raise InputError(f"{'a file' if folder.exists() else 'no such folder'}: {shown_path(folder)}")
    files = results_files(folder)
    if not files:
        raise InputError(f"no {RESULTS} in {shown_path(folder)}: give the --out folder of `omnitts synth`")
    try:
        lines = {path: _latest_lines(path) for path in files}
        latest = {name: path for path in by_age(files) for name in lines[path]}
        own = {path: [line for name, line in found.items() if latest[name] == path] for path, found in lines.items()}
        return [_read_part(path, own[path]) for path in files]
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", file=error.filename) from None


def _latest_lines(path: Path) -> dict[str, tuple[bool, float]]:
    """Of each id, whether it was written, and its seconds."""
    return {line["id"]: (line["status"] == "ok", line.get("seconds", 0.0)) for line in read_results(path)}


def _read_part(path: Path, lines: Sequence[tuple[bool, float]]) -> Part:
    """lines: those of ids that no other part wrote after it."""
    written = sum(ok for ok, _ in lines)
    summary = _read_summary(
        path.with_name(path.name.replace(Path(RESULTS).stem, Path(SUMMARY).stem, 1)).with_suffix(".json")
    )
    running = is_open_alone(path)
    left = None
    if running and summary is not None:
        done_here = len(lines) - summary["settled_before"]
        passed = time.time() - datetime.fromisoformat(summary["started"]).timestamp()
        if done_here > 0:
            left = passed / done_here * max(0, summary["utterances"] - len(lines))
    return Part(
        path.name,
        running,
        summary is not None and summary.get("state") == "finished",
        None if summary is None else summary["utterances"],
        written,
        len(lines) - written,
        sum(seconds for ok, seconds in lines if ok),
        left,
        path.stat().st_mtime,
    )


def _read_summary(path: Path) -> dict | None:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        int(summary["utterances"]), int(summary["settled_before"]), datetime.fromisoformat(summary["started"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return summary


def describe(parts: list[Part]) -> Iterator[str]:
    """A line a part, and one for all of them where they are several."""
    for part in parts:
        of = "" if part.utterances is None else f" of {part.utterances:,}"
        line = f"{part.name}: {part.written:,}{of} written, {part.audio_seconds:,.1f} s of audio"
        if part.failed:
            line += f", {part.failed:,} failed"
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
    if any(part.finished and part_of(part.name) is None for part in parts):
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
    if part.left == 0:
        return f"complete since {ago}" if not part.failed else f"all tried, the last one {ago} ago"
    if not (part.written or part.failed):
        return "not running, and no line was written"
    return f"not running, the last line was written {ago} ago"


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"

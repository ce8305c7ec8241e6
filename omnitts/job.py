"""A whole manifest: run the utterances, write audio as it comes, report on each and on all."""

import errno
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import IO, Any

from tqdm import tqdm

from omnitts.claims import Claims
from omnitts.console import stop_gently
from omnitts.dump.format import is_dump
from omnitts.errors import InputError, counted, naming, reason, shown_path
from omnitts.files import open_alone, sweep
from omnitts.fingerprint import State
from omnitts.ledger import Entry, Ledger, hash_of
from omnitts.manifest import Refused, Utterance
from omnitts.model.checkpoint import Checkpoint
from omnitts.output import Output, line_of, write_dump, write_files
from omnitts.pipeline import DeviceLost
from omnitts.progress import Reporter
from omnitts.results import are_results, content_key, cut_to_whole_lines, line_key, refuse_other_parts
from omnitts.shards import ShardWriter, members, shard_paths
from omnitts.speech import Speech
from omnitts.stats import Stats
from omnitts.stderr import stderr_lock
from omnitts.summary import Totals, made_with, sums, write_summary
from omnitts.tts import TTS


@dataclass(frozen=True)
class Again:
    """What a run does about lines that an earlier run into the same folder has settled."""

    overwrite: bool = False  # makes all of them again
    retry_failed: bool = False  # makes those again that failed


def run_job(
    checkpoint: Checkpoint,
    load: Callable[[], TTS],
    utterances: Collection[Utterance],
    output: Output,
    *,
    asked: Mapping[str, Any],
    max_positions: int | None,
    progress: Reporter,
    source: str | None = None,
    again: Again = Again(),
    refused: Sequence[Refused] = (),
    log_stats: bool = False,
) -> Totals:
    """Voices all utterances into the output folder, but for those that an earlier run has settled.

    Each gets its audio file (and codes) and, as soon as that is there, a line in results.jsonl; summary.json tells of
    the run from its start, and repeats what was `asked` for. An utterance that fails is recorded and costs no other.
    A first Ctrl-C ends the run after the batch at hand, a second one at once. However it ends, the totals and
    summary.json count what was settled and what was not. Raises InputError when another run is writing into the folder,
    and what `load` raises. `losses.refuse_losses` is to be called before.

    load: gives the checkpoint's model, and is called if there is something to do. max_positions: None for what suits
    the device. source: the manifest as results.jsonl is to name it; None where it came through a pipe. refused: bad
    lines of the manifest, to be recorded as failed. log_stats: also print where the time went, and put it into
    summary.json.
    """
    with _results_alone(output) as results, ExitStack() as ending:
        totals = Totals(output.part_of(len(utterances)) + output.part_of(len(refused)))
        job = _Job(checkpoint, output, results, asked["manifest"], source, again, progress, totals)
        job.make_ready()
        ending.callback(job.claims.close)
        job.shards = ending.enter_context(output.shards(job.claims, job.told_shards if again.overwrite else ()))
        job.refuse(refused)
        to_do = job.to_do(utterances)
        first = next(to_do, None)
        tts = None if first is None else load()
        if tts is not None:
            max_positions = max_positions or tts.positions_for(totals.utterances)
        started, stats = datetime.now(UTC), Stats()
        about = {**asked, **output.facts(), **made_with(checkpoint, tts, max_positions)}
        write_summary(output.summary, about | job.sums(started, "running"))
        clock = time.perf_counter()
        try:
            if tts is not None:
                job.run(tts, chain([first], to_do), max_positions, stats)
            job.end()
        except KeyboardInterrupt:
            totals.interrupted = True
            raise
        except BaseException as error:
            totals.stopped = reason(error)
            raise
        finally:
            progress.close()
            _warn(stats)
            totals.wall_seconds = time.perf_counter() - clock
            with suppress(OSError) if totals.stopped or totals.interrupted else nullcontext():
                about |= job.sums(started, "stopped" if totals.stopped or totals.left else "finished")
                write_summary(output.summary, about | _stats(stats, totals, log_stats))
    return totals


@contextmanager
def _results_alone(output: Output) -> Iterator[IO[str]]:
    """The results, to be appended to by this run only. One that is refused leaves none behind that it made."""
    if output.replace_files and os.path.lexists(output.results) and not are_results(output.results):
        output.results.unlink()  # of its name; what a link leads to stays
    were_there = os.path.lexists(output.results)
    with open_alone(output.results, "--out") as results:
        try:
            refuse_other_parts(output.folder, output.results)
            yield results
        except BaseException:
            with suppress(OSError):
                if not were_there and not output.results.stat().st_size:
                    output.results.unlink()
            raise


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        name = f"cannot write {shown_path(error.filename)}: " if error.filename else ""
        return f"{name}{error.strerror or error}; put that right, and the same command goes on from here"
    if isinstance(error, InputError):  # of the manifest, which is read while the run goes on
        return f"{str(error).splitlines()[0]}; the same command goes on from here"
    return str(error)


def _stats(stats: Stats, totals: Totals, wanted: bool) -> dict[str, Any]:
    if not wanted:
        return {}
    for line in stats.lines(totals.wall_seconds, totals.audio_seconds):
        tqdm.write(line, file=sys.stderr)
    return {"stats": stats.as_dict(totals.wall_seconds, totals.audio_seconds)}


class _Job:
    """A run's place in its folder: what is left to do, and what becomes of it. `deliver` may be called by threads."""

    shards: ShardWriter | None = None

    def __init__(
        self,
        checkpoint: Checkpoint,
        output: Output,
        results: IO[str],
        file: str,
        source: str | None,
        again: Again,
        progress: Reporter,
        totals: Totals,
    ):
        self.output, self.results, self.file, self.source = output, results, file, source
        self.again, self.progress, self.totals = again, progress, totals
        self.ledger = Ledger(output.folder)
        self.claims = Claims(output.folder, output.journal, self._is_own, replace_files=output.replace_files)
        self.made_by = f"{checkpoint.digest} {checkpoint.codec_digest} {output.manner}"
        self.told_shards: list[Path] = []
        self._under_way: dict[str, Utterance] = {}  # by id
        self._recording = Lock()

    def make_ready(self) -> None:
        """Clears away what killed runs left, and shards that are damaged: their lines are made again."""
        sweep(self.output.folder)
        cut_to_whole_lines(self.results)
        self.claims.clear_left_behind()
        if self.output.shard_size is not None:
            self.told_shards = [path for path in self._shards() if self.ledger.tells(path.name)]
            for path in self.told_shards:
                if self.ledger.state(path.name) is State.DAMAGED:
                    path.unlink()

    def _shards(self) -> list[Path]:
        return shard_paths(self.output.folder, self.output.part)

    def _is_own(self, path: Path) -> bool:
        """Whether omnitts wrote a file that is there."""
        output = self.output
        if self.ledger.tells(output.name_of(path)):
            return True
        return output.dumps is not None and path.parent == output.dumps.folder and is_dump(path)

    def to_do(self, utterances: Iterable[Utterance]) -> Iterator[Utterance]:
        """Those of the output's part of the manifest that are not settled."""
        number, parts = self.output.part or (1, 1)
        for utterance in islice(utterances, number - 1, None, parts):
            if self._has_its_dump(utterance) and self._is_settled(utterance.id, line_key(utterance, self.made_by)):
                self.progress.skipped()
                continue
            self._under_way[utterance.id] = utterance
            yield utterance

    def refuse(self, refused: Sequence[Refused]) -> None:
        """Records the bad lines of the output's part, but for those that an earlier run has recorded."""
        number, parts = self.output.part or (1, 1)
        for bad in islice(refused, number - 1, None, parts):
            key = blake2b(bad.error.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
            if self._is_settled(bad.name, key):
                continue
            if self.shards is None and bad.id is not None:
                self.claims.remove(self.output.audio_path(bad.id))
                self.claims.remove(self.output.codes_path(bad.id))
            line = {"id": bad.name, "status": "failed", "path": None, "seconds": 0.0, "frames": 0, "error": bad.error}
            self._record(line | {"key": key, "manifest": self.source})

    def _has_its_dump(self, utterance: Utterance) -> bool:
        """Whether nothing more is to be dumped of it."""
        dumps = self.output.dumps
        return dumps is None or dumps.of(utterance) is None or dumps.path(utterance.id).is_file()

    def _is_settled(self, name: str, key: str) -> bool:
        entry = None if self.again.overwrite else self.ledger.entry(name)
        if entry is None or entry.key != hash_of(key):
            return False
        if not entry.ok:
            self.totals.failed_before += not self.again.retry_failed
            return not self.again.retry_failed
        if self._is_there(name, entry):
            self.totals.kept += 1
            return True
        return False

    def _is_there(self, name: str, entry: Entry) -> bool:
        """Whether the files of an utterance are as they were written."""
        output, ledger = self.output, self.ledger
        if output.shard_size is not None:
            return ledger.holds_shard(entry)
        paths = [output.audio_path(name), *([output.codes_path(name)] if output.save_codes else [])]
        return all(ledger.state(output.name_of(path)) is State.WHOLE for path in paths)

    def run(self, tts: TTS, utterances: Iterable[Utterance], max_positions: int, stats: Stats) -> None:
        """Makes those that `to_do` gave, unless it is interrupted, or cannot go on: the totals tell."""
        dumps, totals = self.output.dumps, self.totals
        with stop_gently() as stopping:
            try:
                speeches = tts.stream(
                    utterances,
                    max_positions=max_positions,
                    progress=self.progress,
                    stats=stats,
                    deliver=lambda speech: self.deliver(tts, speech),
                    file=self.file,
                    watch=(lambda utterance: None) if dumps is None else dumps.of,
                    stopping=lambda: stopping.requested,
                )
                with closing(speeches):
                    for _ in speeches:
                        self.progress.finished(totals)
                totals.interrupted = stopping.requested
            except KeyboardInterrupt:
                totals.interrupted = True
            except (OSError, DeviceLost, InputError) as error:
                totals.stopped = _why(error)
            try:
                self.close_shard()
            except OSError as error:
                totals.stopped = _why(error)
        totals.interrupted &= totals.left > 0

    def sums(self, started: datetime, state: str) -> dict[str, Any]:
        """What summary.json says of it. state: running, stopped with lines left, or finished."""
        settled_before = 0 if self.again.overwrite else len(self.ledger)
        lines_before = self.ledger.counts.get(self.output.results, 0)
        found = sums(self.totals, started, settled_before=settled_before, lines_before=lines_before)
        return {"state": state, **found}

    def end(self) -> None:
        """Looks whether every line was reached; of shards that were overwritten, removes what is left over."""
        totals = self.totals
        if totals.left and not totals.interrupted and not totals.stopped:
            reached = f"{totals.utterances - totals.left:,} of {counted(totals.utterances, 'line')}"
            totals.stopped = f"{self.file}: only {reached} were reached; the same command goes on from here"
        if self.again.overwrite and self.told_shards and not totals.left:
            now = Ledger(self.output.folder)
            for path in self.told_shards:
                if not now.in_use(path.name):
                    self.claims.remove(path)

    def deliver(self, tts: TTS, speech: Speech) -> None:
        """Writes all of an utterance, and then its line; in shards, once that is whole."""
        utterance = self._under_way.pop(speech.id)
        files: dict[str, bytes] = {}
        if self.shards is None:
            line = write_files(speech, self.output, self.claims, tts.sample_rate, self.file)
        else:
            line = line_of(speech, speech.error)
            files = {} if speech.error else members(speech, utterance, self.output.audio)
        if self.output.dumps is not None:
            line = write_dump(speech, self.output, self.claims, tts, line)
        line |= {"key": line_key(utterance, self.made_by), "content": content_key(utterance), "manifest": self.source}
        with self._recording:
            for safe in [line] if self.shards is None else self.shards.add(line, files):
                self._record(safe)

    def close_shard(self) -> None:
        """Makes the shard at hand whole, however small it is."""
        for line in [] if self.shards is None else self.shards.close():
            self._record(line)

    def _record(self, line: dict[str, Any]) -> None:
        _record(line, self.results, self.totals)
        self.claims.settle(line.get("files", ()))


def _warn(stats: Stats) -> None:
    if stats.splits:
        tqdm.write(
            f"warning: the GPU's memory ran out, and {counted(stats.splits, 'batch', 'batches')} had to be halved and "
            f"made again; nothing is lost, but --max-positions {stats.max_positions} saves the time",
            file=sys.stderr,
        )


def _record(line: dict[str, Any], results: IO[str], totals: Totals) -> None:
    with naming(results.name):
        if not os.fstat(results.fileno()).st_nlink:  # deleted: what is written there nobody will read
            raise FileNotFoundError(errno.ENOENT, "it was deleted meanwhile")
        results.write(json.dumps(line, ensure_ascii=False) + "\n")
        results.flush()
    if line["status"] == "ok":
        totals.written += 1
        totals.audio_seconds += line["seconds"]
    else:
        totals.failed += 1
        _tell(line["error"])
    if line.get("dump_error"):
        totals.dumps_failed += 1
        _tell(line["dump_error"])


def _tell(error: str) -> None:
    with stderr_lock:
        tqdm.write(f"error: {error}", file=sys.stderr)

"""A whole manifest: run the utterances, write audio as it comes, report on each and on all."""

import errno
import io
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import IO, Any, Protocol

import numpy as np
from tqdm import tqdm

from omnitts import __version__
from omnitts.audio import stderr_lock
from omnitts.console import stop_gently
from omnitts.dump import save
from omnitts.dump.options import Dumps
from omnitts.dump.record import dump_of
from omnitts.encoding import AudioOptions, write_audio
from omnitts.errors import InputError, counted, naming, shown_path
from omnitts.files import atomic_path, open_alone, sweep
from omnitts.layout import Layout
from omnitts.manifest import Refused, Utterance
from omnitts.model.checkpoint import Checkpoint
from omnitts.model.duration import FRAME_RATE
from omnitts.pipeline import DeviceLost, Progress
from omnitts.recipe import digest
from omnitts.results import RESULTS, SUMMARY, History, cut_to_whole_lines, line_key, part_name, refuse_other_parts
from omnitts.shards import ShardWriter, drop_unrecorded, members
from omnitts.speech import Speech
from omnitts.stats import Stats
from omnitts.tts import TTS, dtype_name

LOG_SECONDS = 30

# With these a file system takes no more files, or is not there: the lines to come would fare no better.
_NO_PLACE = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EROFS", "EIO", "ENOENT", "ENODEV", "ENOTDIR")} | {
    getattr(errno, "ESTALE", errno.EIO)
}


@dataclass(frozen=True)
class Again:
    """What a run does about lines that an earlier run into the same folder has settled."""

    overwrite: bool = False  # makes all of them again
    retry_failed: bool = False  # makes those again that failed


@dataclass(frozen=True)
class Output:
    """Where and how results are written."""

    folder: Path
    audio: AudioOptions = AudioOptions()  # noqa: RUF009 (frozen)
    save_codes: bool = False
    dumps: Dumps | None = None
    layout: Layout = Layout()  # noqa: RUF009 (frozen)
    shard_size: int | None = None  # utterances in a tar shard; None: each has files of its own
    part: tuple[int, int] | None = None  # (i, n): the i-th of n parts of the manifest, from 1

    def audio_path(self, id: str) -> Path:
        return self.folder / f"{self.layout.stem(id)}.{self.audio.format}"

    def codes_path(self, id: str) -> Path:
        return self.folder / f"{self.layout.stem(id)}.codes.npy"

    def is_there(self, id: str) -> bool:
        """Whether an utterance that was written still is; shards may have been taken elsewhere meanwhile."""
        if self.shard_size is not None:
            return True
        return _holds_something(self.audio_path(id)) and (not self.save_codes or _holds_something(self.codes_path(id)))

    def shards(self) -> AbstractContextManager[ShardWriter | None]:
        """The writer of shards, if there are to be any."""
        if self.shard_size is None:
            return nullcontext()
        return ShardWriter(self.folder, self.shard_size, part=self.part)

    def facts(self) -> dict[str, Any]:
        """What summary.json says of it."""
        audio = {**asdict(self.audio), "subtype": self.audio.encoding}
        layout = {"layout": str(self.layout)} if self.shard_size is None else {"webdataset": self.shard_size}
        return {"format": self.audio.format, "audio": audio, **layout}

    @property
    def manner(self) -> str:
        """How audio is written, for `results.line_key`."""
        place = "" if self.shard_size is None else " in shards"
        return f"{self.audio}{place}"

    @property
    def results(self) -> Path:
        return self.folder / part_name(RESULTS, self.part)

    @property
    def summary(self) -> Path:
        return self.folder / part_name(SUMMARY, self.part)


def _holds_something(path: Path) -> bool:
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


@dataclass
class Totals:
    """The sums of a run."""

    utterances: int
    written: int = 0  # in this run, as all that follows
    failed: int = 0
    kept: int = 0  # written by an earlier run
    failed_before: int = 0  # and not tried again
    dumps_failed: int = 0
    audio_seconds: float = 0.0
    wall_seconds: float = 0.0
    interrupted: bool = False
    stopped: str | None = None  # what made it impossible to go on

    @property
    def all_well(self) -> bool:
        """Whether every utterance has its audio, and its dump where one was wanted."""
        return not (self.failed or self.failed_before or self.dumps_failed or self.interrupted or self.stopped)

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work for a second of audio."""
        return self.wall_seconds / self.audio_seconds if self.audio_seconds else None


def run_job(
    checkpoint: Checkpoint,
    load: Callable[[], TTS],
    utterances: Collection[Utterance],
    output: Output,
    *,
    asked: Mapping[str, Any],
    max_positions: int | None,
    progress: "Reporter",
    again: Again = Again(),
    refused: Sequence[Refused] = (),
    log_stats: bool = False,
) -> Totals:
    """Voices all utterances into the output folder, but for those that an earlier run has settled.

    Each gets its audio file (and codes) and, as soon as that is there, a line in results.jsonl; summary.json tells of
    the run from its start, and repeats what was `asked` for. An utterance that fails is recorded and costs no other.
    A first Ctrl-C ends the run after the batch at hand, a second one at once. Raises InputError when another run is
    writing into the folder, and what `load` raises.

    load: gives the checkpoint's model, and is called if there is something to do. max_positions: None for what suits
    the device. refused: bad lines of the manifest, to be recorded as failed. log_stats: also print where the time went,
    and put it into summary.json.
    """
    with _results_alone(output) as results, ExitStack() as ending:
        _make_ready(output, results, again)
        totals = Totals(_share(len(utterances), output) + _share(len(refused), output))
        shards = ending.enter_context(output.shards())
        job = _Job(checkpoint, output, results, shards, asked["manifest"], again, progress, totals)
        job.refuse(refused)
        to_do = job.to_do(utterances)
        first = next(to_do, None)
        tts = None if first is None else load()
        if tts is not None:
            max_positions = max_positions or tts.positions_for(totals.utterances)
        started, stats = datetime.now(UTC), Stats()
        about = {**asked, **output.facts(), **_made_with(checkpoint, tts, max_positions)}
        _write_json(output.summary, about | _summary(job, started, "running"))
        clock = time.perf_counter()
        try:
            if tts is not None:
                job.run(tts, chain([first], to_do), max_positions, stats)
        finally:
            progress.close()
            _warn(stats)
        totals.wall_seconds = time.perf_counter() - clock
        with suppress(OSError) if totals.stopped else nullcontext():
            about |= _summary(job, started, "stopped" if job.left() > 0 else "finished")
            _write_json(output.summary, about | _stats(stats, totals, log_stats))
    return totals


def _make_ready(output: Output, results: IO[str], again: Again) -> None:
    """Clears away what killed runs left, and with `overwrite` what any run has recorded."""
    sweep(output.folder)
    if again.overwrite:
        results.truncate(0)
    cut_to_whole_lines(results)
    if output.shard_size is not None:
        drop_unrecorded(output.folder, output.results, output.part)


@contextmanager
def _results_alone(output: Output) -> Iterator[IO[str]]:
    """The results, to be appended to by this run only. One that is refused leaves none behind that are empty."""
    with open_alone(output.results, "--out") as results:
        try:
            refuse_other_parts(output.folder, output.results)
            yield results
        except BaseException:
            if not _holds_something(output.results):
                _remove(output.results)
            raise


def _share(count: int, output: Output) -> int:
    """How many of so many utterances are in the output's part of a manifest."""
    if output.part is None:
        return count
    number, parts = output.part
    return len(range(number - 1, count, parts))


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        name = f"cannot write {shown_path(error.filename)}: " if error.filename else ""
        return f"{name}{error.strerror or error}; put that right, and the same command goes on from here"
    return str(error)


def _stats(stats: Stats, totals: Totals, wanted: bool) -> dict[str, Any]:
    if not wanted:
        return {}
    for line in stats.lines(totals.wall_seconds, totals.audio_seconds):
        tqdm.write(line, file=sys.stderr)
    return {"stats": stats.as_dict(totals.wall_seconds, totals.audio_seconds)}


class _Job:
    """A run's place in its folder: what is left to do, and what becomes of it. `deliver` may be called by threads."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        output: Output,
        results: IO[str],
        shards: ShardWriter | None,
        file: str,
        again: Again,
        progress: "Reporter",
        totals: Totals,
    ):
        self.output, self.results, self.shards, self.file = output, results, shards, file
        self.again, self.progress, self.totals = again, progress, totals
        self.history = History(output.folder) if not again.overwrite else None
        self.made_by = f"{checkpoint.digest} {checkpoint.codec_digest} {output.manner}"
        self._under_way: dict[str, tuple[Utterance, str]] = {}  # by id, with its key
        self._recording = Lock()

    def to_do(self, utterances: Iterable[Utterance]) -> Iterator[Utterance]:
        """Those of the output's part of the manifest that are not settled."""
        number, parts = self.output.part or (1, 1)
        for utterance in islice(utterances, number - 1, None, parts):
            key = line_key(utterance, self.made_by)
            if self._has_its_dump(utterance) and self._is_settled(utterance.id, key):
                self.progress.skipped()
                continue
            self._under_way[utterance.id] = utterance, key
            yield utterance

    def refuse(self, refused: Sequence[Refused]) -> None:
        """Records the bad lines of the output's part, but for those that an earlier run has recorded."""
        number, parts = self.output.part or (1, 1)
        for bad in islice(refused, number - 1, None, parts):
            key = blake2b(bad.error.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
            if self._is_settled(bad.name, key):
                continue
            if self.shards is None and bad.id is not None:
                _remove(self.output.audio_path(bad.id))
                _remove(self.output.codes_path(bad.id))
            line = {"id": bad.name, "status": "failed", "path": None, "seconds": 0.0, "frames": 0, "error": bad.error}
            _record(line | {"key": key}, self.results, self.totals)

    def _has_its_dump(self, utterance: Utterance) -> bool:
        """Whether nothing more is to be dumped of it."""
        dumps = self.output.dumps
        return dumps is None or dumps.of(utterance) is None or dumps.path(utterance.id).is_file()

    def _is_settled(self, name: str, key: str) -> bool:
        written = None if self.history is None else self.history.ended(name, key)
        if written and self.output.is_there(name):
            self.totals.kept += 1
            return True
        if written is False and not self.again.retry_failed:
            self.totals.failed_before += 1
            return True
        return False

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
            except (OSError, DeviceLost) as error:
                totals.stopped = _why(error)
            try:
                self.close_shard()
            except OSError as error:
                totals.stopped = _why(error)
        totals.interrupted &= self.left() > 0

    def left(self) -> int:
        """Utterances that no run has settled."""
        totals = self.totals
        return totals.utterances - totals.written - totals.failed - totals.kept - totals.failed_before

    def deliver(self, tts: TTS, speech: Speech) -> None:
        """Writes all of an utterance, and then its line; in shards, once that is whole."""
        utterance, key = self._under_way.pop(speech.id)
        files: dict[str, bytes] = {}
        if self.shards is None:
            line = _write(speech, self.output, tts.sample_rate, self.file)
        else:
            line = _line(speech, speech.error)
            files = {} if speech.error else members(speech, utterance, self.output.audio)
        if self.output.dumps is not None:
            line |= _write_dump(speech, self.output.dumps, tts, line["error"])
        line |= {"key": key}
        with self._recording:
            for safe in [line] if self.shards is None else self.shards.add(line, files):
                _record(safe, self.results, self.totals)

    def close_shard(self) -> None:
        """Makes the shard at hand whole, however small it is."""
        for line in [] if self.shards is None else self.shards.close():
            _record(line, self.results, self.totals)


def _warn(stats: Stats) -> None:
    if stats.splits:
        tqdm.write(
            f"warning: the GPU's memory ran out, and {counted(stats.splits, 'batch', 'batches')} had to be halved and "
            f"made again; nothing is lost, but --max-positions {stats.max_positions} saves the time",
            file=sys.stderr,
        )


def _write(speech: Speech, output: Output, sample_rate: int, file: str) -> dict[str, Any]:
    """Writes the files of an utterance of the manifest `file`; returns its line for results.jsonl.

    An earlier run's files of the same names do not outlive this line, be it a success or a failure.
    """
    path, codes = output.audio_path(speech.id), output.codes_path(speech.id)
    error = speech.error
    if error is None:
        try:
            if output.layout.levels:
                path.parent.mkdir(parents=True, exist_ok=True)
            write_audio(path, speech.audio, sample_rate, output.audio)
            if output.save_codes:
                _write_codes(codes, speech.codes)
        except OSError as failure:
            _remove(path)
            if failure.errno in _NO_PLACE:
                raise
            name, why = Path(failure.filename or path).name, failure.strerror or failure
            message = f"cannot write {shown_path(name)}: {why}; put that right, and run this line again"
            error = str(InputError(message, file=file, line=speech.line, field="id"))
    if error is not None:
        _remove(path)
    if error is not None or not output.save_codes:
        _remove(codes)
    return _line(speech, error, path.relative_to(output.folder).as_posix())


def _line(speech: Speech, error: str | None, path: str | None = None) -> dict[str, Any]:
    """The line of an utterance in results.jsonl. error: why there is no audio; path: of the file, from the folder."""
    written = error is None
    return {
        "id": speech.id,
        "status": "ok" if written else "failed",
        "path": path if written else None,
        "seconds": round(speech.seconds, 3) if written else 0.0,
        "frames": speech.frames if written else 0,
        "seed": speech.seed,
        "recipe": speech.recipe.name,
        "recipe_digest": digest(speech.recipe),
        "error": error,
    }


def _write_dump(speech: Speech, dumps: Dumps, tts: TTS, error: str | None) -> dict[str, str | None]:
    """Writes the dump of a watched speech, whatever became of its audio; what its line in results.jsonl says of it."""
    if speech.watched is None:
        return {"dump": None}
    path = dumps.path(speech.id)
    try:
        save(path, dump_of(replace(speech, error=error), tts, dumps.dtype))
    except OSError as failure:
        why = failure.strerror or failure
        _remove(path)
        return {"dump": None, "dump_error": f"cannot write {shown_path(path)}: {why}; the audio is not concerned"}
    return {"dump": path.name}


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


def _write_codes(path: Path, codes: np.ndarray) -> None:
    buffer = io.BytesIO()  # np.save into a file does not say why a disk refuses
    np.save(buffer, codes)
    with atomic_path(path) as temporary:
        temporary.write_bytes(buffer.getvalue())


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    with atomic_path(path) as temporary:
        # A file name that is not UTF-8 holds surrogates; escaped with a backslash they are JSON still.
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))


def _remove(path: Path) -> None:
    with suppress(OSError):  # most often there is none
        path.unlink()


def _summary(job: _Job, started: datetime, state: str) -> dict[str, Any]:
    totals = job.totals
    factor = totals.real_time_factor
    return {
        "state": state,  # running, stopped with lines left, or finished
        "utterances": totals.utterances,
        "written": totals.written,
        "failed": totals.failed,
        "kept": totals.kept,
        "settled_before": len(job.history or ()),
        "failed_before": totals.failed_before,
        "dumps_failed": totals.dumps_failed,
        "interrupted": totals.interrupted,
        "stopped": totals.stopped,
        "audio_seconds": round(totals.audio_seconds, 3),
        "wall_seconds": round(totals.wall_seconds, 3),
        "real_time_factor": None if factor is None else round(factor, 4),
        "started": started.isoformat(timespec="seconds"),
    }


def _made_with(checkpoint: Checkpoint, tts: TTS | None, max_positions: int | None) -> dict[str, Any]:
    """What summary.json says of model and machine; tts: None where there was nothing to do."""
    return {
        "model_digest": checkpoint.digest,
        "device": None if tts is None else str(tts.device),
        "dtype": None if tts is None else dtype_name(tts.dtype),
        "max_positions": max_positions,
        "versions": {
            "python": platform.python_version(),
            "omnitts": __version__,
            **{name: version(name) for name in ("torch", "transformers", "tokenizers", "soundfile")},
        },
    }


class _SecondsBar(tqdm):
    """tqdm counts in floats here; shows them with one decimal, and "?" until the total is known."""

    @property
    def format_dict(self) -> dict[str, Any]:
        values = super().format_dict
        total = values["total"]
        values.update(done=f"{values['n']:.1f}", all="?" if total is None else f"{total:.1f}")
        return values


class Reporter(Progress, Protocol):
    """Shows a run's progress on stderr."""

    def skipped(self) -> None:
        """An utterance needs nothing to be done."""

    def finished(self, totals: Totals) -> None:
        """An utterance ended."""

    def close(self) -> None: ...


def reporter(utterances: int, *, quiet: bool) -> Reporter:
    """A bar on a terminal; elsewhere, as in a log file, a line now and then; nothing when quiet."""
    if quiet or sys.stderr.isatty():
        return Bar(utterances, quiet=quiet)
    return Log(utterances)


class Goal:
    """Seconds of audio to make: what comes after the planned windows is taken to be like what has been seen."""

    def __init__(self, utterances: int):
        self._utterances = utterances
        self._planned_utterances = 0
        self._planned_seconds = 0.0

    def skipped(self) -> None:
        self._utterances -= 1

    def planned(self, utterances: int, frames: int) -> float:
        self._planned_utterances += utterances
        self._planned_seconds += frames / FRAME_RATE
        return self._planned_seconds * self._utterances / self._planned_utterances


class Log:
    """Progress for a file: plain lines, LOG_SECONDS apart, and none in a short run."""

    def __init__(self, utterances: int):
        self._goal = Goal(utterances)
        self._total = 0.0
        self._done = 0.0
        self._start = self._told = time.monotonic()

    def skipped(self) -> None:
        self._goal.skipped()

    def prepared(self, utterances: int, of: int) -> None:
        if utterances < of:
            self._tell(f"references {utterances} of {of}")

    def planned(self, utterances: int, frames: int) -> None:
        self._total = self._goal.planned(utterances, frames)

    def advanced(self, frames: float) -> None:
        self._done = min(self._done + frames / FRAME_RATE, self._total)
        if self._done:
            elapsed = time.monotonic() - self._start
            left = tqdm.format_interval(elapsed * (self._total - self._done) / self._done)
            factor = f"real-time factor {elapsed / self._done:.3f}"
            self._tell(f"{self._done:.0f} of {self._total:.0f} s of audio, {factor}, {left} left")

    def finished(self, totals: Totals) -> None:
        pass

    def close(self) -> None:
        pass

    def _tell(self, message: str) -> None:
        now = time.monotonic()
        if now - self._told >= LOG_SECONDS:
            self._told = now
            with stderr_lock:
                print(f"progress: {message}", file=sys.stderr, flush=True)


class Bar:
    """The progress bar: seconds of audio made, of those to make, with the running real-time factor."""

    def __init__(self, utterances: int, *, quiet: bool):
        self._goal = Goal(utterances)
        self._bar = _SecondsBar(
            disable=quiet,
            dynamic_ncols=True,
            bar_format="{l_bar}{bar}| {done}/{all} s of audio [{elapsed}<{remaining}{postfix}]",
        )
        self._start = time.monotonic()

    def skipped(self) -> None:
        self._goal.skipped()

    def prepared(self, utterances: int, of: int) -> None:
        """A reference was made ready, or there was none to make ready."""
        self._bar.set_description("" if utterances == of else f"references {utterances}/{of}", refresh=False)
        self._bar.update(0)

    def planned(self, utterances: int, frames: int) -> None:
        self._bar.total = self._goal.planned(utterances, frames)
        self._bar.refresh()

    def advanced(self, frames: float) -> None:
        # Never past the end: the sum of many steps is off in its last digits, and a step may have to be done again.
        left = self._bar.total - self._bar.n
        self._bar.update(min(frames / FRAME_RATE, left))

    def finished(self, totals: Totals) -> None:
        """An utterance ended: shows the running real-time factor and the failures."""
        elapsed = time.monotonic() - self._start
        shown = {"rtf": f"{elapsed / self._bar.n:.3f}"} if self._bar.n else {}
        if totals.failed:
            shown["failed"] = str(totals.failed)
        self._bar.set_postfix(shown, refresh=False)

    def close(self) -> None:
        self._bar.close()

"""A whole manifest: run the utterances, write audio as it comes, report on each and on all."""

import io
import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import IO, Any, Protocol

import numpy as np
from tqdm import tqdm

from omnitts import __version__
from omnitts.audio import stderr_lock
from omnitts.dump import SUFFIX, save
from omnitts.dump.options import Dumps
from omnitts.dump.record import dump_of
from omnitts.encoding import AudioOptions, write_audio
from omnitts.errors import InputError, counted
from omnitts.files import atomic_path, open_alone
from omnitts.layout import Layout
from omnitts.manifest import Utterance
from omnitts.model.duration import FRAME_RATE
from omnitts.pipeline import Progress
from omnitts.recipe import digest
from omnitts.shards import ShardWriter, members
from omnitts.speech import Speech
from omnitts.stats import Stats
from omnitts.tts import TTS, dtype_name

RESULTS = "results.jsonl"
SUMMARY = "summary.json"
LOG_SECONDS = 30


@dataclass(frozen=True)
class Output:
    """Where and how results are written."""

    folder: Path
    audio: AudioOptions = AudioOptions()  # noqa: RUF009 (frozen)
    save_codes: bool = False
    dumps: Dumps | None = None
    layout: Layout = Layout()  # noqa: RUF009 (frozen)
    shard_size: int | None = None  # utterances in a tar shard; None: each has files of its own

    def audio_path(self, id: str) -> Path:
        return self.folder / f"{self.layout.stem(id)}.{self.audio.format}"

    def codes_path(self, id: str) -> Path:
        return self.folder / f"{self.layout.stem(id)}.codes.npy"

    def shards(self, file: str) -> AbstractContextManager[ShardWriter | None]:
        """The writer of shards, if there are to be any; file: the manifest, as errors call it."""
        return nullcontext() if self.shard_size is None else ShardWriter(self.folder, self.shard_size, file=file)

    def facts(self) -> dict[str, Any]:
        """What summary.json says of it."""
        audio = {**asdict(self.audio), "subtype": self.audio.encoding}
        layout = {"layout": str(self.layout)} if self.shard_size is None else {"webdataset": self.shard_size}
        return {"format": self.audio.format, "audio": audio, **layout}


@dataclass
class Totals:
    """The sums of a run."""

    utterances: int
    written: int = 0
    failed: int = 0
    dumps_failed: int = 0
    audio_seconds: float = 0.0
    wall_seconds: float = 0.0
    interrupted: bool = False

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work for a second of audio."""
        return self.wall_seconds / self.audio_seconds if self.audio_seconds else None


def run_job(
    tts: TTS,
    utterances: Sequence[Utterance],
    output: Output,
    *,
    asked: Mapping[str, Any],
    max_positions: int | None,
    progress: "Reporter",
    log_stats: bool = False,
) -> Totals:
    """Voices all utterances into the output folder.

    Each gets its audio file (and codes) and, as soon as that is there, a line in results.jsonl; summary.json
    closes the run, also one that Ctrl-C ended, and repeats what was `asked` for. An utterance that fails is
    recorded and costs no other. Raises InputError when another run is writing into the folder.

    max_positions: None for what suits the device. log_stats: also print where the time went, and put it into
    summary.json.
    """
    totals, stats, recording, file = Totals(len(utterances)), Stats(), Lock(), asked["manifest"]
    started, clock = datetime.now(UTC), time.perf_counter()
    texts = {} if output.shard_size is None else {utterance.id: utterance for utterance in utterances}
    with open_alone(output.folder / RESULTS, "--out") as results, output.shards(file) as shards:

        def deliver(speech: Speech) -> None:
            if shards is None:
                line = _write(speech, output, tts.sample_rate, file)
            else:
                line = _line(speech, speech.error)
                files = {} if speech.error else members(speech, texts[speech.id], output.audio)
            if output.dumps is not None:
                line |= _write_dump(speech, output.dumps, tts, line["error"])
            with recording:
                for safe in [line] if shards is None else shards.add(line, files, speech.line):
                    _record(safe, results, totals)

        max_positions = max_positions or tts.positions_for(len(utterances))
        speeches = tts.stream(
            utterances,
            max_positions=max_positions,
            progress=progress,
            stats=stats,
            deliver=deliver,
            file=file,
            **({} if output.dumps is None else {"watch": output.dumps.of}),
        )
        try:
            with closing(speeches):
                for _ in speeches:
                    progress.finished(totals)
        except KeyboardInterrupt:
            totals.interrupted = True
        finally:
            progress.close()
            _warn(stats)
        for line in [] if shards is None else shards.close():
            _record(line, results, totals)
        totals.wall_seconds = time.perf_counter() - clock
        summary = {**asked, **output.facts(), **_summary(tts, totals, started, max_positions)}
        if log_stats:
            summary["stats"] = stats.as_dict(totals.wall_seconds, totals.audio_seconds)
            for line in stats.lines(totals.wall_seconds, totals.audio_seconds):
                tqdm.write(line, file=sys.stderr)
        _write_json(output.folder / SUMMARY, summary)
    return totals


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
            name, why = Path(failure.filename or path).name, failure.strerror or failure
            message = f"cannot write {name}: {why}; put that right, and run this line again"
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
    path = dumps.folder / f"{speech.id}{SUFFIX}"
    try:
        save(path, dump_of(replace(speech, error=error), tts, dumps.dtype))
    except OSError as failure:
        why = failure.strerror or failure
        _remove(path)
        return {"dump": None, "dump_error": f"cannot write {path}: {why}; the audio is not concerned"}
    return {"dump": path.name}


def _record(line: dict[str, Any], results: IO[str], totals: Totals) -> None:
    try:
        results.write(json.dumps(line, ensure_ascii=False) + "\n")
        results.flush()
    except OSError as error:
        error.filename = results.name
        raise
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


def _summary(tts: TTS, totals: Totals, started: datetime, max_positions: int) -> dict[str, Any]:
    factor = totals.real_time_factor
    return {
        "utterances": totals.utterances,
        "written": totals.written,
        "failed": totals.failed,
        "dumps_failed": totals.dumps_failed,
        "interrupted": totals.interrupted,
        "audio_seconds": round(totals.audio_seconds, 3),
        "wall_seconds": round(totals.wall_seconds, 3),
        "real_time_factor": None if factor is None else round(factor, 4),
        "started": started.isoformat(timespec="seconds"),
        "model_digest": tts.checkpoint.digest,
        "device": str(tts.device),
        "dtype": dtype_name(tts.dtype),
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
        self._factor = ""
        self._start = self._told = time.monotonic()

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
            self._tell(f"{self._done:.0f} of {self._total:.0f} s of audio{self._factor}, {left} left")

    def finished(self, totals: Totals) -> None:
        if totals.audio_seconds:
            self._factor = f", real-time factor {(time.monotonic() - self._start) / totals.audio_seconds:.3f}"

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
        shown = {"rtf": f"{elapsed / totals.audio_seconds:.3f}"} if totals.audio_seconds else {}
        if totals.failed:
            shown["failed"] = str(totals.failed)
        self._bar.set_postfix(shown, refresh=False)

    def close(self) -> None:
        self._bar.close()

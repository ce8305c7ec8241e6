"""Where and how an utterance's results are written, and its line for results.jsonl."""

import errno
import io
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from omnitts.claims import Claims, name_in
from omnitts.dump.format import to_bytes
from omnitts.dump.options import Dumps
from omnitts.dump.record import dump_of
from omnitts.encoding import AudioOptions, encode_audio
from omnitts.errors import InputError, shown_path
from omnitts.fingerprint import Fingerprint
from omnitts.layout import Layout
from omnitts.recipe import digest
from omnitts.results import RESULTS, SUMMARY, part_name
from omnitts.shards import ShardWriter
from omnitts.speech import Speech

if TYPE_CHECKING:
    from omnitts.tts import TTS

# With these a file system takes no more files, or is not there: the lines to come would fare no better.
NO_PLACE = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EROFS", "EIO", "ENOENT", "ENODEV", "ENOTDIR")} | {
    getattr(errno, "ESTALE", errno.EIO)
}


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
    replace_files: bool = False  # also those that omnitts did not write, or wrote for another manifest

    def audio_path(self, id: str) -> Path:
        return self.folder / f"{self.layout.stem(id)}.{self.audio.format}"

    def codes_path(self, id: str) -> Path:
        return self.folder / f"{self.layout.stem(id)}.codes.npy"

    def targets(self, id: str) -> Iterator[Path]:
        """The files that an utterance may get of its own; those in `folder` first."""
        if self.shard_size is None:
            yield self.audio_path(id)
            if self.save_codes:
                yield self.codes_path(id)
        if self.dumps is not None and self.dumps.wants(id):
            yield self.dumps.path(id)

    def name_of(self, path: Path) -> str:
        """A file's path from the folder, with slashes, as results.jsonl has it."""
        return name_in(self.folder, path)

    def shards(self, claims: Claims, replaces: Collection[Path]) -> AbstractContextManager[ShardWriter | None]:
        """The writer of shards, if there are to be any. replaces: shards that may be written anew."""
        if self.shard_size is None:
            return nullcontext()
        return ShardWriter(self.folder, self.shard_size, part=self.part, place=claims.place, replaces=replaces)

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

    @property
    def journal(self) -> Path:
        """Of `claims`."""
        return self.folder / f".{self.results.name}.claims"

    def part_of(self, count: int) -> int:
        """How many of so many utterances are in the output's part of a manifest."""
        if self.part is None:
            return count
        number, parts = self.part
        return len(range(number - 1, count, parts))


def write_files(speech: Speech, output: Output, claims: Claims, sample_rate: int, file: str) -> dict[str, Any]:
    """Writes the files of an utterance of the manifest `file`; returns its line for results.jsonl.

    An earlier run's files of the same names do not outlive this line, be it a success or a failure. Raises OSError
    where the lines to come would fare no better.
    """
    path, codes = output.audio_path(speech.id), output.codes_path(speech.id)
    error, made = speech.error, {}
    if error is None:
        try:
            if output.layout.levels:
                path.parent.mkdir(parents=True, exist_ok=True)
            made[path] = claims.put(path, encode_audio(speech.audio, sample_rate, output.audio))
            if output.save_codes:
                made[codes] = claims.put(codes, _codes_file(speech.codes))
        except OSError as failure:
            if failure.errno in NO_PLACE:
                if path in made:  # without its codes; an earlier run's file stays, with the line that tells of it
                    claims.remove(path)
                raise
            name, why = Path(failure.filename or path).name, failure.strerror or failure
            message = f"cannot write {shown_path(name)}: {why}; put that right, and run this line again"
            error = str(InputError(message, file=file, line=speech.line, field="id"))
    if error is not None:
        claims.remove(path)
        made = {}
    if error is not None or not output.save_codes:
        claims.remove(codes)
    return line_of(speech, error, output.name_of(path)) | {"files": told(made, output)}


def write_dump(speech: Speech, output: Output, claims: Claims, tts: "TTS", line: Mapping[str, Any]) -> dict[str, Any]:
    """Writes the dump of a watched speech, whatever became of its audio; returns its line, with what is said of it."""
    if speech.watched is None:
        return {**line, "dump": None}
    path = output.dumps.path(speech.id)
    try:
        dump = dump_of(replace(speech, error=line["error"]), tts, output.dumps.dtype)
        made = {path: claims.put(path, to_bytes(dump))}
    except OSError as failure:
        why = failure.strerror or failure
        claims.remove(path)
        return {
            **line,
            "dump": None,
            "dump_error": f"cannot write {shown_path(path)}: {why}; the audio is not concerned",
        }
    return {**line, "dump": path.name, "files": {**line["files"], **told(made, output)}}


def line_of(speech: Speech, error: str | None, path: str | None = None) -> dict[str, Any]:
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
        "files": {},
    }


def told(made: Mapping[Path, Fingerprint], output: Output) -> dict[str, dict[str, Any]]:
    """Files as a line tells of them."""
    return {output.name_of(path): asdict(each) for path, each in made.items()}


def _codes_file(codes: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, codes)
    return buffer.getvalue()

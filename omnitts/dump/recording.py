"""The audio that belongs to a dump: in a file or a tar shard of the folder that `synth` wrote into."""

import io
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from omnitts.dump.format import SUFFIX
from omnitts.encoding import FORMATS
from omnitts.errors import InputError, counted, reason, shown_path
from omnitts.layout import LAYOUTS
from omnitts.recipe import printable
from omnitts.recording import read_audio
from omnitts.results import by_age, read_results, results_files

_TYPES = {".mp3": "audio/mpeg", ".ogg": "audio/ogg"}
_MP3_LEVEL = 0.8  # about 40 kbit/s at 24 kHz, on LAME's scale from 0 (160) to 1 (8)
_BLOCK = 1 << 16


@dataclass(frozen=True)
class Recording:
    """An audio file, or a member of a tar archive."""

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return shown_path(self.path) if self.member is None else f"{shown_path(self.member)} in {shown_path(self.path)}"

    @property
    def suffix(self) -> str:
        return Path(self.member or self.path).suffix.lower()

    def read(self) -> bytes:
        """The file as it is. Raises InputError."""
        try:
            if self.member is None:
                return self.path.read_bytes()
            with tarfile.open(self.path, "r:") as shard:
                return shard.extractfile(self.member).read()
        except (OSError, tarfile.TarError, KeyError) as error:
            raise InputError(f"cannot read: {self} ({getattr(error, 'strerror', None) or error})") from error

    def wave(self) -> tuple[np.ndarray, int]:
        """As `read_audio` gives it. Raises InputError."""
        if self.member is None:
            return read_audio(self.path)
        data = self.read()
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, f"audio{self.suffix}")
            copy.write_bytes(data)
            try:
                return read_audio(copy)
            except InputError as error:
                raise InputError(error.message.replace(shown_path(copy), str(self))) from None


class Recordings:
    """The audio of some utterances in a folder: where its results say, else by its name, in any layout or shard."""

    def __init__(self, folder: Path, ids: Collection[str]):
        """Raises InputError for results that cannot be read."""
        self.folder = folder
        self.complaints: list[str] = []  # of shards that could not be read
        self._ids = frozenset(ids)
        self._lines: dict[str, dict[str, Any]] = {}  # by id, the last of each
        self._in_shards: dict[str, Recording] | None = None
        try:
            for path in by_age(results_files(folder)):
                self._lines |= {line["id"]: line for line in read_results(path) if line["id"] in self._ids}
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", file=error.filename) from None

    def find(self, id: str) -> Recording | None:
        """An utterance's audio; None where there is none."""
        line = self._lines.get(id)
        if line is not None and line["status"] != "ok":
            return None
        return (line and self._recorded(line)) or self._named(id) or self._shards().get(id)

    def _recorded(self, line: dict[str, Any]) -> Recording | None:
        """Where a line of the results says."""
        shard, names, path = line.get("shard"), line.get("names"), line.get("path")
        if isinstance(shard, str) and isinstance(names, list):
            member = next((name for name in names if isinstance(name, str) and _is_audio(name)), None)
            return Recording(self.folder / shard, member) if member and (self.folder / shard).is_file() else None
        return Recording(self.folder / path) if isinstance(path, str) and (self.folder / path).is_file() else None

    def _named(self, id: str) -> Recording | None:
        stems = [layout.stem(id) for layout in LAYOUTS]
        files = (self.folder / f"{stem}.{extension}" for stem in stems for extension in FORMATS)
        return next((Recording(path) for path in files if path.is_file()), None)

    def _shards(self) -> dict[str, Recording]:
        """By id, what tar archives hold; of an id in several the last one's."""
        if self._in_shards is None:
            self._in_shards = {}
            for path in sorted(self.folder.glob("*.tar")):
                self._in_shards |= {id: Recording(path, member) for id, member in self._members(path)}
        return self._in_shards

    def _members(self, path: Path) -> Iterator[tuple[str, str]]:
        try:
            with tarfile.open(path, "r:") as shard:
                for info in shard:
                    id = info.name.rpartition(".")[0]
                    if info.isfile() and _is_audio(info.name) and id in self._ids:
                        yield id, info.name
        except (OSError, tarfile.TarError) as error:
            self.complaints.append(f"cannot read as a tar archive: {shown_path(path)} ({reason(error)})")


def _is_audio(name: str) -> bool:
    return name.rpartition(".")[2] in FORMATS


def id_of(dump_path: Path) -> str:
    """The id in the name of a dump's file."""
    return dump_path.name.removesuffix(SUFFIX)


def find_audio(dump_path: Path) -> Recording | None:
    """The audio beside a dump; None without any."""
    id = id_of(dump_path)
    return Recordings(dump_path.parent, [id]).find(id)


def find_all(dump_paths: Collection[Path], folder: Path | None) -> tuple[dict[Path, Recording], list[str]]:
    """The audio of dumps, in `folder` or, without one, beside each; and a line for each shard that cannot be read."""
    ids = {id_of(path) for path in dump_paths}
    folders = {path: path.parent if folder is None else folder for path in dump_paths}
    searched = {each: Recordings(each, ids) for each in dict.fromkeys(folders.values())}
    found = {path: searched[where].find(id_of(path)) for path, where in folders.items()}
    complaints = [line for recordings in searched.values() for line in recordings.complaints]
    return {path: recording for path, recording in found.items() if recording is not None}, complaints


def check_folder(folder: str, option: str) -> None:
    """Raises InputError, naming the option, for a folder of audio that is none."""
    if not Path(folder).is_dir():
        what = "a file, not a folder" if Path(folder).exists() else "no such folder"
        raise InputError(f"{what}: {shown_path(folder)}; name the one that `omnitts synth` wrote into", field=option)


def without_audio(silent: Sequence[str], dumps: int, folder: str) -> str:
    """Of how many dumps there is no audio where it was looked for."""
    names = ", ".join(printable(id) for id in silent[:5]) + (", ..." if len(silent) > 5 else "")
    what = f"no audio for {len(silent):,} of {counted(dumps, 'dump')} in {shown_path(folder)}: {names}"
    return f"--wavs: {what}; name the folder that `omnitts synth` wrote them into"


def compact_audio(recording: Recording) -> tuple[str, bytes]:
    """An audio file for a page: its media type and its bytes, those of WAV and FLAC as an MP3 of about 40 kbit/s.

    Raises InputError for a file that cannot be read, or that MP3 has no sample rate for.
    """
    kept = _TYPES.get(recording.suffix)
    if kept is not None:
        return kept, recording.read()
    import soundfile

    wave, rate = recording.wave()
    buffer = io.BytesIO()
    try:
        with soundfile.SoundFile(
            buffer, "w", rate, 1, "MPEG_LAYER_III", format="MP3", bitrate_mode="CONSTANT", compression_level=_MP3_LEVEL
        ) as file:
            for start in range(0, len(wave), _BLOCK):
                file.write(wave[start : start + _BLOCK])
    except soundfile.SoundFileError as error:
        raise InputError(f"cannot make an MP3 of {rate} Hz: {recording}; convert it to 24000 Hz") from error
    return "audio/mpeg", buffer.getvalue()

"""A manifest: a file of things to say, read line by line into checked `Utterance` records.

All that is wrong with the file itself is found before any audio is made, and told at once. A recording is read
up to a minute after its first sound: what is damaged further on fails when its turn comes.
"""

import json
import os
import re
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import IO, Any

from omnitts.clips import MAX_DURATION, clips_of, seconds_of, too_long
from omnitts.doubts import length_doubts, reference_doubts, text_doubts
from omnitts.errors import InputError, counted
from omnitts.model.duration import FRAME_RATE
from omnitts.model.instruct import resolve_instruct
from omnitts.model.language import near_languages, resolve_language
from omnitts.model.text import find_tags, has_words
from omnitts.names import Names, doubts, read_id, twin_doubt
from omnitts.recipe import SETTINGS, Recipe, load_recipe, nearest, printable, recipe_file, shown, with_settings
from omnitts.seed_tts import seed_tts_record

MAX_LINE_BYTES = 1 << 24
KEPT = 1 << 14  # utterances of a manifest that stay in memory
_LINES_A_LOOK = 64  # between two looks at whether the file is still the same

_LANGUAGE_FIELDS = ("language_id", "language", "lang", "language_name")
_REFERENCE_FIELDS = ("ref_audio", "ref_text", "voice")
FIELDS = (
    *("id", "text", *_LANGUAGE_FIELDS, "instruct", *_REFERENCE_FIELDS),
    *("duration", "speed", "seed", "recipe"),
)
_FIELD_SET = frozenset(FIELDS)

_NOT_TEXT = re.compile(r"[\0\ud800-\udfff]")  # no tokenizer takes these


@dataclass(frozen=True, slots=True)
class Utterance:
    """One thing to say. What the manifest left out is None; a speed or a seed of None means the recipe's."""

    id: str  # unique in the manifest, and safe as a file name
    text: str
    language: str | None  # an id of the checkpoint's
    instruct: str | None  # as it goes into the prompt
    ref_audio: str | None  # a path; comes with ref_text
    ref_text: str | None
    voice: str | None  # a path; never together with ref_audio
    duration: float | None  # seconds
    speed: float | None
    seed: int | str | None  # or the word "random"
    recipe: Recipe  # lines with the same settings share one object
    line: int

    @property
    def reference_field(self) -> str:
        """The field that its reference, if any, comes from."""
        return "ref_audio" if self.voice is None else "voice"


@dataclass(frozen=True)
class Refused:
    """A line that gives no utterance: its id, if it has one that is good, and all that is wrong with it."""

    id: str | None
    line: int
    error: str

    @property
    def name(self) -> str:
        """The id, or what stands for it: no id has a slash."""
        return f"line/{self.line}" if self.id is None else self.id


@dataclass(frozen=True)
class Manifest:
    utterances: Collection[Utterance]  # a long one's are read anew each time they are gone through
    warnings: list[str]  # one line each; a warning of many lines is told once, with their number
    name: str  # the file as messages call it
    recipes: Sequence[Recipe]  # those of its lines
    recordings: Collection[str]  # paths of its references
    voices: Mapping[str, int]  # path of a voice file -> the first line that has it
    tags: Mapping[str, int]  # tag -> the first line that has it
    refused: Sequence[Refused] = ()  # bad lines, if they were to be left out
    source: str | None = None  # the file; None where it can be read once only, as standard input
    recipe_files: Collection[str] = ()  # that its lines name


class ManifestError(InputError):
    """Everything that is wrong with a manifest, in the order of its lines; str() gives a line for each."""

    def __init__(self, problems: list[InputError]):
        super().__init__(f"{len(problems)} problems")
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))


def read_manifest(
    source: str | os.PathLike[str],
    *,
    recipe: Recipe,
    settings: Mapping[str, object] | None = None,
    voice: str | os.PathLike[str] | None = None,
    limit: int | None = None,
    portable_names: bool = False,
) -> Manifest:
    """Read and check a manifest, in one of three forms told by the file's suffix.

    - .jsonl or .json: a JSON object a line, its keys among `FIELDS`; only "text" is required, null is absent.
    - .txt: a text a line; the ids are the line numbers, 000001 and so on.
    - .lst: `id|ref_text|ref_audio|text` a line, or `id|ref_text|ref_audio|text|gt_audio`, as in seed-tts lists. Of the
      fifth column, a recording of the text to compare with, no use is made.

    Lines are UTF-8, with or without a byte-order mark before them; blank ones are skipped, paths in them are relative
    to the manifest's folder. Recordings are looked into and voice files read, each once. The file is never in memory
    as a whole: of a long one its utterances are read anew when they are gone through, from a copy on disk if they came
    from standard input.

    Args:
        source: a path, or "-" for JSON Lines from standard input.
        recipe: the run's. A line may name another instead, or give a mapping of settings to change.
        settings: changes to the run's recipe and to those that lines name; a line's own mapping outdoes them.
        voice: a voice file for the lines that have neither a voice nor a reference of their own.
        limit: read only so many utterances.
        portable_names: refuse ids that not every file system can hold, rather than warn of them.

    Raises ManifestError with all the problems of the file; InputError when `settings` are wrong themselves.
    """
    reading = Reading(source, recipe=recipe, settings=settings, voice=voice, limit=limit, portable_names=portable_names)
    return read_all(reading)


def read_all(reading: "Reading") -> Manifest:
    """Goes through a manifest; keeps its utterances in memory if they are few. Raises ManifestError."""
    kept: list[Utterance] = []
    for utterance in reading:
        if reading.count <= KEPT:
            kept.append(utterance)
    return reading.manifest(kept if reading.count <= KEPT else Lines(reading))


class Reading:
    """A manifest on its way in: go through it once for its utterances, then ask for `manifest`.

    From the first bad line on there are only problems to come.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        recipe: Recipe,
        settings: Mapping[str, object] | None = None,
        voice: str | os.PathLike[str] | None = None,
        limit: int | None = None,
        keep_going: bool = False,
        portable_names: bool = False,
    ):
        """The arguments are those of `read_manifest`. keep_going: leave bad lines out, and go on with the others."""
        self.keep_going = keep_going
        self.source = os.fspath(source)
        self.limit = None if limit is None else min(limit, sys.maxsize)
        name, folder = ("stdin", "") if self.source == "-" else (self.source, os.path.dirname(self.source))
        run_voice = None if voice is None else os.fspath(voice)
        self.checker = _Checker(name, folder, recipe, settings or {}, run_voice)
        self.checker.portable_names = portable_names
        self.once = self.source == "-" or _is_stream(self.source)
        self.copy: IO[bytes] | None = None  # of what can be read once only
        self.version: tuple[int, ...] | None = None  # of the file

    @property
    def count(self) -> int:
        """Good lines so far."""
        return self.checker.count

    def __iter__(self) -> Iterator[Utterance]:
        with _open(self.source, self.checker) as stream:
            if self.once:
                stream = self.copy = _Copied(stream)
            else:
                self.version = _version(stream)
            yield from self._read(stream)

    def again(self) -> Iterator[Utterance]:
        """The utterances once more, without looking again for all that could be wrong.

        Raises ManifestError as soon as the file is seen to be no longer what it was.
        """
        checker = self.checker
        checker.problems, checker.first_time = [], False
        if self.copy is not None:
            self.copy.seek(0)
        with _open(self.source, checker) if self.copy is None else nullcontext(self.copy) as stream:
            for number, utterance in enumerate(self._read(stream)):
                if number % _LINES_A_LOOK == 0:
                    self._look(stream)
                yield utterance
            self._look(stream)
        if checker.problems and not self.keep_going:
            raise self._changed()

    def _look(self, stream: IO[bytes]) -> None:
        """Raises ManifestError where the file changed, in its place or by another of its name."""
        if self.copy is None and not (_version(stream) == self.version == _version(self.source)):
            raise self._changed()

    def _changed(self) -> ManifestError:
        message = "was changed while it was in use: leave it alone until the run ends"
        return ManifestError([InputError(message, file=self.checker.name)])

    def _read(self, stream: IO[bytes]) -> Iterator[Utterance]:
        checker, parse = self.checker, None
        suffix = ".jsonl" if self.source == "-" else os.path.splitext(self.source)[1].lower()
        for text in islice(checker.lines(stream), self.limit):
            parse = parse or _parser(suffix, text, checker)
            try:
                record = parse(text)
            except InputError as error:
                checker.problem(error.field, error.message)
            else:
                if (utterance := checker.add(record)) is not None and (self.keep_going or not checker.problems):
                    yield utterance

    def manifest(self, utterances: Collection[Utterance]) -> Manifest:
        """What is known at its end. Raises ManifestError with all the problems of the file."""
        checker = self.checker
        if not checker.count and not checker.problems:
            checker.problems.append(InputError("no utterances in it: write one a line", file=checker.name))
        # A problem without a line concerns all of them.
        whole = any(problem.line is None for problem in checker.problems)
        if checker.problems and (whole or not (self.keep_going and checker.count)):
            raise ManifestError(checker.problems)
        recipes = {id(found): found for found in checker.recipes.values() if isinstance(found, Recipe)}
        if checker.run_recipe_used:
            recipes[id(checker.run_recipe)] = checker.run_recipe
        return Manifest(
            utterances,
            checker.warnings(),
            checker.name,
            list(recipes.values()),
            checker.recordings,
            checker.voice_lines,
            checker.tag_lines,
            checker.refused(),
            None if self.once else self.source,
            checker.recipe_files,
        )


class Lines(Collection[Utterance]):
    """The utterances of a long manifest: read from the file whenever they are gone through."""

    def __init__(self, reading: Reading):
        self.reading = reading
        self.count = reading.count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Utterance]:
        return self.reading.again()

    def __contains__(self, utterance: object) -> bool:
        return any(utterance == other for other in self)


class _Copied:
    """A stream that keeps on disk what was read from it, for `seek(0)` to begin again."""

    def __init__(self, stream: IO[bytes]):
        self.stream: IO[bytes] | None = stream
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 (as long as this object)

    def readline(self, most: int) -> bytes:
        if self.stream is None:
            return self.file.readline(most)
        line = self.stream.readline(most)
        self.file.write(line)
        return line

    def seek(self, place: int) -> None:
        self.stream = None
        self.file.seek(place)


def read_utterances(records: Iterable[Mapping[str, Any]], *, recipe: Recipe) -> list[Utterance]:
    """Check records that come from Python: mappings with the keys and values of a JSON manifest's lines.

    Paths may be path objects, and are relative to the working directory. Messages call record N `items:N`.
    Raises ManifestError with all the problems; what a manifest's warnings would be are Python warnings.
    """
    checker = _Checker("items", "", recipe, {}, None)
    checker.unit = "item"
    utterances = []
    for checker.line, record in enumerate(records, 1):
        plain = {str(k): os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in record.items()}
        if (utterance := checker.add(plain)) is not None:
            utterances.append(utterance)
    if checker.problems:
        raise ManifestError(checker.problems)
    for message in checker.warnings():
        warnings.warn(message, stacklevel=3)  # the line that called the function that called this one
    return utterances


def _is_stream(source: str) -> bool:
    """Whether it is no file, but a pipe or the like: what was read from it is gone."""
    try:
        return not stat.S_ISREG(mode := os.stat(source).st_mode) and not stat.S_ISDIR(mode)
    except (OSError, ValueError):  # told when it is opened
        return False


def _version(file: IO[bytes] | str) -> tuple[int, ...] | None:
    """Another one when a file was written to, or another took its name; None when it is gone."""
    try:
        found = os.stat(file) if isinstance(file, str) else os.fstat(file.fileno())
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _open(source: str, checker: "_Checker") -> AbstractContextManager[IO[bytes]]:
    if source == "-":
        if sys.stdin is None:
            raise checker.fatal("standard input is closed: pipe JSON Lines into it")
        return nullcontext(sys.stdin.buffer)
    try:
        return open(source, "rb")
    except FileNotFoundError:
        raise checker.fatal("no such file") from None
    except IsADirectoryError:
        raise checker.fatal("a folder, not a manifest: give a .jsonl, .txt or .lst file") from None
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes, such as one with a NUL
        raise checker.fatal(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


# --- The three forms: a line to a record -----------------------------------------------------------------


_FORMS = "a manifest is .jsonl (a JSON object a line), .txt (a text a line) or .lst (id|ref_text|ref_audio|text a line)"


def _parser(suffix: str, first_line: str, checker: "_Checker") -> Callable[[str], dict[str, Any]]:
    """The form of a file: by its suffix, or by its first line when the suffix says nothing."""
    first = first_line.strip()
    if suffix in (".csv", ".tsv"):
        raise checker.fatal(f"a table of columns, which is not read: turn its rows into JSON Lines; {_FORMS}")
    parse = _PARSERS.get(suffix, _json_record if first[0] in "{[" else None)
    if parse is None:
        raise checker.fatal(f"of no known form: rename it to what it is; {_FORMS}")
    if parse is _json_record and (first == "{" or first[0] == "["):
        raise checker.fatal("one JSON document, not a JSON object on each line: `jq -c` can convert it")
    return parse


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in record if keys.count(key) > 1)
        raise InputError("given twice in one object: leave one out", field=printable(twice))
    return record


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def _json_record(line: str) -> dict[str, Any]:
    try:
        record = _DECODER.decode(line)
    except json.JSONDecodeError as error:
        mend = (
            "" if line.lstrip().startswith("{") else '; lines are objects, {"text": ...}; a .txt file holds mere texts'
        )
        raise InputError(f"malformed JSON at column {error.colno}: {error.msg}{mend}") from None
    except RecursionError:
        raise InputError("JSON beyond what can be read: nested too deeply") from None
    except ValueError:
        raise InputError("JSON beyond what can be read: a number of thousands of digits") from None
    if not isinstance(record, dict):
        raise InputError(f'wanted an object such as {{"text": "Hello"}}, got {shown(record)}')
    return record


def _text_record(line: str) -> dict[str, Any]:
    return {"text": line.strip()}


_PARSERS = {".jsonl": _json_record, ".json": _json_record, ".txt": _text_record, ".lst": seed_tts_record}


# How files begin that are taken for a manifest by mistake.
_OTHER_KINDS = (
    (rb"RIFF....WAVE|fLaC\0|OggS\0|ID3[\x02-\x04]|\xff[\xf2\xf3\xfa\xfb]|FORM....AIF[FC]", "an audio file"),
    (rb"PK\x03\x04", "a spreadsheet or a ZIP archive"),
    (rb"\x1f\x8b", "a compressed file, to be unpacked first"),
    (rb".{4}\0{4}\{", "a safetensors file"),
)


def _other_kind(start: bytes) -> str | None:
    """What a file is that begins so, when it is surely no text."""
    return next((kind for pattern, kind in _OTHER_KINDS if re.match(pattern, start, re.DOTALL)), None)


# --- Fields: a value as JSON gives it to what an utterance holds ------------------------------------------
# Each raises InputError with only a message; the checker knows the place.


def _string(value: object) -> str | None:
    """Blank strings, which lists made from tables are full of, count as absent."""
    if not isinstance(value, str):
        raise InputError(f"wanted a text in quotes, got {shown(value)}")
    if _NOT_TEXT.search(value):
        raise InputError(f"has a NUL or half a surrogate pair, which is no text: {shown(value)}")
    return None if not value or value.isspace() else value


_WRITE_WORDS = "write some words, or leave the line out"


def _spoken(value: object) -> str:
    text = _string(value)
    if text is None:
        raise InputError(f"has nothing to say: {_WRITE_WORDS}")
    if not has_words(text):
        raise InputError(f"{shown(text)} has nothing to say, no letter and no digit: {_WRITE_WORDS}")
    return text


def _transcript(value: object) -> str | None:
    text = _string(value)
    if text is not None and not has_words(text):
        raise InputError(f"{shown(text)} has no word in it: write what is spoken in ref_audio")
    return text


def _seconds(value: object) -> float:
    wanted = f"wanted seconds, a number from {1 / FRAME_RATE:g} to {MAX_DURATION:g}, got {shown(value)}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not value * FRAME_RATE >= 1:
        raise InputError(wanted)
    if value > MAX_DURATION:
        raise InputError(f"{wanted}; leave duration out, and long text is made in chunks")
    return float(value)


def _setting(key: str) -> Callable[[object], Any]:
    """The reader of a recipe's setting that a line may also give by itself."""
    setting = SETTINGS[key]

    def read(value: object) -> Any:
        try:
            return setting.read(value)
        except ValueError:
            raise InputError(f"wanted {setting.wanted}, got {shown(value)}") from None

    return read


_speed = _setting("speed")
_seed = _setting("seed")


# --- Records to utterances -------------------------------------------------------------------------------


@dataclass
class _Warned:
    """What is told once of many lines: in which words, of which line first, of how many."""

    message: str
    line: int  # the first
    lines: int = 0
    last: int = 0  # of the lines counted


class _Checker:
    """Turns records into utterances; collects what is wrong, and keeps what lines share: ids, files, recipes.

    After a mistake the methods that read a field return None or what is at hand: the line gives no utterance.
    """

    def __init__(self, name: str, folder: str, recipe: Recipe, settings: Mapping[str, object], voice: str | None):
        self.name = name
        self.unit = "line"  # as messages call a record
        self.folder = folder
        self.settings = settings
        self.run_recipe = with_settings(recipe, settings, file="--set")
        self.run_voice = voice

        self.line: int | None = None  # the number of the latest line
        self.count = 0  # of good lines
        self.first_time = True  # or else the file was checked before
        self.problems: list[InputError] = []
        self.warned: dict[tuple[str, str], _Warned] = {}  # by field and kind
        self.portable_names = False

        self.names = Names()
        self.bad_lines: set[int] = set()
        self.voice_lines: dict[str, int] = {}  # path -> first line
        self.tag_lines: dict[str, int] = {}  # tag -> first line
        self.refused_ids: dict[int, str] = {}  # of bad lines that have a good id
        self.run_recipe_used = False
        self.languages: dict[str, str | None] = {}
        self.unknown_fields: dict[str, str] = {}  # field -> message
        self.file_problems: dict[tuple[str, str], str | None] = {}  # (field, path) -> message
        self.voices: dict[str, tuple[str, int]] = {}  # path -> its transcript and its frames
        self.recordings: dict[str, float] = {}  # path -> seconds
        self.level_doubts: dict[str, list[str]] = {}  # path -> warnings, if there are any
        self.doubted: set[tuple[str, str]] = set()  # (path, transcript)
        self.recipes: dict[str | frozenset, Recipe | InputError] = {}
        self.recipe_files: set[str] = set()

        if voice is not None and (message := self.file_problem("voice", voice)):
            self.problems.append(InputError(message, field="--voice"))

    def problem(self, field: str | None, message: str) -> None:
        self.problems.append(InputError(message, file=self.name, line=self.line, field=field))

    def warn(self, field: str, message: str, kind: str | None = None) -> None:
        """Warnings of one kind, such as those with figures in them, are told as one: the first, and their number."""
        warned = self.warned.setdefault((field, kind or message), _Warned(message, self.line))
        if warned.last != self.line:
            warned.lines, warned.last = warned.lines + 1, self.line

    def fatal(self, message: str) -> ManifestError:
        """What ends the reading: the problems so far and this one."""
        self.problem(None, message)
        return ManifestError(self.problems)

    def refused(self) -> list[Refused]:
        """The bad lines, in order, each with all its problems."""
        problems: dict[int, list[str]] = {}
        for problem in self.problems:
            problems.setdefault(problem.line, []).append(str(problem))
        return [Refused(self.refused_ids.get(line), line, "\n".join(found)) for line, found in problems.items()]

    def warnings(self) -> list[str]:
        messages = []
        for (field, _), warned in self.warned.items():
            more = "" if warned.lines == 1 else f" (and on {counted(warned.lines - 1, f'more {self.unit}')})"
            messages.append(str(InputError(warned.message + more, file=self.name, line=warned.line, field=field)))
        return messages

    def lines(self, stream: IO[bytes]) -> Iterator[str]:
        """The lines that are not blank, one at a time, without the space at their ends."""
        raw_lines = iter(lambda: self.read_line(stream), b"")
        for self.line, raw in enumerate(raw_lines, 1):
            if self.line == 1 and (other := _other_kind(raw)):
                raise self.fatal(f"looks like {other}, not a manifest; {_FORMS}")
            if len(raw) == MAX_LINE_BYTES:
                raise self.fatal(f"a line of over {MAX_LINE_BYTES >> 20} MiB: this is no manifest")
            try:
                # Joined files have a byte-order mark at the head of each.
                text = raw.decode().lstrip("\ufeff")
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                place = f"byte 0x{byte:02x} at column {error.start + 1}"
                self.problem(None, f"not UTF-8 ({place}): save it as UTF-8")
                if self.line == 1:
                    return  # not text at all, or in another encoding: every line would say the same
                continue
            if "\0" in text:
                raise self.fatal("has NUL bytes, as UTF-16 does: save it as UTF-8")
            if text := text.rstrip():
                yield text

    def read_line(self, stream: IO[bytes]) -> bytes:
        try:
            return stream.readline(MAX_LINE_BYTES)
        except OSError as error:
            raise self.fatal(f"cannot be read: {error.strerror or error}") from None

    def add(self, record: dict[str, Any]) -> Utterance | None:
        """The utterance of a record, unless something is wrong with it."""
        if not self.first_time and self.line in self.bad_lines:
            return None  # also for what is looked at the first time only
        problems_before = len(self.problems)
        for key in record.keys() - _FIELD_SET:
            self.unknown_field(key)
        if record.get("text") is None:
            meant = next((key for key in record if key.strip().lower() == "text" and key != "text"), None)
            mend = "say what to speak" if meant is None else f"write the field {shown(meant)} as text"
            self.problem("text", f"missing: {mend}")
        text = self.take(record, "text", _spoken) or ""
        ref_audio, ref_text, voice = self.reference(record)
        utterance = Utterance(
            id=self.id(record),
            text=text,
            language=self.language(record),
            instruct=self.instruct(record, text),
            ref_audio=ref_audio,
            ref_text=ref_text,
            voice=voice,
            duration=self.take(record, "duration", _seconds),
            speed=self.take(record, "speed", _speed),
            seed=self.take(record, "seed", _seed),
            recipe=self.recipe(record),
            line=self.line,
        )
        if utterance.duration is not None and utterance.speed is not None:
            self.warn("speed", "ignored, for duration sets the length")
        if self.first_time and len(self.problems) == problems_before:
            self.look_at(utterance)
        if len(self.problems) > problems_before:
            self.bad_lines.add(self.line)
            if utterance.id is not None:
                self.refused_ids[self.line] = utterance.id
            return None
        if self.first_time:
            self.count += 1
            if utterance.voice is not None:
                self.voice_lines.setdefault(utterance.voice, self.line)
        return utterance

    def take(self, record: dict[str, Any], field: str, read: Callable[[object], Any]) -> Any:
        """The field's value, read; None when it is absent or null."""
        value = record.get(field)
        if value is None:
            return None
        try:
            return read(value)
        except InputError as error:
            self.problem(field, error.message)
            return None

    def unknown_field(self, key: str) -> None:
        if key not in self.unknown_fields:
            near = nearest(key, FIELDS)
            hint = f"did you mean {near}?" if near else f"the fields are {', '.join(FIELDS)}"
            self.unknown_fields[key] = f"unknown field, ignored: {hint}"
        self.warn(printable(key), self.unknown_fields[key])

    def id(self, record: dict[str, Any]) -> str | None:
        value = f"{self.line:06d}" if record.get("id") is None else self.take(record, "id", read_id)
        if value is None or not self.first_time:
            return value
        first, twin = self.names.add(value, self.line)
        if first is not None:
            self.problem("id", f"{shown(value)} is the id of {self.unit} {first} too: each names an output")
            return None
        for rule, doubt in doubts(value):
            self.doubtful_id(rule, doubt)
        if twin is not None:
            self.doubtful_id("twin", twin_doubt(value, f"{self.unit} {twin}"))
            # Where it is refused, the file of its name may be that of the good line.
            return None if self.portable_names else value
        return value

    def doubtful_id(self, rule: str, message: str) -> None:
        if self.portable_names:
            self.problem("id", message)
        else:
            self.warn("id", message, kind=rule)

    def language(self, record: dict[str, Any]) -> str | None:
        """The first of the language fields that names a known one; a warning when none does, or another disagrees."""
        given = {key: name for key in _LANGUAGE_FIELDS if (name := self.take(record, key, _string)) is not None}
        for name in given.values():
            if name not in self.languages:
                self.languages[name] = resolve_language(name)
        known = {key: self.languages[name] for key, name in given.items() if self.languages[name] is not None}
        key = next(iter(known), None)
        for other, another in known.items():
            if another != known[key]:
                self.warn(other, f"{shown(given[other])} is ignored, for {key} says {shown(given[key])}")
        if given and not known:
            key, name = next(iter(given.items()))
            near = near_languages(name)
            mend = f": did you mean {' or '.join(near)}?" if near else "; see `omnitts languages`"
            self.warn(key, f"unknown language {shown(name)}, spoken without one{mend}")
        return next(iter(known.values()), None)

    def instruct(self, record: dict[str, Any], text: str) -> str | None:
        return self.take(record, "instruct", lambda value: resolve_instruct(_string(value), text))

    def reference(self, record: dict[str, Any]) -> tuple[str | None, str | None, str | None]:
        """(ref_audio, ref_text, voice): the line's own, or else the run's voice, or nothing."""
        readers = (_string, _transcript if record.get("ref_audio") else _string, _string)
        ref_audio, ref_text, voice = map(partial(self.take, record), _REFERENCE_FIELDS, readers)
        if ref_audio is not None and voice is not None:
            self.problem("voice", "stands beside ref_audio: a line takes one of them")
        given = record.get("ref_text")
        not_given = given is None or (isinstance(given, str) and not given.strip())
        if ref_audio is not None and not_given:
            self.problem(
                "ref_text",
                "missing: ref_audio needs the words that are spoken in it, which are not recognized for you; "
                "write them in ref_text, or keep both in a voice file and give that as voice",
            )
        if ref_audio is None and ref_text is not None:
            self.warn("ref_text", "ignored, for it goes with ref_audio")
        if ref_audio is not None:
            path = self.file("ref_audio", ref_audio)
            if ref_text is not None:
                self.doubt(path, ref_text)
            return path, ref_text, None
        return None, None, self.run_voice if voice is None else self.file("voice", voice)

    def file(self, field: str, path: str) -> str:
        path = os.path.join(self.folder, path)
        if message := self.file_problem(field, path):
            self.problem(field, message)
        return path

    def look_at(self, utterance: Utterance) -> None:
        """Refuses a clip too long to be made, and warns of what is hardly meant.

        With a recording the lengths depend on that one's pace: see `plan`.
        """
        for tag in find_tags(utterance.text):
            self.tag_lines.setdefault(tag, self.line)
        if utterance.ref_audio is not None:
            seconds = seconds_of(utterance)
        else:
            lengths = [frames for _, frames in clips_of(utterance, *self.voices.get(utterance.voice, (None, 0)))]
            seconds = sum(lengths) / FRAME_RATE
            if message := too_long(max(lengths)):
                self.problem("text", message)
        for doubt in (*text_doubts(utterance.text), *length_doubts(utterance, seconds)):
            self.warn(doubt.field, doubt.message, doubt.kind)

    def doubt(self, path: str, ref_text: str) -> None:
        """Warns of a reference that will serve badly."""
        seconds = self.recordings.get(path)
        if seconds is not None and (path, ref_text) not in self.doubted:
            self.doubted.add((path, ref_text))
            for message in self.level_doubts.get(path, ()):
                self.warn("ref_audio", message)
            for field, message in reference_doubts(path, seconds, ref_text):
                self.warn(field, message)

    def file_problem(self, field: str, path: str) -> str | None:
        """What is wrong with a reference recording or a voice file, if anything; each is opened once."""
        if (field, path) not in self.file_problems:
            # Imported here: many manifests name no such files, and this module takes a while to import.
            from omnitts.levels import level_doubts
            from omnitts.model.voice import check_recording, load_voice

            try:
                if field == "ref_audio":
                    probe = check_recording(path)
                    self.recordings[path] = probe.seconds
                    if doubts := list(level_doubts(path, probe.levels)):
                        self.level_doubts[path] = doubts
                else:
                    voice = load_voice(path)
                    self.voices[path] = voice.text, voice.frames
                self.file_problems[field, path] = None
            except InputError as error:
                self.file_problems[field, path] = error.message
        return self.file_problems[field, path]

    def recipe(self, record: dict[str, Any]) -> Recipe | None:
        given = record.get("recipe")
        if given is None:
            self.run_recipe_used = True
            return self.run_recipe
        key = given
        if isinstance(given, dict):
            given = {name: value for name, value in given.items() if value is not None}
            # Not by the values themselves: to Python true, 1 and 1.0 are the same key.
            key = frozenset((name, shown(value)) for name, value in given.items())
        elif not isinstance(given, str):
            message = f"wanted a recipe's name or file, or a mapping of settings, got {shown(given)}"
            self.problem("recipe", message)
            return None
        elif not given.strip():
            self.problem("recipe", "is blank: name a recipe, or leave it out")
            return None
        if key not in self.recipes:
            try:
                self.recipes[key] = self.resolve_recipe(given)
            except InputError as error:
                self.recipes[key] = error
        found = self.recipes[key]
        if isinstance(found, InputError):
            self.problem(found.field, found.message)
            return None
        return found

    def resolve_recipe(self, given: str | dict[str, object]) -> Recipe:
        """The recipe that is named, or the run's with the settings given; InputError with the field."""
        if isinstance(given, dict):
            recipe = with_settings(self.run_recipe, given, field="recipe")
        else:
            try:
                recipe = load_recipe(given, folder=self.folder)
                if (path := recipe_file(given, folder=self.folder)) is not None:
                    self.recipe_files.add(path)
            except InputError as error:
                raise InputError(str(error), field="recipe") from None
            if recipe.precision == "auto":  # has no wish of its own, so it goes along with the run
                recipe = replace(recipe, precision=self.run_recipe.precision)
            recipe = with_settings(recipe, self.settings, field="recipe")
        if recipe.precision != self.run_recipe.precision:
            raise InputError(
                f"{recipe.precision}, but {self.run_recipe.precision} for the run: one holds for a whole run",
                field="recipe.precision",
            )
        return recipe

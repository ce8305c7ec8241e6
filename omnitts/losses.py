"""What a run would destroy, found before it starts: files that it reads, that it did not write, or of another manifest.

None of these is replaced or removed. A file of omnitts's own is one that a line of results.jsonl tells of.
"""

import os
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from omnitts.claims import name_in, read_claims
from omnitts.dump.format import is_dump
from omnitts.errors import InputError, counted, shown_path
from omnitts.files import another_run, is_open_alone
from omnitts.fingerprint import State
from omnitts.inputs import Inputs
from omnitts.ledger import Entry, Ledger, hash_of
from omnitts.manifest import Manifest, Utterance
from omnitts.output import Output
from omnitts.results import are_results, content_key, refuse_other_parts
from omnitts.shards import shard_paths
from omnitts.summary import is_summary

_SHOWN = 3  # names in a message


@dataclass
class _Found:
    """Paths of a kind: how many there are, and the first."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        self.count += 1
        if self.count <= _SHOWN:
            self.first.append(text)

    def __str__(self) -> str:
        more = f" and {self.count - _SHOWN:,} more" if self.count > _SHOWN else ""
        return ", ".join(self.first) + more


def refuse_losses(output: Output, lines: Manifest, inputs: Inputs) -> None:
    """Raises InputError where the run that `output` describes would cost somebody a file.

    lines: the manifest. inputs: all files that the run reads. With `output.replace_files` files may be lost that are no
    inputs. The folder may be missing. A long manifest is gone through once more, unless there is nothing to lose.
    """
    folders = [output.folder] if output.dumps is None else [output.folder, output.dumps.folder]
    if not any(_holds_any(folder) for folder in folders):
        return
    try:
        if output.results.is_file() and is_open_alone(output.results):
            raise another_run(output.folder, "--out")
        refuse_other_parts(output.folder, output.results)
        check = _Check(output, lines, inputs)
        check.fixed_files()
        check.utterances()
    except OSError as error:
        message = f"cannot be looked through: {error.strerror or error}"
        raise InputError(message, file=error.filename, field="--out") from None
    check.refuse()


class _Check:
    """Collects what would be lost."""

    def __init__(self, output: Output, lines: Manifest, inputs: Inputs):
        self.output, self.lines, self.inputs = output, lines, inputs
        self.ledger = Ledger(output.folder)
        self.claims = read_claims(output.folder, output.journal)
        self.hit, self.foreign, self.others = _Found(), _Found(), _Found()
        self.other_manifest: str | None = None
        self.same: dict[str | None, bool] = {}  # manifests that results name: whether they are this one

    def fixed_files(self) -> None:
        """What a run writes whatever its lines are."""
        output = self.output
        for path, is_own in ((output.results, are_results), (output.summary, is_summary)):
            there = self._no_input(path) and os.path.lexists(path) and not path.is_dir()
            if there and not is_own(path):
                self.foreign.add(shown_path(path))
        if output.shard_size is not None:
            for path in shard_paths(output.folder, output.part):
                if self._no_input(path):
                    self._own_or_foreign(path)

    def utterances(self) -> None:
        """The files of each line. The good lines of bad ones have theirs removed."""
        output = self.output
        number, parts = output.part or (1, 1)
        for utterance in islice(self.lines.utterances, number - 1, None, parts):
            free = [self._no_input(path) and self._own_or_foreign(path) for path in output.targets(utterance.id)]
            if all(free):
                self._of_this_manifest(utterance)
        for bad in islice(self.lines.refused, number - 1, None, parts):
            if bad.id is not None:
                for path in output.targets(bad.id):
                    if self.ledger.tells(output.name_of(path)):
                        self._no_input(path)

    def _no_input(self, path: Path) -> bool:
        found = self.inputs.find(path)
        if found is not None:
            self.hit.add(f"{shown_path(path)} is {found}")
        return found is None

    def _own_or_foreign(self, path: Path) -> bool:
        """Whether nobody's file is there; a folder is left to the system, which refuses to replace it."""
        if not os.path.lexists(path):
            return True
        state = self.ledger.state(self.output.name_of(path))
        if state is State.WHOLE or path.is_dir():
            return True
        own = state not in (None, State.CHANGED) or self._claimed(path) or _is_a_dump(path, self.output)
        if not own:
            self.foreign.add(
                f"{shown_path(path)} (changed since it was written)" if state is State.CHANGED else shown_path(path)
            )
        return own

    def _claimed(self, path: Path) -> bool:
        claim = self.claims.get(self.output.name_of(path))
        return claim is not None and claim.holds()

    def _of_this_manifest(self, utterance: Utterance) -> None:
        entry = self.ledger.entry(utterance.id)
        if entry is None or not entry.ok or not entry.content or not entry.tells_manifest:
            return
        if not self._same_source(entry, utterance) and entry.content != hash_of(content_key(utterance)):
            self.other_manifest = _as_from_here(self.output.folder, entry.manifest)
            self.others.add(utterance.id)

    def _same_source(self, entry: Entry, utterance: Utterance) -> bool:
        """Whether a line is an earlier reading of this one. What came through a pipe has no name to go by."""
        source = self.lines.source
        if entry.manifest is None and source is None:
            return utterance.id != f"{utterance.line:06d}"
        if entry.manifest not in self.same:
            self.same[entry.manifest] = same_manifest(entry.manifest, source, self.output.folder)
        return self.same[entry.manifest]

    def refuse(self) -> None:
        """Raises InputError for what was found, the worst first."""
        if self.hit.count:
            files = counted(self.hit.count, "file")
            message = (
                f"{files} that this run reads would be written over: {self.hit}; choose another folder, or other ids"
            )
            raise InputError(message, field="--out")
        if self.output.replace_files:
            return
        if self.foreign.count:
            raise InputError(
                f"{counted(self.foreign.count, 'file')} in the way that omnitts did not write: {self.foreign}; "
                "move them, or choose another folder; --replace-files replaces them",
                field="--out",
            )
        if self.others.count:
            raise InputError(self._another_job(), field="--out")

    def _another_job(self) -> str:
        folder, stem = self.output.folder, Path(self.lines.name).stem
        mine, other = shown_path(self.lines.name), shown_path(self.other_manifest or "")
        return (
            f"{shown_path(folder)} holds {counted(self.others.count, 'line')} of {other} under ids that {mine} has "
            f"too: {self.others}; choose a folder for each, such as {shown_path(folder / stem)}, or give ids of their "
            f'own, such as "{stem}-{self.others.first[0]}"; --replace-files replaces them'
        )


def same_manifest(recorded: str | None, source: str | None, folder: Path) -> bool:
    """Whether results of a manifest, recorded by its path from the folder, are of the file `source`.

    Folder and manifest may have moved together, or to another machine: then the recorded file is gone, and its name is
    what counts. None stands for standard input.
    """
    if recorded is None or source is None:
        return recorded is source
    path = folder / recorded
    try:
        return os.path.samefile(path, source)
    except OSError:
        return path.name == os.path.basename(source)


def source_of(manifest: Manifest, folder: Path) -> str | None:
    """A manifest as results.jsonl names it: its path from the folder; None where it came through a pipe."""
    if manifest.source is None:
        return None
    try:
        return name_in(folder, Path(manifest.source))
    except ValueError:  # on another drive
        return Path(os.path.abspath(manifest.source)).as_posix()


def _as_from_here(folder: Path, recorded: str | None) -> str:
    """A recorded manifest in words, by its path from the current folder where it is there."""
    if recorded is None:
        return "an earlier pipe or standard input"
    return os.path.relpath(folder / recorded) if (folder / recorded).exists() else recorded


def _holds_any(folder: Path) -> bool:
    try:
        with os.scandir(folder) as found:
            return next(found, None) is not None
    except OSError:
        return False


def _is_a_dump(path: Path, output: Output) -> bool:
    return output.dumps is not None and path.parent == output.dumps.folder and is_dump(path)

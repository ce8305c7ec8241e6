"""What is asked to be dumped, from the command line's options, checked."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from omnitts.dump.format import SUFFIX
from omnitts.errors import InputError, counted
from omnitts.manifest import Utterance
from omnitts.recipe import Recipe
from omnitts.trace import Watch


@dataclass(frozen=True)
class Dumps:
    """Which utterances' loops are dumped, what of them, and where to."""

    folder: Path
    watch: Watch = Watch()  # noqa: RUF009 (frozen)
    ids: frozenset[str] | None = None  # None: all
    dtype: type[np.floating] = np.float16

    def path(self, id: str) -> Path:
        return self.folder / f"{id}{SUFFIX}"

    def wants(self, id: str) -> bool:
        return self.ids is None or id in self.ids

    def of(self, utterance: Utterance) -> Watch | None:
        """What to keep of an utterance's loops."""
        return self.watch if self.wants(utterance.id) else None


def read_dumps(
    folder: str | None, steps: str | None, top: int | None, ids: str | None, dtype: str | None
) -> Dumps | None:
    """The values of --dump-logprobs, -steps, -top, -ids and -dtype; None without any. Raises InputError."""
    if folder is None:
        given = {"--dump-steps": steps, "--dump-top": top, "--dump-ids": ids, "--dump-dtype": dtype}
        for option, value in given.items():
            if value is not None:
                raise InputError("of no use without --dump-logprobs FOLDER", field=option)
        return None
    watch = _read_steps("all" if steps is None else steps, top or 0)
    names = None if ids is None else frozenset(name.strip() for name in ids.split(",") if name.strip())
    if names is not None and not names:
        raise InputError("names no utterance: give ids, with commas between them", field="--dump-ids")
    return Dumps(Path(folder), watch, names, np.float32 if dtype == "float32" else np.float16)


def check_dumps(dumps: Dumps, utterances: Iterable[Utterance], recipes: Iterable[Recipe]) -> None:
    """Raises InputError unless all that is to be dumped is there.

    recipes: those of the utterances.
    """
    if dumps.ids is not None:
        unknown = sorted(dumps.ids - {utterance.id for utterance in utterances})
        if unknown:
            raise InputError(f"{_some(unknown)}: no such id in the manifest", field="--dump-ids")
    if dumps.watch.only is not None:
        most = max(recipe.num_step for recipe in recipes)
        beyond = sorted(step for step in dumps.watch.only if step >= most)
        if beyond:
            steps = _some([str(step) for step in beyond])
            raise InputError(f"{steps}: there are {counted(most, 'step')}, from 0", field="--dump-steps")


def _read_steps(text: str, top_n: int) -> Watch:
    if text == "all":
        return Watch(top_n=top_n)
    if match := re.fullmatch(r"every:([1-9][0-9]{0,3})", text):
        return Watch(every=int(match[1]), top_n=top_n)
    if re.fullmatch(r"[0-9]{1,4}( *, *[0-9]{1,4})*", text):
        return Watch(only=frozenset(map(int, text.split(","))), top_n=top_n)
    raise InputError(f"{text!r}: wanted all, every:N, or numbers from 0 such as 0,7,31", field="--dump-steps")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

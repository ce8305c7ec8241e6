"""A dump's arrays and its file: safetensors, so that they can be mapped into memory and read by any program."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from omnitts.errors import InputError, shown_path
from omnitts.files import atomic_path
from omnitts.model.duration import FRAME_RATE

FORMAT = "omnitts-dump"
VERSION = 1
SUFFIX = ".dump.safetensors"
_MAKE_ONE = "`omnitts synth --dump-logprobs FOLDER` writes them"
_FLOATS = (np.float16, np.float32)


@dataclass(frozen=True)
class Piece:
    """A clip that was made by a loop of its own: a whole utterance, or a chunk of a long text."""

    frames: int
    seed: int


@dataclass(frozen=True)
class Dump:
    """One utterance: S dumped steps over a canvas of C codebooks and T frames (25 a second). No number is NaN.

    A step is named by its number in the recipe's schedule, from 0; those that reveal nothing are not run. Where an
    utterance of several pieces has a step that one of them did not run, its tokens there are -1 and its numbers 0.
    """

    id: str
    text: str
    language: str | None
    instruct: str | None
    reference: str | None  # the recording or voice file that was cloned, as the manifest names it
    pieces: tuple[Piece, ...]  # end to end in time
    recipe: Mapping[str, Any]  # every setting, with the recipe's name
    model_digest: str
    device: str
    dtype: str  # that the model ran in
    versions: Mapping[str, str]
    engine_seconds: float  # of the loop: the utterance's share, by positions, of its batches' time
    error: str | None  # why there is no audio, if so

    steps: np.ndarray  # int32 [S], the steps' numbers, ascending
    tokens: np.ndarray  # int16 [S, C, T], what each cell would be: the sampler's choice, for revealed cells too
    logprobs: np.ndarray  # float16 or float32 [S, C, T], the token's, under the guided distribution
    confidence: np.ndarray  # same, the largest logprob of a token that is allowed
    scores: np.ndarray  # same, what ranked the cell: the largest are revealed; -inf where it was revealed before
    cond_logprobs: np.ndarray  # same, the token's without guidance
    uncond_logprobs: np.ndarray  # same, the token's for the target alone, without text or reference; where a step had
    # no guidance, cond_logprobs again
    revealed: np.ndarray  # int16 [C, T], the number of the step that revealed the cell
    codes: np.ndarray  # int16 [C, T], the result
    top_tokens: np.ndarray | None = None  # int16 [S, C, T, N], the likeliest tokens, -1 where there are fewer
    top_logprobs: np.ndarray | None = None  # float16 or float32 [S, C, T, N]; -inf where there is no token

    @property
    def frames(self) -> int:
        return self.codes.shape[1]

    @property
    def codebooks(self) -> int:
        return self.codes.shape[0]

    @property
    def seconds(self) -> float:
        """Of the codes; the finished audio may be shorter, with its silences cut, or longer, with joins."""
        return self.frames / FRAME_RATE

    @property
    def num_step(self) -> int:
        """Steps of the schedule, dumped or not."""
        return self.recipe["num_step"]

    def masked(self) -> np.ndarray:
        """Whether a cell was still to be revealed when a step began: bool [S, C, T]."""
        return self.revealed >= self.steps[:, None, None]

    def revealed_per_step(self) -> np.ndarray:
        """Cells that each step of the schedule revealed: int64 [num_step]."""
        return np.bincount(self.revealed.ravel(), minlength=self.num_step)

    def at_reveal(self, values: np.ndarray) -> np.ndarray:
        """Of an array [S, C, T], each cell's value at the step that revealed it: float32 [C, T].

        NaN where that step was not dumped.
        """
        if not len(self.steps):
            return np.full(self.codes.shape, np.nan, np.float32)
        at = np.searchsorted(self.steps, self.revealed)
        inside = np.minimum(at, len(self.steps) - 1)
        found = self.steps[inside] == self.revealed
        picked = np.take_along_axis(values, inside[None], axis=0)[0].astype(np.float32)
        return np.where(found, picked, np.nan)


_ARRAYS = tuple(field.name for field in fields(Dump) if field.type in (np.ndarray, np.ndarray | None))
_OPTIONAL = ("top_tokens", "top_logprobs")
_NUMBERS = ("logprobs", "confidence", "scores", "cond_logprobs", "uncond_logprobs", "top_logprobs")
_META = tuple(field.name for field in fields(Dump) if field.name not in _ARRAYS)
_META_TYPES = {
    **dict.fromkeys(("id", "text", "model_digest", "device", "dtype"), str),
    **dict.fromkeys(("language", "instruct", "reference", "error"), str | None),
    **{"recipe": dict, "versions": dict, "engine_seconds": int | float},
}


def save(path: str | PathLike, dump: Dump) -> None:
    """Writes a dump, whole or not at all. Raises OSError when the disk refuses."""
    data = to_bytes(dump)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)


def to_bytes(dump: Dump) -> bytes:
    """A dump as the content of its file."""
    from safetensors.numpy import save as serialized

    arrays = {name: np.ascontiguousarray(value) for name in _ARRAYS if (value := getattr(dump, name)) is not None}
    meta = {name: getattr(dump, name) for name in _META} | {"pieces": [asdict(piece) for piece in dump.pieces]}
    texts = {name: json.dumps(value, default=dict) for name, value in meta.items()}
    return serialized(arrays, {"format": FORMAT, "version": str(VERSION), **texts})


def load(path: str | PathLike) -> Dump:
    """Reads a dump. Raises InputError for a file that is none, is damaged, or is of a later version."""
    from safetensors import SafetensorError, safe_open

    if Path(path).is_dir():
        raise InputError(f"a folder, not a dump: {shown_path(path)}")
    try:
        with safe_open(path, framework="np") as file:
            texts = file.metadata() or {}
            _check_format(texts, path)
            names = set(file.keys())
            missing = [name for name in _ARRAYS if name not in names and name not in _OPTIONAL]
            if missing:
                raise _damaged(path, f"no {', '.join(missing)}")
            arrays = {name: file.get_tensor(name) for name in _ARRAYS if name in names}
    except FileNotFoundError as error:
        raise InputError(f"no such file: {shown_path(path)}") from error
    except (SafetensorError, OSError, TypeError) as error:  # TypeError: a dtype that numpy lacks
        raise InputError(f"not a dump, or a damaged one: {shown_path(path)} ({error}); {_MAKE_ONE}") from error
    dump = Dump(**_read_meta(texts, path), **arrays)
    _check_arrays(dump, path)
    return dump


def is_dump(path: str | PathLike) -> bool:
    """Whether a file says of itself that it is a dump, of whatever version; a link is none."""
    from safetensors import SafetensorError, safe_open

    if os.path.islink(path):
        return False
    try:
        with safe_open(path, framework="np") as file:
            return (file.metadata() or {}).get("format") == FORMAT
    except (SafetensorError, OSError, TypeError):
        return False


def paths(folder: str | PathLike) -> list[Path]:
    """The dumps in a folder, by name. Raises InputError when there are none."""
    if not Path(folder).is_dir():
        known = "a file, not a folder of dumps" if Path(folder).exists() else "no such folder"
        raise InputError(f"{known}: {shown_path(folder)}")
    found = sorted(Path(folder).glob(f"**/*{SUFFIX}"))
    if not found:
        raise InputError(f"no dumps (*{SUFFIX}) in {shown_path(folder)}; {_MAKE_ONE}")
    return found


def _check_format(texts: Mapping[str, str], path: str | PathLike) -> None:
    if texts.get("format") != FORMAT:
        raise InputError(f"a safetensors file, but not a dump: {shown_path(path)}; {_MAKE_ONE}")
    version = texts.get("version", "")
    if version != str(VERSION):
        raise InputError(
            f"a dump of version {version!r}, this omnitts reads {VERSION}: {shown_path(path)}; update omnitts"
        )


def _read_meta(texts: Mapping[str, str], path: str | PathLike) -> dict[str, Any]:
    try:
        meta = {name: json.loads(texts[name]) for name in _META}
        pieces = tuple(Piece(**piece) for piece in meta["pieces"])
        if not isinstance(meta["recipe"]["num_step"], int) or not all(isinstance(p.frames, int) for p in pieces):
            raise TypeError("numbers that are none")
        wrong = [name for name, wanted in _META_TYPES.items() if not isinstance(meta[name], wanted)]
        if wrong:
            raise TypeError(f"{wrong[0]} is {meta[wrong[0]]!r}")
    except (KeyError, ValueError, TypeError) as error:
        raise _damaged(path, f"its metadata: {error}") from error
    return meta | {"pieces": pieces}


def _check_arrays(dump: Dump, path: str | PathLike) -> None:
    if dump.codes.ndim != 2 or dump.steps.ndim != 1:
        raise _damaged(path, "codes or steps have another number of dimensions")
    canvas = dump.codes.shape
    cells = (len(dump.steps), *canvas)
    wanted: dict[str, tuple[Sequence[Any], tuple[int, ...]]] = {
        "steps": ((np.int32,), (len(dump.steps),)),
        "tokens": ((np.int16,), cells),
        "revealed": ((np.int16,), canvas),
        "codes": ((np.int16,), canvas),
        **{name: (_FLOATS, cells) for name in _NUMBERS if name != "top_logprobs"},
    }
    if (dump.top_tokens is None) != (dump.top_logprobs is None):
        raise _damaged(path, "only one of top_tokens and top_logprobs")
    if dump.top_tokens is not None:
        top = (*cells, dump.top_tokens.shape[-1] if dump.top_tokens.ndim == 4 else 0)
        wanted |= {"top_tokens": ((np.int16,), top), "top_logprobs": (_FLOATS, top)}
    for name, (dtypes, shape) in wanted.items():
        array = getattr(dump, name)
        if array.dtype not in dtypes or array.shape != shape:
            names = " or ".join(np.dtype(dtype).name for dtype in dtypes)
            raise _damaged(path, f"{name} is {array.dtype} {list(array.shape)} instead of {names} {list(shape)}")
    if (np.diff(dump.steps) <= 0).any():
        raise _damaged(path, "its steps are not in order")
    if canvas[1] and not 0 <= dump.revealed.min() <= dump.revealed.max() < dump.num_step:
        raise _damaged(path, "cells are revealed at steps that its recipe does not have")
    if sum(piece.frames for piece in dump.pieces) != canvas[1]:
        raise _damaged(path, "its pieces are not as long as its codes")


def _damaged(path: str | PathLike, why: str) -> InputError:
    return InputError(f"a damaged dump: {shown_path(path)} ({why}); make it again")

"""Where two runs of the same text part, and whether that looks like rounding."""

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from omnitts.dump.figures import difference, mean
from omnitts.dump.format import Dump
from omnitts.errors import InputError, counted, shown_path
from omnitts.model.duration import FRAME_RATE
from omnitts.recipe import SETTINGS, printable

# What a dump's numbers may differ by and still be equal, absolute and again relative to the larger.
_STORAGE_ROUNDING = {"float16": 1e-3, "float32": 1e-5}
# How far logprobs in nats may lie apart, as a rule of thumb, where all that differs is the order of sums in a model
# of this dtype: guidance makes the logits' own rounding several times as large.
_MODEL_ROUNDING = {"float32": 0.02, "float16": 0.25, "bfloat16": 1.0}
_FEWER_BITS = 2.0
_WIDTH = 98
_NUMBERS = ("logprobs", "confidence", "scores", "cond_logprobs", "uncond_logprobs")
# Settings that change neither what is computed nor from which noise; the pieces have the seeds.
_HARMLESS = ("precision", "seed", "postprocess_output", "match_loudness")


@dataclass(frozen=True)
class StepDifference:
    """Of one step that both dumps have."""

    step: int
    tokens: int  # cells whose predicted token differs, revealed ones too
    revealed: int  # cells that only one of the runs revealed at this step
    mean: float  # absolute difference of the logprobs over cells finite in both; NaN where there are none
    largest: float


@dataclass(frozen=True)
class Parting:
    """The first step at which the runs differ in tokens or reveals, and its first cell in order of time.

    Of several pieces it is the first one that differs: what comes of it may be the reference of the others. Pairs are
    run A's and run B's. What a run did not dump is None in `tokens`, and NaN in `logprobs`.
    """

    piece: int
    step: int
    codebook: int
    frame: int  # of the utterance
    what: str  # "predicted tokens", "revealed cells" or both
    cells: int  # how many of the piece differ at this step
    tokens: tuple[int | None, int | None]
    logprobs: tuple[float, float]
    gap: float  # between the two candidates at this cell, in logprob or score; NaN where it is not known
    largest_gap: float  # over all cells that differ at this step
    before: float  # the largest difference of logprobs at the dumped steps before this one; NaN where there are none
    at: float  # and at this step, over the cells with the same token

    @property
    def seconds(self) -> float:
        return self.frame / FRAME_RATE


@dataclass(frozen=True)
class Difference:
    """Of two dumps, A and B. Equal means: the same choices throughout, and numbers within the dumps' rounding."""

    steps: tuple[StepDifference, ...]
    parting: Parting | None
    canvas: tuple[int, int] | None  # piece and step, the first to reveal other cells or tokens: from there on the runs
    # see other canvases
    pieces: int
    codes: int  # cells whose final code differs
    beyond_rounding: int  # numbers that differ by more than the dumps' dtype explains
    metadata: tuple[tuple[str, str, str], ...]  # name, A's value, B's value; what differs
    causes: tuple[str, ...]  # those of them that make another result: seed, settings, model, voice
    tolerance: float  # nats that rounding in the models' dtype may explain

    @property
    def equal(self) -> bool:
        return self.parting is None and not self.codes and not self.beyond_rounding


def compare(a: Dump, b: Dump) -> Difference:
    """Compares two dumps at the steps that both have. Raises InputError when that makes no sense."""
    common = _common_steps(a, b)
    metadata, pieces = tuple(_metadata(a, b)), _by_piece(a, b)
    return Difference(
        steps=tuple(_at_step(a, b, step) for step in common),
        parting=next(filter(None, (_parting(*piece, common) for piece in pieces)), None),
        canvas=next(filter(None, (_canvas(*piece) for piece in pieces)), None),
        pieces=len(pieces),
        codes=int((a.codes != b.codes).sum()),
        beyond_rounding=sum(_beyond_rounding(a, b, step) for step in common),
        metadata=metadata,
        causes=tuple(name for name, _, _ in metadata if _is_cause(name)),
        tolerance=max(_MODEL_ROUNDING.get(dump.dtype, _FEWER_BITS) for dump in (a, b)),
    )


def _common_steps(a: Dump, b: Dump) -> list[int]:
    if a.text != b.text:
        raise InputError("the dumps are of different texts: compare two runs of the same line")
    if a.codes.shape != b.codes.shape:
        sizes = " and ".join(
            f"{counted(dump.frames, 'frame')} of {counted(dump.codebooks, 'codebook')}" for dump in (a, b)
        )
        raise InputError(f"the dumps differ in length, {sizes}: give both runs the same `duration` or reference")
    common = np.intersect1d(a.steps, b.steps).tolist()
    if not common:
        raise InputError("the dumps have no step in common: make both with the same --dump-steps")
    return common


def _row(dump: Dump, step: int) -> int | None:
    """The index of a step in the arrays; None where it was not dumped."""
    index = int(np.searchsorted(dump.steps, step))
    return index if index < len(dump.steps) and dump.steps[index] == step else None


# ---- Step by step ----


def _at_step(a: Dump, b: Dump, step: int) -> StepDifference:
    i, j = _row(a, step), _row(b, step)
    apart = np.abs(difference(a.logprobs[i], b.logprobs[j]))
    return StepDifference(
        step=step,
        tokens=int((a.tokens[i] != b.tokens[j]).sum()),
        revealed=int(((a.revealed == step) != (b.revealed == step)).sum()),
        mean=mean(apart),
        largest=_largest(apart),
    )


def _beyond_rounding(a: Dump, b: Dump, step: int) -> int:
    i, j = _row(a, step), _row(b, step)
    beyond = 0
    for name in _NUMBERS:
        one, other = getattr(a, name)[i], getattr(b, name)[j]
        rounding = max(_STORAGE_ROUNDING[array.dtype.name] for array in (one, other))
        close = np.isclose(one.astype(np.float64), other.astype(np.float64), rtol=rounding, atol=rounding)
        beyond += int((~close).sum())
    return beyond


def _largest(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else math.nan


# ---- The parting ----


@dataclass(frozen=True)
class _Place:
    """Where a piece is in its utterance."""

    number: int
    frame: int


def _by_piece(a: Dump, b: Dump) -> list[tuple[_Place, Dump, Dump]]:
    """Both dumps cut into their pieces; whole, as if made in one, when these are not the same."""
    lengths = [piece.frames for piece in a.pieces]
    if lengths != [piece.frames for piece in b.pieces]:
        return [(_Place(0, 0), a, b)]
    starts = np.cumsum([0, *lengths]).tolist()
    return [
        (_Place(number, start), _cut(a, start, end), _cut(b, start, end))
        for number, (start, end) in enumerate(pairwise(starts))
    ]


def _cut(dump: Dump, start: int, end: int) -> Dump:
    names = ("tokens", *_NUMBERS, "revealed", "codes")
    return replace(dump, **{name: getattr(dump, name)[..., start:end] for name in names})


def _canvas(place: _Place, a: Dump, b: Dump) -> tuple[int, int] | None:
    steps = _steps_of_other_canvases(a, b)
    return (place.number, min(steps)) if steps else None


def _parting(place: _Place, a: Dump, b: Dump, common: list[int]) -> Parting | None:
    step = _first_difference(a, b, common)
    if step is None:
        return None
    tokens, revealed = _different_cells(a, b, step)
    what = " and ".join(
        name for name, cells in (("predicted tokens", tokens), ("revealed cells", revealed)) if cells.any()
    )
    cells = tokens | revealed
    frame, codebook = (int(place) for place in np.argwhere(cells.T)[0])
    gaps = _gaps(a, b, step, tokens, revealed)
    i, j = _row(a, step), _row(b, step)
    at = math.nan
    if i is not None and j is not None:
        at = _largest(np.abs(difference(a.logprobs[i][~tokens], b.logprobs[j][~tokens])))
    return Parting(
        piece=place.number,
        step=step,
        codebook=codebook,
        frame=place.frame + frame,
        what=what,
        cells=int(cells.sum()),
        tokens=(_token(a, step, codebook, frame), _token(b, step, codebook, frame)),
        logprobs=tuple(
            math.nan if row is None else float(dump.logprobs[row, codebook, frame]) for dump, row in ((a, i), (b, j))
        ),
        gap=float(gaps[codebook, frame]),
        largest_gap=_largest(gaps[cells]),
        before=_largest(np.array([_at_step(a, b, s).largest for s in common if s < step])),
        at=at,
    )


def _first_difference(a: Dump, b: Dump, common: list[int]) -> int | None:
    """Of predicted tokens or reveals; these, and the results, tell of steps, too, that were not dumped."""
    found = [step for step in common if (a.tokens[_row(a, step)] != b.tokens[_row(b, step)]).any()][:1]
    return min(found + _steps_of_other_canvases(a, b), default=None)


def _steps_of_other_canvases(a: Dump, b: Dump) -> list[int]:
    return np.minimum(a.revealed, b.revealed)[(a.revealed != b.revealed) | (a.codes != b.codes)].tolist()


def _different_cells(a: Dump, b: Dump, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Cells [C, T] that differ at a step: in their tokens, in whether they were revealed."""
    in_a, in_b = a.revealed == step, b.revealed == step
    i, j = _row(a, step), _row(b, step)
    if i is None or j is None:
        return in_a & in_b & (a.codes != b.codes), in_a != in_b
    return a.tokens[i] != b.tokens[j], in_a != in_b


def _token(dump: Dump, step: int, codebook: int, frame: int) -> int | None:
    row = _row(dump, step)
    if row is not None:
        return int(dump.tokens[row, codebook, frame])
    return int(dump.codes[codebook, frame]) if dump.revealed[codebook, frame] == step else None


def _gaps(a: Dump, b: Dump, step: int, tokens: np.ndarray, revealed: np.ndarray) -> np.ndarray:
    """How far the two candidates lay apart in each cell that differs: float64 [C, T], NaN where that is not known.

    Of tokens, the logprobs of the two; where tokens are drawn at random these say nothing of how near it was. Of
    revealed cells, by how much the cell's score missed the lowest that was revealed, in the run that left it.
    """
    gaps = np.full(a.codes.shape, np.nan)
    i, j = _row(a, step), _row(b, step)
    if i is None or j is None:
        return gaps
    if not a.recipe.get("class_temperature"):
        gaps[tokens] = np.abs(a.logprobs[i].astype(np.float64) - b.logprobs[j])[tokens]
    for dump, row in ((a, i), (b, j)):
        left = revealed & (dump.revealed != step)
        lowest = dump.scores[row][dump.revealed == step].min(initial=np.inf)
        missed = np.float64(lowest) - dump.scores[row]
        gaps[left] = np.fmax(gaps, np.abs(missed))[left]
    return np.where(np.isfinite(gaps), gaps, np.nan)


# ---- Metadata ----


def _metadata(a: Dump, b: Dump) -> Iterator[tuple[str, str, str]]:
    flat_a, flat_b = _flat(a), _flat(b)
    for name in flat_a | flat_b:
        if flat_a.get(name) != flat_b.get(name):
            yield name, _shown(flat_a.get(name)), _shown(flat_b.get(name))


def _flat(dump: Dump) -> dict[str, object]:
    names = ("language", "instruct", "reference", "model_digest", "device", "dtype")
    return {
        **{name: getattr(dump, name) for name in names},
        "seed": [piece.seed for piece in dump.pieces],
        "pieces": [piece.frames for piece in dump.pieces],
        **{f"recipe.{key}": value for key, value in dump.recipe.items() if key in SETTINGS},
        **{f"versions.{key}": value for key, value in dump.versions.items()},
    }


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else printable(str(value))


def _is_cause(name: str) -> bool:
    if name.startswith("recipe."):
        return name.removeprefix("recipe.") not in _HARMLESS
    return name in ("seed", "pieces", "language", "instruct", "reference", "model_digest")


# ---- Words ----


def describe(result: Difference, name_a: str, name_b: str) -> list[str]:
    """The comparison as lines of text, the verdict last."""
    lines = [f"A  {shown_path(name_a)}", f"B  {shown_path(name_b)}", *_metadata_lines(result), ""]
    lines += _step_table(result)
    if result.codes:
        lines += ["", f"The results differ in {counted(result.codes, 'code')}."]
    return [*lines, "", *_verdict(result)]


def _metadata_lines(result: Difference) -> Iterator[str]:
    if not result.metadata:
        return
    yield "They were made differently:"
    width = max(len(name) for name, _, _ in result.metadata)
    for name, one, other in result.metadata:
        yield f"   {name:<{width}}  {one} | {other}"


def _step_table(result: Difference) -> Iterator[str]:
    yield "       cells that differ in    logprobs differ by"
    yield " step    token    revealing       mean    largest"
    for row in result.steps:
        yield f"{row.step:>5}{row.tokens:>9,}{row.revealed:>13,}{_figure(row.mean):>11}{_figure(row.largest):>11}"


def _verdict(result: Difference) -> list[str]:
    if result.equal:
        return ["Equal: the same tokens and reveals, and numbers within the rounding of the dumps."]
    if result.parting is not None:
        return [
            *_parting_lines(result.parting, result.pieces),
            *_wrapped(_consequence(result)),
            *_wrapped(_cause(result, result.parting)),
        ]
    largest = _figure(_largest(np.array([row.largest for row in result.steps])))
    return _wrapped(
        f"The same tokens, reveals and codes, but {counted(result.beyond_rounding, 'number')} beyond the rounding "
        f"of the dumps; logprobs differ by {largest} at most."
    )


def _consequence(result: Difference) -> str:
    if result.canvas is None:
        return "Both revealed the same cells with the same tokens throughout: the results are the same."
    return f"From {_step(*result.canvas, result.pieces)} on their canvases differ, and all that follows with them."


def _step(piece: int, step: int, pieces: int) -> str:
    return f"step {step}" + (f" of piece {piece + 1} of {pieces}" if pieces > 1 else "")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, subsequent_indent="   ")


def _parting_lines(parting: Parting, pieces: int) -> Iterator[str]:
    place = f"codebook {parting.codebook}, frame {parting.frame} ({parting.seconds:.2f} s)"
    at = _step(parting.piece, parting.step, pieces)
    yield f"They part at {at}: {parting.what} differ in {counted(parting.cells, 'cell')}."
    yield f"The first is {place}:"
    for name, token, logprob in zip("AB", parting.tokens, parting.logprobs, strict=True):
        yield f"   {name}  token {'-' if token is None else token}, logprob {_figure(logprob)}"
    yield f"   gap of the two candidates {_figure(parting.gap)}, largest at this step {_figure(parting.largest_gap)}"
    yield (
        f"   logprobs differed by at most {_figure(parting.before)} before this step, {_figure(parting.at)} at it in "
        "cells of the same token"
    )


def _cause(result: Difference, parting: Parting) -> str:
    if result.causes:
        return f"A real difference: {', '.join(result.causes)}."
    numeric = _largest(np.array([parting.before, parting.at]))
    if math.isnan(numeric):
        return "Neither that step nor one before it was dumped in both: dump more steps to see why."
    limit = f"{result.tolerance:g}, the rounding to expect of the models' dtype"
    if numeric > result.tolerance:
        return f"Too much for rounding: logprobs differed by {_figure(numeric)}, more than {limit}."
    if parting.largest_gap > result.tolerance:
        return f"Too much for rounding: candidates were {_figure(parting.largest_gap)} apart, more than {limit}."
    gap = "" if math.isnan(parting.largest_gap) else f", and candidates were {_figure(parting.largest_gap)} apart"
    return f"It looks like rounding: logprobs differed by {_figure(numeric)} until then{gap}; up to {limit}."


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}" if value == 0 or abs(value) >= 1e-4 else f"{value:.1e}"

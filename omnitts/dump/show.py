"""A dump as text for a terminal: where, when and how surely its cells were revealed."""

import math
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from omnitts.dump.figures import difference, entropy_bits, lowest, mean, open_cells, real_time_factor, surprisal_bits
from omnitts.dump.format import Dump
from omnitts.errors import counted
from omnitts.model.duration import FRAME_RATE
from omnitts.recipe import SETTINGS, Recipe

LEAST_CERTAIN = 10
_WIDTH = 98


@dataclass(frozen=True)
class StepFigures:
    """Of one dumped step, over the cells that it could still reveal. NaN where there are none."""

    step: int
    revealed: int
    masked: int
    mean_logprob: float  # nats, as all logprobs
    lowest_logprob: float
    confidence: float  # mean probability of the likeliest token
    bits: float  # mean entropy of the top N, taken to sum to 1; without them, mean surprisal of the chosen token
    guidance: float  # how far guidance moved the chosen token's logprob


@dataclass(frozen=True)
class CodebookFigures:
    """Of one codebook, over its cells at the step that revealed each. NaN where no such step was dumped."""

    codebook: int
    mean_logprob: float
    lowest_logprob: float
    median_step: float


@dataclass(frozen=True)
class Cell:
    """One cell, at the step that revealed it."""

    codebook: int
    frame: int
    step: int
    token: int
    logprob: float

    @property
    def seconds(self) -> float:
        return self.frame / FRAME_RATE


def step_figures(dump: Dump) -> list[StepFigures]:
    """Of each dumped step, in order."""
    cells, revealed = open_cells(dump), dump.revealed_per_step()
    return [_of_step(dump, index, cells[index], int(revealed[step])) for index, step in enumerate(dump.steps)]


def _of_step(dump: Dump, index: int, cells: np.ndarray, revealed: int) -> StepFigures:
    logprobs = dump.logprobs[index][cells]
    top = dump.top_logprobs
    return StepFigures(
        step=int(dump.steps[index]),
        revealed=revealed,
        masked=int(cells.sum()),
        mean_logprob=mean(logprobs),
        lowest_logprob=lowest(logprobs),
        confidence=mean(np.exp(dump.confidence[index][cells].astype(np.float32))),
        bits=surprisal_bits(logprobs) if top is None else entropy_bits(top[index][cells]),
        guidance=mean(difference(logprobs, dump.cond_logprobs[index][cells])),
    )


def codebook_figures(dump: Dump) -> list[CodebookFigures]:
    """Of each codebook, the coarsest first."""
    logprobs = dump.at_reveal(dump.logprobs)
    return [
        CodebookFigures(
            codebook, mean(logprobs[codebook]), lowest(logprobs[codebook]), float(np.median(dump.revealed[codebook]))
        )
        for codebook in range(dump.codebooks if dump.frames else 0)
    ]


def least_certain(dump: Dump, count: int = LEAST_CERTAIN) -> list[Cell]:
    """The cells of the lowest logprobs when they were revealed, the lowest first; only dumped steps tell."""
    logprobs = dump.at_reveal(dump.logprobs)
    order = np.argsort(logprobs, axis=None, kind="stable")[:count]  # NaN comes last
    cells = [(int(c), int(t)) for c, t in zip(*np.unravel_index(order, logprobs.shape), strict=True)]
    return [
        Cell(c, t, int(dump.revealed[c, t]), int(dump.codes[c, t]), float(logprobs[c, t]))
        for c, t in cells
        if not np.isnan(logprobs[c, t])
    ]


def show(dump: Dump) -> list[str]:
    """All of it as lines of at most 98 columns, figures that are not known as '-'."""
    return [*_head(dump), "", *_step_table(dump), "", *_codebook_table(dump), "", *_cell_table(dump)]


def _head(dump: Dump) -> Iterator[str]:
    yield _printable(dump.id)
    voice = {"language": dump.language, "instruct": dump.instruct, "reference": dump.reference}
    factor = real_time_factor(dump)
    rows = {
        "text": dump.text,
        "voice": "; ".join(f"{name} {value}" for name, value in voice.items() if value),
        "length": f"{dump.seconds:.2f} s: {counted(dump.frames, 'frame')} of {counted(dump.codebooks, 'codebook')}, "
        f"made in {counted(len(dump.pieces), 'piece')}",
        "steps": _steps_line(dump),
        "model": f"{dump.model_digest}, {dump.dtype} on {dump.device}; "
        + ", ".join(f"{name} {version}" for name, version in dump.versions.items()),
        "seed": ", ".join(str(piece.seed) for piece in dump.pieces),
        "recipe": _recipe_line(dump),
        "engine": f"{dump.engine_seconds:.2f} s, real-time factor {_figure(factor, 0, 3)}",
        "error": dump.error or "",
    }
    for name, value in rows.items():
        if value:
            yield from _wrapped(f"  {name:<9}", value)


def _steps_line(dump: Dump) -> str:
    run = int((dump.revealed_per_step() > 0).sum())
    numbers = f"{dump.logprobs.dtype}" + ("" if dump.top_logprobs is None else f", top {dump.top_logprobs.shape[-1]}")
    return f"{len(dump.steps)} dumped of the {run} that revealed cells, {dump.num_step} in the schedule; {numbers}"


def _recipe_line(dump: Dump) -> str:
    """The name, and what differs from the default recipe."""
    usual = Recipe()
    own = [f"{key}={value}" for key, value in dump.recipe.items() if key in SETTINGS and value != getattr(usual, key)]
    return f"{dump.recipe.get('name', '-')} ({', '.join(own) if own else 'all settings at their defaults'})"


def _step_table(dump: Dump) -> Iterator[str]:
    measure = "surprisal" if dump.top_logprobs is None else f"top-{dump.top_logprobs.shape[-1]} entropy"
    yield "Steps, over the cells masked when each began (logprobs in nats; confidence as a probability;"
    yield (
        "surprisal: mean of -log2 p of the chosen token, in bits; guidance: logprob less that without)"
        if dump.top_logprobs is None
        else "entropy: of the top tokens, taken to sum to 1, in bits; guidance: logprob less that without)"
    )
    yield f"{'step':>5}{'revealed':>10}{'masked':>9}{'mean logprob':>14}{'lowest':>9}{'confidence':>12}" + (
        f"{measure:>16}{'guidance':>10}"
    )
    for row in step_figures(dump):
        yield f"{row.step:>5}{row.revealed:>10,}{row.masked:>9,}{_figure(row.mean_logprob, 14)}" + (
            f"{_figure(row.lowest_logprob, 9)}{_figure(row.confidence, 12, 3)}{_figure(row.bits, 16)}"
            f"{_figure(row.guidance, 10, sign='+')}"
        )
    if not len(dump.steps):
        yield "    no step was dumped"


def _codebook_table(dump: Dump) -> Iterator[str]:
    yield "Codebooks, over their cells when each was revealed"
    yield f"{'codebook':>9}{'mean logprob':>14}{'lowest':>9}{'median step':>13}"
    for row in codebook_figures(dump):
        yield f"{row.codebook:>9}{_figure(row.mean_logprob, 14)}{_figure(row.lowest_logprob, 9)}" + (
            f"{_figure(row.median_step, 13, 1)}"
        )


def _cell_table(dump: Dump) -> Iterator[str]:
    yield "Least certain cells when revealed"
    cells = least_certain(dump)
    if not cells:
        yield "    none: no step that revealed cells was dumped"
        return
    yield f"{'codebook':>9}{'frame':>7}{'seconds':>9}{'step':>6}{'token':>7}{'logprob':>9}"
    for cell in cells:
        yield f"{cell.codebook:>9}{cell.frame:>7}{cell.seconds:>9.2f}{cell.step:>6}{cell.token:>7}" + (
            _figure(cell.logprob, 9)
        )


def _figure(value: float, width: int, digits: int = 2, sign: str = "") -> str:
    return f"{'-':>{width}}" if math.isnan(value) else f"{value:>{sign}{width}.{digits}f}"


def _wrapped(label: str, value: str) -> list[str]:
    indent = " " * len(label)
    return textwrap.wrap(_printable(value), _WIDTH, initial_indent=label, subsequent_indent=indent) or [label]


def _printable(text: str) -> str:
    """Control characters of a text are escaped: they could move a terminal's cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

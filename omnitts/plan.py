"""A look ahead: the batches that a job would run, from a manifest and a tokenizer alone."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import get_context
from typing import TYPE_CHECKING

from omnitts.clips import too_long
from omnitts.errors import InputError, counted
from omnitts.manifest import Utterance
from omnitts.model.duration import FRAME_RATE
from omnitts.model.voice import load_voice, prepare_reference
from omnitts.prepare import Piece, ReferenceLike, plan_batches, plan_pieces, windows
from omnitts.recording import read_audio

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ALONE = 12  # windows that are planned before other cores are asked to help
MOST_REFERENCES = 1 << 15  # whose lengths are kept


@dataclass(frozen=True)
class BatchPlan:
    """One batch: clips in it, their target frames, positions in its packed row, the most steps that a clip takes."""

    clips: int
    frames: int
    positions: int
    steps: int


@dataclass(frozen=True)
class Unusable:
    """An utterance that would fail: where it stands, and why."""

    line: int
    field: str
    reason: str


def plan_job(
    tokenizer: "Tokenizer", utterances: Iterable[Utterance], max_positions: int
) -> Iterator[BatchPlan | Unusable]:
    """The batches in the order in which `TTS.stream` runs them. Of many utterances, on all cores."""
    planner, waiting = Planner(tokenizer, max_positions), windows(utterances)
    for window in islice(waiting, ALONE):
        yield from planner.plan(window)
    many = next(waiting, None)
    if many is None:
        return
    workers = os.cpu_count() or 1
    # Spawned, not forked: the tokenizer has threads of its own.
    with ProcessPoolExecutor(workers, get_context("spawn"), _start, (planner,)) as pool:
        ahead: deque[Future[list[BatchPlan | Unusable]]] = deque()
        for window in chain([many], waiting):
            ahead.append(pool.submit(_plan, window))
            if len(ahead) > 2 * workers:
                yield from ahead.popleft().result()
        for future in ahead:
            yield from future.result()


class Planner:
    """Plans windows of utterances; keeps the lengths of their references."""

    def __init__(self, tokenizer: "Tokenizer", max_positions: int):
        self.tokenizer = tokenizer
        self.max_positions = max_positions
        self.references: dict[tuple, ReferenceLike | None] = {}

    def plan(self, window: list[Utterance]) -> list[BatchPlan | Unusable]:
        """The batches of a window, and who is in none."""
        plans: list[BatchPlan | Unusable] = []
        usable, references = [], []
        for utterance in window:
            try:
                references.append(self._reference(utterance))
            except InputError as error:
                plans.append(Unusable(utterance.line, utterance.reference_field, str(error)))
            else:
                usable.append(utterance)
        pieces = plan_pieces(self.tokenizer, usable, references, [0] * len(usable))
        refused = {piece.owner: reason for piece in pieces if (reason := too_long(piece.target_frames))}
        plans += [Unusable(usable[owner].line, "text", reason) for owner, reason in refused.items()]
        pieces = [piece for piece in pieces if piece.owner not in refused]
        return plans + [_plan_of(batch) for batch in plan_batches(pieces, self.max_positions)]

    def _reference(self, utterance: Utterance) -> ReferenceLike | None:
        recipe = utterance.recipe
        key = utterance.voice, utterance.ref_audio, utterance.ref_text, recipe.preprocess_prompt
        if key not in self.references:
            if len(self.references) >= MOST_REFERENCES:
                self.references.clear()
            self.references[key] = _reference(*key)
        return self.references[key]


_planner: Planner  # of a process that plans for another


def _start(planner: Planner) -> None:
    global _planner
    _planner = planner
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each core has a process


def _plan(window: list[Utterance]) -> list[BatchPlan | Unusable]:
    return _planner.plan(window)


def _plan_of(batch: Sequence[Piece]) -> BatchPlan:
    return BatchPlan(
        len(batch),
        sum(piece.target_frames for piece in batch),
        sum(piece.positions for piece in batch),
        max(piece.recipe.num_step for piece in batch),
    )


def _reference(
    voice: str | None, ref_audio: str | None, ref_text: str | None, preprocess: bool
) -> ReferenceLike | None:
    """A reference as far as planning needs it: its audio is trimmed, which sets its length, but not encoded."""
    if voice is not None:
        return load_voice(voice)
    if ref_audio is None:
        return None
    reference = prepare_reference(*read_audio(ref_audio), ref_text, preprocess=preprocess)
    return _Planned(reference.text, reference.frames)


@dataclass(frozen=True)
class _Planned:
    """A reference without its samples, so that many can be kept."""

    text: str
    frames: int


def describe(plans: Iterable[BatchPlan | Unusable], file: str) -> Iterator[str]:
    """The plan of the manifest `file` as text: a line a batch, one for each utterance that would fail, and the sums."""
    batches: list[BatchPlan] = []
    failing = 0
    yield f"{'batch':>6} {'clips':>6} {'frames':>8} {'positions':>10} {'steps':>6} {'audio s':>9}"
    for plan in plans:
        if isinstance(plan, Unusable):
            failing += 1
            yield f"would fail: {InputError(plan.reason, file=file, line=plan.line, field=plan.field)}"
            continue
        batches.append(plan)
        seconds = plan.frames / FRAME_RATE
        yield f"{len(batches):>6} {plan.clips:>6} {plan.frames:>8} {plan.positions:>10} {plan.steps:>6} {seconds:>9.1f}"
    clips, frames = sum(p.clips for p in batches), sum(p.frames for p in batches)
    positions = sum(p.positions for p in batches)
    yield (
        f"{counted(len(batches), 'batch', 'batches')}, {counted(clips, 'clip')}, {counted(frames, 'frame')} "
        f"({frames / FRAME_RATE:.1f} s of audio), {counted(positions, 'position')}, padding 0 %"
        + (f", {failing:,} would fail" if failing else "")
    )

"""The diffusion loop on a GPU: a step over one packed row, all of it on the device, captured as a CUDA graph.

A graph serves every batch that fits its shape. Shapes are rounded up, by at most 3 % in positions, so that a job of
thousands of mixed lengths needs few of them; what is left over is padding, in a document of its own. Between two steps
the host does nothing but say which of them is next.

Where recipes let a prefix serve for several steps, there is a second graph: over the targets alone, which attend to the
keys and values that the last step over the whole row has left.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, zip_longest
from math import inf

import numpy as np
import torch
from torch import Tensor

from omnitts.engine import (
    Generated,
    Request,
    as_of,
    is_guided,
    is_refresh,
    sampling_settings,
    schedule_steps,
    top_of,
)
from omnitts.model.attention import attention_backend, make_attention
from omnitts.model.backbone import OmniVoice
from omnitts.model.canvas import RankingParams
from omnitts.model.observe import observe
from omnitts.model.packed import PackedModel, Row
from omnitts.model.reveal import reveal
from omnitts.sampler import SamplingParams, sample
from omnitts.trace import Sight, Trace

MOST_GRAPHS = 64  # kept at a time; the one unused for longest goes first
_A_REQUEST = 512  # positions that one has at least in most rows, so that these have room for the same number
_ENDED = 0.2  # share of a row's positions whose requests have ended that is worth packing the others anew


@dataclass(frozen=True)
class Shape:
    """What a step is captured for; all are room, not what is in use."""

    positions: int
    frames: int  # rows of the canvas
    requests: int  # the last one is for padding
    guided: bool
    again: bool  # whether there are also steps over the targets alone
    top_n: int | None = None  # likeliest tokens to keep of each cell; None where nobody watches

    @property
    def targets(self) -> int:
        """Positions whose logits are wanted: rows of the canvas and, with guidance, their unconditional twins."""
        return (2 if self.guided else 1) * self.frames

    @staticmethod
    def of(requests: Sequence[Request]) -> "Shape":
        """The shape that holds these requests."""
        positions = sum(map(positions_of, requests))
        return Shape(
            _rounded(positions, 32),
            _rounded(sum(request.target_frames for request in requests), 2),  # cheap beside positions
            1 << max(len(requests), positions // _A_REQUEST).bit_length(),
            any(_has_two(request) for request in requests),
            any(request.recipe.prefix_refresh > 1 for request in requests),
            top_of(requests),
        )


def positions_of(request: Request) -> int:
    """Positions of a request's documents, the conditional one and, with guidance, the unconditional one."""
    reference = 0 if request.reference is None else request.reference.shape[1]
    return len(request.prompt_ids) + reference + targets_of(request)


def targets_of(request: Request) -> int:
    """Those of its positions whose logits are wanted."""
    return (2 if _has_two(request) else 1) * request.target_frames


def _has_two(request: Request) -> bool:
    return request.recipe.guidance_scale > 0


def _rounded(number: int, parts: int) -> int:
    """Up to a multiple of a power of two: of 16, or of the 1/parts of the largest one in the number."""
    unit = max(16, (1 << number.bit_length() - 1) // parts)
    return -(-number // unit) * unit


@dataclass
class Captures:
    """What capturing has cost."""

    count: int = 0
    seconds: float = 0.0


@dataclass
class Room:
    """Positions of all steps that were run: in use, and padding up to their shapes."""

    used: int = 0
    padding: int = 0


@dataclass
class Engine:
    """A packed model with its captured steps; `generate` is the loop. Half precision on a GPU is what it is for."""

    model: PackedModel
    cuda_graphs: bool = True
    attention: str = ""
    captures: Captures = field(default_factory=Captures)
    room: Room = field(default_factory=Room)
    steps: "dict[Shape, Step]" = field(default_factory=dict)
    pool: object = None

    @staticmethod
    def of(model: OmniVoice, *, cuda_graphs: bool = True, float8: bool = False) -> "Engine":
        """Packs a model, which is used up by it. float8: see `model.packed`; needs bfloat16."""
        packed = PackedModel(model, float8=float8)
        on_gpu = packed.device.type == "cuda"
        return Engine(packed, cuda_graphs and on_gpu, attention_backend(packed.device, packed.dtype, packed.config))

    @torch.inference_mode()
    def generate(self, requests: Sequence[Request], on_step: Callable[[float], None] | None = None) -> list[Generated]:
        """`engine.generate` for this model.

        Requests whose prefixes are refreshed at other steps go one group after the other: in a row of both, one would
        be refreshed for the other's sake.
        """
        self.reach(requests)
        groups: dict[object, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(_refreshes(request), []).append(i)
        results: dict[int, Generated] = {}
        for group in groups.values():
            results |= zip(group, self._generate([requests[i] for i in group], on_step), strict=True)
        return [results[i] for i in range(len(requests))]

    def _generate(self, requests: Sequence[Request], on_step: Callable[[float], None] | None) -> list[Generated]:
        codebooks, mask_id = self.model.config.num_audio_codebook, self.model.config.audio_mask_id
        results = [_blank(request, codebooks, mask_id) for request in requests]
        schedules = [schedule_steps(request, codebooks) for request in requests]
        work = np.zeros(max(map(len, schedules), default=0))
        for request, schedule in zip(requests, schedules, strict=True):
            work[: len(schedule)] += request.target_frames / len(schedule)
        guided = [[is_guided(request, n) for n, _ in each] for request, each in zip(requests, schedules, strict=True)]
        active = [i for i, schedule in enumerate(schedules) if schedule]
        done = 0
        while active:
            # Guided requests come first, so that their unconditional logits are the leading rows.
            active.sort(key=lambda i: not guided[i][done])
            rest = [as_of(requests[i], schedules[i][done][0]) for i in active]
            positions = [positions_of(r) for r in rest]
            until = _stretch([len(schedules[i]) for i in active], positions)
            whole = _whole([requests[i] for i in active], [schedules[i] for i in active])
            until = next((n for n in range(until, len(whole)) if whole[n]), len(whole))  # a row that is new is whole
            until = min([until, *(_change(guided[i], done) for i in active)])
            step = self.step(Shape.of(rest))
            step.fill(rest, [results[i] for i in active])
            table = _table([schedules[i][done:until] for i in active], until - done, step.shape.requests)
            again = [not (n == done or whole[n]) for n in range(done, until)]
            self._count(step.shape, sum(positions), sum(map(targets_of, rest)), again)
            watched = _watched(rest, [schedules[i][done:until] for i in active], until - done)
            table = torch.from_numpy(table).to(self.model.device)
            sights = self._run(step, table, again, watched, work[done:until], on_step)
            for i, state in zip(active, step.states(rest, [results[i] for i in active]), strict=True):
                results[i] = state
            _keep(rest, [results[i].trace for i in active], [schedules[i][done:until] for i in active], sights)
            done = until
            active = [i for i in active if len(schedules[i]) > done]
        return results

    def _count(self, shape: Shape, positions: int, targets: int, again: list[bool]) -> None:
        """Adds what some steps computed; positions, targets: of the requests; again: of each step, if targets alone."""
        alone, whole = sum(again), len(again) - sum(again)
        self.room.used += whole * positions + alone * targets
        self.room.padding += whole * (shape.positions - positions) + alone * (shape.targets - targets)

    def costs(self) -> Counter[str]:
        """`engine.costs` for this model."""
        return Counter(
            captures=self.captures.count,
            capturing=self.captures.seconds,
            step_positions=self.room.used,
            step_padding=self.room.padding,
        )

    def reach(self, requests: Sequence[Request]) -> None:
        """Sees to it that the model knows as many places as the longest document has."""
        longest = max((positions_of(request) for request in requests), default=0)  # at least that
        if longest > self.model.places:
            self.steps.clear()  # captured with the tables that are replaced now
            self.model.reach(1 << longest.bit_length())

    def _run(
        self,
        step: "Step",
        schedule: Tensor,
        again: list[bool],
        watched: list[bool],
        work: np.ndarray,
        on_step: Callable[[float], None] | None,
    ) -> list[Sight | None]:
        """Some steps over what a `Step` holds; schedule: see `_table`; work: what to tell of each step.

        Returns what was seen of the steps that are watched, to be read once the device has come to their end.
        """
        events: list[torch.cuda.Event] = []
        sights: list[Sight | None] = []
        for now, targets_alone, seen, amount in zip(schedule, again, watched, work.tolist(), strict=True):
            step(now, targets_alone)
            sights.append(step.sights[targets_alone].to_host() if seen else None)
            if on_step is None:
                continue
            if self.model.device.type == "cuda":
                # The host stays two steps ahead of the device, so that progress is told about when it is made.
                events.append(torch.cuda.Event())
                events[-1].record()
                events[max(0, len(events) - 3)].synchronize()
            on_step(amount)
        return sights

    def release(self) -> None:
        """Gives back the memory of all steps; they are captured again when they are needed."""
        self.steps.clear()
        self.pool = None
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def step(self, shape: Shape) -> "Step":
        """The step of a shape, captured if it is the first of it."""
        step = self.steps.pop(shape, None)
        if step is None:
            while len(self.steps) >= MOST_GRAPHS:
                self.steps.pop(next(iter(self.steps)))
            step = Step(self.model, shape, self.attention)
            if self.cuda_graphs:
                start = time.perf_counter()
                self.pool = step.capture(self.pool)
                self.captures.count += 1
                self.captures.seconds += time.perf_counter() - start
        self.steps[shape] = step
        return step


def _blank(request: Request, codebooks: int, mask_id: int) -> Generated:
    frames = request.target_frames
    trace = Trace.of(request.watch, frames, codebooks)
    return Generated(np.full((codebooks, frames), mask_id, np.int16), 0, trace)


def _refreshes(request: Request) -> object:
    """What is equal for requests whose prefixes are refreshed at the same steps."""
    recipe = request.recipe
    if recipe.prefix_refresh == 1:
        return None
    return recipe.prefix_refresh, recipe.num_step, recipe.guidance_start, recipe.guidance_end


def _whole(requests: list[Request], schedules: list[list[tuple[int, int]]]) -> list[bool]:
    """Of each step, whether any of the requests has its prefix refreshed."""
    each = [
        [is_refresh(r, schedule, n) for n in range(len(schedule))]
        for r, schedule in zip(requests, schedules, strict=True)
    ]
    return [any(flags) for flags in zip_longest(*each)]


def _stretch(lengths: list[int], positions: list[int]) -> int:
    """How many steps to run until enough requests have ended for the others to be packed anew.

    lengths: of the requests' schedules. Those that end before it stay in the row, and reveal nothing.
    """
    ended = 0
    for length, count in sorted(zip(lengths, positions, strict=True)):
        ended += count
        if ended >= _ENDED * sum(positions):
            return length
    return max(lengths)


def _change(flags: list[bool], done: int) -> int | float:
    """The first step after `done` whose flag is another, if any."""
    return next((step for step in range(done, len(flags)) if flags[step] != flags[done]), inf)


def _table(todo: list[list[tuple[int, int]]], steps: int, slots: int) -> np.ndarray:
    """int64 [steps, 2, slots]: each step's number in the full schedule, and how many cells it reveals."""
    table = np.zeros((steps, 2, slots), np.int64)
    for slot, schedule in enumerate(todo):
        if schedule:
            table[: len(schedule), :, slot] = schedule
    return table


def _watched(requests: Sequence[Request], todo: list[list[tuple[int, int]]], steps: int) -> list[bool]:
    """Of each step, whether any of the requests is to be seen there. todo: what is left of the requests' schedules."""
    pairs = [(request.watch, schedule) for request, schedule in zip(requests, todo, strict=True) if request.watch]
    return [any(n < len(left) and watch.wants(left[n][0]) for watch, left in pairs) for n in range(steps)]


def _keep(
    requests: Sequence[Request],
    traces: Sequence[Trace | None],
    todo: list[list[tuple[int, int]]],
    sights: list[Sight | None],
) -> None:
    """Gives each request's trace its rows of what was seen."""
    row = 0
    for request, trace, schedule in zip(requests, traces, todo, strict=True):
        rows = slice(row, row + request.target_frames)
        row = rows.stop
        for (step, _), sight in zip(schedule, sights, strict=False):
            if trace is not None and request.watch.wants(step):
                seen = sight.seen(step, rows, request.watch.top_n)
                if not _has_two(request):  # what lies beside its rows is no twin of theirs
                    seen = replace(seen, uncond_logprobs=seen.cond_logprobs)
                trace.seen.append(seen)


class Step:
    """One diffusion step of a shape, in buffers of its own: fill them, then call it once a step."""

    def __init__(self, model: PackedModel, shape: Shape, attention: str):
        self.model, self.shape, config = model, shape, model.config
        device, slots = model.device, shape.requests
        integers = {"dtype": torch.int32, "device": device}
        targets = shape.targets
        self.row = Row(
            text=torch.zeros(shape.positions, **integers),
            frame=torch.full((shape.positions,), -1, **integers),
            place=torch.zeros(shape.positions, **integers),
            codes=torch.zeros(shape.positions + shape.frames, config.num_audio_codebook, **integers),
            targets=torch.zeros(targets, dtype=torch.int64, device=device),
        )
        self.canvas = self.row.codes[: shape.frames]
        self.offsets = torch.zeros(slots + 1, dtype=torch.int64, device=device)
        self.now = torch.zeros(2, slots, dtype=torch.int64, device=device)
        self.status = torch.zeros(slots, dtype=torch.int32, device=device)
        self.sampling = SamplingParams.of([{"seed": 0, "forbidden": [config.audio_mask_id]}] * slots, device=device)
        self.ranking = RankingParams(
            *(torch.zeros(slots, dtype=torch.float32, device=device) for _ in range(2)), self.sampling.seed
        )
        documents = 2 * slots - 1
        self.attention = make_attention(attention, shape.positions, documents, config, model.dtype, device)
        self.attention.plan([0] * documents + [shape.positions])
        self.memory = self.rest = None
        if shape.again:
            self.memory = model.memory(shape.positions)
            self.rest = Row(
                text=torch.full((targets,), -1, **integers),
                frame=torch.full((targets,), -1, **integers),
                place=torch.zeros(targets, **integers),
                codes=self.row.codes,
                targets=None,
                slots=torch.full((targets,), shape.positions, dtype=torch.int64, device=device),
            )
            # FlashInfer wants the rows of all documents to lie end to end.
            kernels = "tiled" if attention == "flashinfer" else attention
            self.rest_attention = make_attention(kernels, targets, documents, config, model.dtype, device)
            self.rest_attention.plan([0] * documents + [shape.positions], [(0, 0)] * documents)
        self.revealed = None
        if shape.top_n is not None:
            self.revealed = torch.full((shape.frames, config.num_audio_codebook), -1, **integers)
        self.sights: dict[bool, Sight] = {}  # what is to be seen of the last step over the whole row, or targets alone
        self.graphs: dict[bool, torch.cuda.CUDAGraph] = {}  # of the whole row, and of targets alone

    def capture(self, pool: object) -> object:
        """Captures the step; returns the memory pool, for the next one to share."""
        for again in (False, True) if self.shape.again else (False,):
            pool = self._capture(again, pool)
        return pool

    def _capture(self, again: bool, pool: object) -> object:
        side = torch.cuda.Stream(self.model.device)
        side.wait_stream(torch.cuda.current_stream(self.model.device))
        with torch.cuda.stream(side):
            self._run(again)  # compiles kernels and sets libraries up, which a capture must not
        torch.cuda.current_stream(self.model.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # Not torch.cuda.graph, which collects garbage and gives memory back first: a tenth of a second. Other threads
        # may decode meanwhile: what they do must not spoil the capture.
        with torch.cuda.stream(side):
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                self._run(again)
            finally:
                graph.capture_end()
        torch.cuda.current_stream(self.model.device).wait_stream(side)
        self.graphs[again] = graph
        return graph.pool()

    def fill(self, requests: Sequence[Request], states: Sequence[Generated]) -> None:
        """Puts requests into the buffers, guided ones first, each with what its canvas shows and its status so far."""
        device, mask_id = self.model.device, self.model.config.audio_mask_id
        layout = lay_out(requests, [state.codes for state in states], self.shape)
        for buffer, values in (
            (self.row.text, layout.text),
            (self.row.frame, layout.frame),
            (self.row.place, layout.place),
            (self.row.codes[: len(layout.codes)], layout.codes),
            (self.row.targets, np.maximum(layout.targets, 0)),
            (self.offsets, layout.offsets),
        ):
            buffer.copy_(torch.from_numpy(values))
        if self.revealed is not None:
            self._fill_revealed([state.trace for state in states], [r.target_frames for r in requests])
        self.attention.plan(layout.bounds)
        if self.rest is not None:
            self._fill_rest(self.rest, layout)
        empty = [{"seed": 0, "forbidden": [mask_id]}] * (self.shape.requests - len(requests))
        settings = SamplingParams.of([*(sampling_settings(r, mask_id) for r in requests), *empty])
        for name, values in vars(settings).items():
            getattr(self.sampling, name).copy_(values)
        ranking = torch.zeros(2, self.shape.requests)
        ranking[:, : len(requests)] = torch.tensor(
            [[r.recipe.layer_penalty_factor, r.recipe.position_temperature] for r in requests]
        ).T
        self.ranking.layer_penalty_factor.copy_(ranking[0])
        self.ranking.position_temperature.copy_(ranking[1])
        self.status.zero_()
        self.status[: len(requests)] = torch.tensor([s.status for s in states], dtype=torch.int32, device=device)

    def _fill_rest(self, rest: Row, layout: "Layout") -> None:
        known, at = layout.targets >= 0, np.maximum(layout.targets, 0)
        rest.frame.copy_(torch.from_numpy(np.where(known, layout.frame[at], -1)))
        rest.place.copy_(torch.from_numpy(np.where(known, layout.place[at], 0)))
        rest.slots.copy_(torch.from_numpy(np.where(known, at, self.shape.positions)))
        self.rest_attention.plan(layout.bounds, layout.queries)

    def _fill_revealed(self, traces: Sequence[Trace | None], lengths: Sequence[int]) -> None:
        row = 0
        for trace, length in zip(traces, lengths, strict=True):
            if trace is not None:
                self.revealed[row : row + length].copy_(torch.from_numpy(trace.revealed))
            row += length

    def __call__(self, now: Tensor, again: bool = False) -> None:
        """Runs the step, without waiting for it. now: int64 [2, slots], numbers and counts as in `_table`.

        again: over the targets alone; since it was filled the step must have run over the whole row.
        """
        self.now.copy_(now, non_blocking=True)
        if graph := self.graphs.get(again):
            graph.replay()
        else:
            self._run(again)

    def _run(self, again: bool) -> None:
        frames, (number, count) = self.shape.frames, self.now
        row, attention = (self.rest, self.rest_attention) if again else (self.row, self.attention)
        logits = self.model.logits(row, attention, self.memory)
        uncond = logits[frames:] if self.shape.guided else None
        top_n = self.shape.top_n or 0
        samples = sample(logits[:frames], uncond, self.sampling, offsets=self.offsets, step=number, top_n=top_n)
        self.status.bitwise_or_(samples.status)
        keys = reveal(
            self.canvas,
            samples.tokens,
            samples.confidence,
            self.ranking,
            self.offsets,
            number,
            count,
            self.model.config.audio_mask_id,
            self.revealed,
        )
        if self.revealed is not None:
            self.sights[again] = observe(samples, keys, logits[:frames], uncond)

    def states(self, requests: Sequence[Request], states: Sequence[Generated]) -> list[Generated]:
        """What has become of the requests; waits for the device."""
        canvas = self.canvas.cpu().numpy().astype(np.int16)
        revealed = None if self.revealed is None else self.revealed.cpu().numpy().astype(np.int16)
        ends = accumulate(request.target_frames for request in requests)
        results = []
        for request, state, end, status in zip(requests, states, ends, self.status.tolist(), strict=False):
            rows = slice(end - request.target_frames, end)
            trace = state.trace
            if trace is not None:
                trace = replace(trace, revealed=revealed[rows])
            results.append(Generated(canvas[rows].T, state.status | status, trace))
        return results


@dataclass(frozen=True)
class Layout:
    """A packed row on the host, as `Row` has it, with the bounds of its documents and the requests' rows."""

    text: np.ndarray
    frame: np.ndarray
    place: np.ndarray
    codes: np.ndarray
    targets: np.ndarray  # -1 where a row of the canvas, or its unconditional twin, is no request's
    offsets: np.ndarray  # int64 [slots + 1]
    bounds: list[int]
    queries: list[tuple[int, int]]  # of each document, its targets' rows among all targets


def lay_out(requests: Sequence[Request], canvases: Sequence[np.ndarray], shape: Shape) -> Layout:
    """Lays documents end to end: conditional ones, unconditional ones, padding.

    canvases: int16 [codebooks, T] of each request; guided requests come first.
    """
    lengths = [request.target_frames for request in requests]
    starts = [0, *accumulate(lengths)]  # rows of the canvas
    text = np.full(shape.positions, -1, np.int32)
    frame = np.full(shape.positions, -1, np.int32)
    place = np.zeros(shape.positions, np.int32)
    targets = np.full((2 if shape.guided else 1, shape.frames), -1, np.int64)
    codes = [np.concatenate(canvases, axis=1).T]
    codes.append(np.zeros((shape.frames - starts[-1], codes[0].shape[1]), np.int16))
    used, bounds, queries = shape.frames, [0], []

    def add(kind: int, request: int, ids: Sequence[int], reference: int) -> None:
        """Adds a document: text, then `reference` rows of codes from `used` on, then the request's canvas."""
        start, length = bounds[-1], lengths[request]
        body = start + len(ids) + reference
        text[start : start + len(ids)] = ids
        frame[start + len(ids) : body] = np.arange(used, used + reference)
        frame[body : body + length] = np.arange(starts[request], starts[request + 1])
        place[start : body + length] = np.arange(body + length - start)
        targets[kind, starts[request] : starts[request + 1]] = np.arange(body, body + length)
        queries.append((kind * shape.frames + starts[request], kind * shape.frames + starts[request + 1]))
        bounds.append(body + length)

    for number, request in enumerate(requests):
        reference = 0 if request.reference is None else request.reference.shape[1]
        add(0, number, request.prompt_ids, reference)
        if reference:
            codes.append(request.reference.T)
            used += reference
    for number, request in enumerate(requests):
        if _has_two(request):
            add(1, number, (), 0)
    queries += [(0, 0)] * (2 * shape.requests - 1 - len(queries))
    bounds += [bounds[-1]] * (2 * shape.requests - 1 - len(bounds)) + [shape.positions]
    offsets = np.full(shape.requests + 1, starts[-1], np.int64)
    offsets[: len(starts)] = starts
    offsets[-1] = shape.frames
    rows = np.concatenate(codes).astype(np.int32)
    return Layout(text, frame, place, rows, targets.reshape(-1), offsets, bounds, queries)

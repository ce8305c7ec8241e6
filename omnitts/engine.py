"""The diffusion loop over one batch: embed the canvas, score it, sample every cell, reveal the best, repeat."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from omnitts.errors import InputError
from omnitts.model.backbone import OmniVoice, Prefix
from omnitts.model.canvas import RankingParams, commit, rank_scores, reveal_schedule, top_cells
from omnitts.recipe import Recipe
from omnitts.sampler import Samples, SamplingParams, rows_to_requests, sample, token_logprobs
from omnitts.trace import Sight, Trace, Watch

FLOAT8 = torch.float8_e4m3fn
"""As the dtype of a model: layers' products in it, all else in bfloat16, in which the weights are loaded."""
_FLOAT8_UNIT = 16  # a float8 product's sizes are multiples of it


@dataclass(frozen=True)
class Request:
    """One clip to generate."""

    prompt_ids: list[int]  # style and text
    reference: np.ndarray | None  # int16 [codebooks, F], the frames of the reference audio
    target_frames: int
    recipe: Recipe
    seed: int  # 0..2**63-1, keys all of the clip's noise
    watch: Watch | None = None  # what to keep of its loop, if anything


@dataclass(frozen=True)
class Generated:
    """One clip's codes, int16 [codebooks, target_frames], and the sampler's status: 0, or its flags."""

    codes: np.ndarray
    status: int
    trace: Trace | None = None  # if it was watched


class Engine(Protocol):
    """Another way to run the loop, such as `steps.Engine`."""

    def generate(self, requests: list[Request], on_step: Callable[[float], None] | None) -> list[Generated]: ...

    def release(self) -> None:
        """Gives back memory that is kept for the next batch."""
        ...

    def costs(self) -> Counter[str]: ...


def costs(model: OmniVoice | Engine) -> Counter[str]:
    """What a model has spent on graphs and padding so far, by the names of `Stats`; without graphs there is none."""
    return Counter() if isinstance(model, OmniVoice) else model.costs()


def weights_dtype(dtype: torch.dtype) -> torch.dtype:
    """What the weights of a model of this dtype are loaded in."""
    return torch.bfloat16 if dtype == FLOAT8 else dtype


def accelerated(model: OmniVoice, *, float8: bool = False, cuda_graphs: bool = True) -> OmniVoice | Engine:
    """What runs a loaded model fastest: `steps.Engine` in half precision on a GPU with Triton, else the model itself.

    The model is used up by it. float8: layers' products in fp8; InputError where only the model itself can run.
    """
    weight = model.audio_heads.weight
    if float8:
        _check_sizes(model)
    if not float8 and (weight.device.type != "cuda" or weight.dtype == torch.float32):
        return model
    try:
        from omnitts.steps import Engine as Steps
    except ImportError:  # no Triton
        if float8:
            message = "fp8 needs Triton: use bfloat16, or install it (pip install triton, or the extra cuda)"
            raise InputError(message, field="dtype") from None
        return model
    return Steps.of(model, cuda_graphs=cuda_graphs, float8=float8)


def _check_sizes(model: OmniVoice) -> None:
    """Raises InputError unless the layers' products have sizes that float8 products take."""
    for name, weight in model.llm.layers[0].named_parameters():
        if weight.ndim == 2 and any(size % _FLOAT8_UNIT for size in weight.shape):
            size = " x ".join(map(str, weight.shape))
            message = f"fp8 needs matrices of multiples of {_FLOAT8_UNIT}, and {name} is {size}: use bfloat16"
            raise InputError(message, field="dtype")


def release(model: OmniVoice | Engine) -> None:
    """Gives back memory that the loop keeps from batch to batch."""
    if not isinstance(model, OmniVoice):
        model.release()


@torch.inference_mode()
def generate(
    model: OmniVoice | Engine, requests: list[Request], on_step: Callable[[float], None] | None = None
) -> list[Generated]:
    """Generates the codes of every request, in the order given.

    Requests may differ in length, recipe and step count. `on_step` is called after each step with the frames'
    worth of work it did; over the batch these add up to the sum of target_frames.
    """
    if not isinstance(model, OmniVoice):
        return model.generate(requests, on_step)
    batch = Batch(model, requests)
    while batch.active:
        work = batch.step()
        if on_step is not None:
            on_step(work)
    return batch.results()


class Batch:
    """The state of one batch's loop.

    `active` are the requests that still have steps to run, `now` as the next step has them; those that it guides come
    first, so that their unconditional logits are the leading rows.
    """

    def __init__(self, model: OmniVoice, requests: list[Request]):
        self.model = model
        self.requests = requests
        self.device = model.audio_heads.weight.device
        codebooks, mask_id = model.config.num_audio_codebook, model.config.audio_mask_id
        self.prefixes = [self._embed_prefix(request) for request in requests]
        self.canvases = [
            torch.full((request.target_frames, codebooks), mask_id, device=self.device) for request in requests
        ]
        self.steps = [schedule_steps(request, codebooks) for request in requests]
        self.status = torch.zeros(len(requests), dtype=torch.int32, device=self.device)
        self.traces = [Trace.of(request.watch, request.target_frames, codebooks) for request in requests]
        self.kept: dict[int, Prefix] = {}
        self.done = 0
        self.active = [i for i in range(len(requests)) if self.steps[i]]
        self._guided_first()

    def _embed_prefix(self, request: Request) -> Tensor:
        """Embeddings of what stays fixed in the conditional document: prompt text and reference frames [L, H]."""
        text = self.model.embed_text(torch.tensor(request.prompt_ids, device=self.device))
        if request.reference is None:
            return text
        reference = torch.from_numpy(request.reference.T.astype(np.int64)).to(self.device)
        return torch.cat([text, self.model.embed_audio(reference)])

    def _guided_first(self) -> None:
        now = {i: as_of(self.requests[i], self.steps[i][self.done][0]) for i in self.active}
        self.guided = [i for i, request in now.items() if request.recipe.guidance_scale > 0]
        self.active = self.guided + [i for i, request in now.items() if request.recipe.guidance_scale == 0]
        self.now = [now[i] for i in self.active]

    def logits(self) -> tuple[Tensor, Tensor]:
        """Logits of the active canvases, conditional [N, C, V], and of the guided ones, unconditional [M, C, V]."""
        targets = {i: self.model.embed_audio(self.canvases[i]) for i in self.active}
        kept = [self._kept(i) for i in self.active] + [None] * len(self.guided)
        documents = [
            targets[i] if prefix is not None and prefix.filled else torch.cat([self.prefixes[i], targets[i]])
            for i, prefix in zip(self.active, kept, strict=False)
        ] + [targets[i] for i in self.guided]
        logits = self.model(documents, [self.requests[i].target_frames for i in [*self.active, *self.guided]], kept)
        rows = sum(self.requests[i].target_frames for i in self.active)
        return logits[:rows], logits[rows:]

    def _kept(self, i: int) -> Prefix | None:
        """What is known of a request's prefix from an earlier step; an empty one where this step is to find it out."""
        request = self.requests[i]
        if request.recipe.prefix_refresh == 1:
            return None
        if is_refresh(request, self.steps[i], self.done):
            self.kept[i] = Prefix(len(self.prefixes[i]))
        return self.kept[i]

    def step(self) -> float:
        """Runs one diffusion step for every active request and drops those that are complete."""
        active, requests = self.active, self.now
        canvas = torch.cat([self.canvases[i] for i in active])
        planned = torch.tensor([self.steps[i][self.done] for i in active], device=self.device)
        cond, uncond = self.logits()
        choice = choose(cond, uncond, canvas, requests, *planned.unbind(1), self.model.config.audio_mask_id)
        self._see(choice, cond, uncond)
        self.status[active] |= choice.samples.status
        canvas = commit(canvas, choice.samples.tokens, choice.chosen)
        for i, rows in zip(active, canvas.split([request.target_frames for request in requests]), strict=True):
            self.canvases[i] = rows
        work = sum(self.requests[i].target_frames / len(self.steps[i]) for i in active)
        self.done += 1
        self.active = [i for i in active if self.done < len(self.steps[i])]
        self._guided_first()
        return work

    def _see(self, choice: "Choice", cond: Tensor, uncond: Tensor) -> None:
        """Keeps what is to be kept of a step for the requests that are watched."""
        row = 0
        for i, request in zip(self.active, self.now, strict=True):
            rows = slice(row, row + request.target_frames)
            row = rows.stop
            trace, (step, _) = self.traces[i], self.steps[i][self.done]
            if trace is None:
                continue
            trace.revealed[choice.chosen[rows].cpu().numpy()] = step
            if request.watch.wants(step):
                sight = choice.sight(cond, uncond, rows)
                trace.seen.append(sight.to_host().seen(step, slice(None), request.watch.top_n))

    def results(self) -> list[Generated]:
        """Codes and status of every request, in order; the one place where the loop's status is read."""
        codes = [canvas.T.to(torch.int16).cpu().numpy() for canvas in self.canvases]
        return [Generated(*each) for each in zip(codes, self.status.tolist(), self.traces, strict=True)]


@dataclass(frozen=True)
class Choice:
    """A step's samples [N, C], the cells' scores, float32 [N, C], and which are revealed, bool [N, C]."""

    samples: Samples
    scores: Tensor
    chosen: Tensor

    def sight(self, cond: Tensor, uncond: Tensor, rows: slice) -> Sight:
        """What is kept of some rows; cond, uncond: what `choose` was given."""
        samples = self.samples
        tokens = samples.tokens[rows]
        given = token_logprobs(cond[rows], tokens)
        free = token_logprobs(uncond[rows], tokens) if rows.stop <= len(uncond) else given
        columns = (tokens, samples.logprobs[rows], samples.confidence[rows], self.scores[rows], given, free)
        top = None
        if samples.top_tokens is not None:
            top = samples.top_tokens[rows], samples.top_logprobs[rows]
        return Sight.of(columns, top)


def choose(
    cond: Tensor, uncond: Tensor, canvas: Tensor, requests: list[Request], step: Tensor, count: Tensor, mask_id: int
) -> Choice:
    """Samples all cells and picks each request's `count` best masked ones.

    cond [N, C, V], the requests' rows end to end; uncond [M, C, V] of the first M, the guided ones'; canvas int64
    [N, C]; step, count: int64 [R], as in `schedule_steps`.
    """
    frames = [request.target_frames for request in requests]
    offsets = torch.tensor([0, *accumulate(frames)], device=canvas.device)
    request_of_row = rows_to_requests(offsets, len(canvas))
    frame_of_row = torch.arange(len(canvas), device=canvas.device) - offsets[request_of_row]
    sampling = SamplingParams.of([sampling_settings(request, mask_id) for request in requests], device=canvas.device)
    ranking = RankingParams(
        torch.tensor([r.recipe.layer_penalty_factor for r in requests], dtype=torch.float32, device=canvas.device),
        torch.tensor([r.recipe.position_temperature for r in requests], dtype=torch.float32, device=canvas.device),
        sampling.seed,
    )
    # The definition, on a GPU too: its confidences round as the CPU's do, so that a GPU in float32 ranks the cells
    # as the CPU does.
    top_n = top_of(requests) or 0
    samples = sample(cond, uncond, sampling, offsets=offsets, step=step, top_n=top_n, backend="torch")
    scores = rank_scores(samples.confidence, canvas == mask_id, ranking, request_of_row, frame_of_row, step)
    return Choice(samples, scores, top_cells(scores, request_of_row, offsets[:-1], count))


def top_of(requests: Iterable[Request]) -> int | None:
    """How many of the likeliest tokens of each cell somebody wants to see, or None where nobody watches."""
    return max((request.watch.top_n for request in requests if request.watch is not None), default=None)


def schedule_steps(request: Request, codebooks: int) -> list[tuple[int, int]]:
    """The request's steps that reveal cells: each one's number in the full schedule, and how many cells.

    Steps that reveal nothing change nothing, and are left out; noise is counted by the number in the full schedule.
    """
    recipe = request.recipe
    counts = reveal_schedule(request.target_frames, recipe.num_step, recipe.t_shift, codebooks)
    return [(step, count) for step, count in enumerate(counts) if count]


def is_guided(request: Request, step: int) -> bool:
    """Whether a step, a number of the full schedule, is guided."""
    recipe = request.recipe
    within = recipe.guidance_start <= step / recipe.num_step < recipe.guidance_end
    return recipe.guidance_scale > 0 and within


def is_refresh(request: Request, schedule: list[tuple[int, int]], done: int) -> bool:
    """Whether a step passes over prompt and reference: each prefix_refresh-th one, and where guidance begins or ends.

    schedule: see `schedule_steps`; done: how many of its steps were before.
    """
    if done % request.recipe.prefix_refresh == 0:
        return True
    return is_guided(request, schedule[done][0]) != is_guided(request, schedule[done - 1][0])


def as_of(request: Request, step: int) -> Request:
    """The request as a step has it: with guidance everywhere, or nowhere."""
    recipe = request.recipe
    if (recipe.guidance_start, recipe.guidance_end) == (0.0, 1.0):
        return request
    scale = recipe.guidance_scale if is_guided(request, step) else 0.0
    return replace(request, recipe=replace(recipe, guidance_scale=scale, guidance_start=0.0, guidance_end=1.0))


def sampling_settings(request: Request, mask_id: int) -> dict[str, object]:
    """What the sampler is told of a request."""
    recipe = request.recipe
    return {
        "guidance_scale": recipe.guidance_scale,
        "temperature": recipe.class_temperature,
        "top_ratio": recipe.top_ratio,
        "seed": request.seed,
        "forbidden": [mask_id],
    }

"""What a precision changes: one model in two precisions, over the same canvases of a user's own utterances."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from omnitts.clips import too_long
from omnitts.engine import Batch, Generated, Request, as_of, choose, schedule_steps
from omnitts.errors import InputError, counted
from omnitts.manifest import Utterance
from omnitts.model.backbone import OmniVoice
from omnitts.model.canvas import commit
from omnitts.model.voice import Voice
from omnitts.prepare import Piece, plan_pieces, utterance_seed
from omnitts.sampler.reference import guided_scores
from omnitts.tts import TTS, dtype_name

if TYPE_CHECKING:
    from omnitts.steps import Engine

STAGES = (0.0, 0.25, 0.5, 0.75)  # shares of a loop's steps


@dataclass(frozen=True)
class StageRow:
    """Canvases that the reference's loop had come to at one point of its schedule, seen by both precisions."""

    steps_done: float  # share
    cells: int  # masked ones
    tokens_same: float  # share of these cells whose likeliest token is the same
    logprob_mean: float  # absolute difference, of the token that the reference finds likeliest
    logprob_most: float
    next_same: float  # share of the cells which the reference's next step reveals that the other's reveals, too


@dataclass(frozen=True)
class PrecisionBench:
    device: str
    dtype: str
    against: str  # the reference
    utterances: int
    clips: int
    frames: int
    rows: list[StageRow]
    codes_same: float  # share of the codes that are the same when each has run its own loop

    def as_dict(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Compared:
    """Sums over the masked cells of a canvas."""

    cells: int
    same: int
    difference: float
    most: float
    revealed: int
    shared: int


@torch.inference_mode()
def bench_precision(
    reference: TTS, other: "OmniVoice | Engine", dtype: str, utterances: Sequence[Utterance]
) -> PrecisionBench:
    """Compares the reference's backbone with `other`, the same one in the precision that `dtype` names.

    Both are in memory together. Clips go through one at a time, and the samplers are the definition's in both loops,
    so that all that differs is the arithmetic of the backbone. Raises InputError for a reference or a text that cannot
    be used, and for logits that are not finite.
    """
    config, names = reference.checkpoint.config, (dtype_name(reference.dtype), dtype)
    pieces, voices = _prepared(reference, utterances)
    stages: dict[float, list[Compared]] = {done: [] for done in STAGES}
    first: dict[int, np.ndarray] = {}  # by owner, what its other chunks follow
    same = 0
    for piece in pieces:
        voice = voices[piece.owner]
        codes = first[piece.owner] if piece.follows_first else voice and voice.codes
        request = Request(piece.prompt_ids, codes, piece.target_frames, piece.recipe, piece.seed)
        blank = torch.full(
            (request.target_frames, config.num_audio_codebook), config.audio_mask_id, device=reference.device
        )
        canvases, others = (
            _loop(model, request, blank, name) for model, name in zip((reference.model, other), names, strict=True)
        )
        same += int((canvases[-1] == others[-1]).sum())
        first.setdefault(piece.owner, _codes(canvases[-1]))
        for done, compared in stages.items():
            at = int(done * (len(canvases) - 1))
            compared.append(_compare((reference.model, other), request, canvases[at], at, config.audio_mask_id))
    frames = sum(piece.target_frames for piece in pieces)
    return PrecisionBench(
        torch.cuda.get_device_name(reference.device) if reference.device.type == "cuda" else "CPU",
        dtype,
        names[0],
        len(utterances),
        len(pieces),
        frames,
        [_row(done, compared) for done, compared in stages.items()],
        same / (frames * config.num_audio_codebook),
    )


def _prepared(tts: TTS, utterances: Sequence[Utterance]) -> tuple[list[Piece], list[Voice | None]]:
    """The clips of the utterances, first chunks before those that follow them, and the utterances' references."""
    voices = [tts.voice_of(utterance) for utterance in utterances]
    pieces = plan_pieces(tts.tokenizer, utterances, voices, [utterance_seed(utterance) for utterance in utterances])
    for piece in pieces:
        if why := too_long(piece.target_frames):
            raise InputError(why, line=utterances[piece.owner].line)
    return pieces, voices


def _codes(canvas: Tensor) -> np.ndarray:
    return canvas.T.to(torch.int16).cpu().numpy()


def _logits(model: "OmniVoice | Engine", request: Request, canvas: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of a request's canvas [T, C]: conditional [T, C, V], and unconditional, of no rows without guidance."""
    if isinstance(model, OmniVoice):
        batch = Batch(model, [request])
        batch.canvases = [canvas]
        return batch.logits()
    from omnitts.steps import Shape  # needs Triton

    model.reach([request])
    step = model.step(Shape.of([request]))
    step.fill([request], [Generated(_codes(canvas), 0)])
    logits = model.model.logits(step.row, step.attention)
    room = step.shape.frames
    return logits[: len(canvas)], logits[room : room + len(canvas)]


def _loop(model: "OmniVoice | Engine", request: Request, blank: Tensor, dtype: str) -> list[Tensor]:
    """The canvases of a loop, int64 [T, C]: `blank`, which is all masked, and what each step made of it."""
    canvases, mask_id = [blank], int(blank[0, 0])
    for step, count in schedule_steps(request, blank.shape[1]):
        now = as_of(request, step)
        numbers = (torch.tensor([number], device=blank.device) for number in (step, count))
        choice = choose(*_logits(model, now, canvases[-1]), canvases[-1], [now], *numbers, mask_id)
        if choice.samples.status.any():
            raise InputError(f"in {dtype} the model's logits are not finite: choose another", field="dtype")
        canvases.append(commit(canvases[-1], choice.samples.tokens, choice.chosen))
    return canvases


def _compare(
    models: Sequence["OmniVoice | Engine"], request: Request, canvas: Tensor, at: int, mask_id: int
) -> Compared:
    """The reference and the other on one canvas of the reference's loop, `at` steps into it."""
    step, count = schedule_steps(request, canvas.shape[1])[at]
    numbers = [torch.tensor([number], device=canvas.device) for number in (step, count)]
    request = as_of(request, step)
    masked, logprobs, chosen = canvas == mask_id, [], []
    for model in models:
        logits = _logits(model, request, canvas)
        logprobs.append(_logprobs(*logits, request, mask_id)[masked.flatten()])
        chosen.append(choose(*logits, canvas, [request], *numbers, mask_id).chosen)
    tokens, others = (rows.argmax(-1) for rows in logprobs)
    of_tokens = [rows.gather(-1, tokens[:, None]) for rows in logprobs]
    difference = (of_tokens[0] - of_tokens[1]).abs()
    return Compared(
        cells=int(masked.sum()),
        same=int((tokens == others).sum()),
        difference=float(difference.sum(dtype=torch.float64)),
        most=float(difference.max()),
        revealed=int(chosen[0].sum()),
        shared=int((chosen[0] & chosen[1]).sum()),
    )


def _logprobs(cond: Tensor, uncond: Tensor, request: Request, mask_id: int) -> Tensor:
    """Guided logprobs, float32 [T * C, V]; that of the mask, which is never revealed, is -inf."""
    cond, uncond = cond.flatten(0, 1), uncond.flatten(0, 1) if len(uncond) else None
    scale = torch.full((len(cond),), request.recipe.guidance_scale, dtype=torch.float32, device=cond.device)
    logprobs = torch.log_softmax(guided_scores(cond, uncond, scale), dim=-1)
    logprobs[:, mask_id] = -torch.inf
    return logprobs


def _row(done: float, compared: Sequence[Compared]) -> StageRow:
    cells = sum(one.cells for one in compared)
    return StageRow(
        done,
        cells,
        sum(one.same for one in compared) / cells,
        sum(one.difference for one in compared) / cells,
        max(one.most for one in compared),
        sum(one.shared for one in compared) / sum(one.revealed for one in compared),
    )


def precision_table(bench: PrecisionBench) -> list[str]:
    """The bench as lines of text."""
    lines = [
        f"{bench.device}, {bench.dtype} against {bench.against}: {counted(bench.utterances, 'utterance')}, "
        f"{counted(bench.clips, 'clip')}, {counted(bench.frames, 'frame')}",
        f"{'steps done':>10} {'cells':>10} {'same token':>10} {'logprob off by':>14} {'at most':>8} {'same next':>9}",
    ]
    for row in bench.rows:
        lines.append(
            f"{row.steps_done:>10.0%} {row.cells:>10,} {row.tokens_same:>10.2%} {row.logprob_mean:>14.4f} "
            f"{row.logprob_most:>8.3f} {row.next_same:>9.2%}"
        )
    lines.append(
        f"whole loops: {bench.codes_same:.2%} of the codes are the same (loops part after the first token that differs)"
    )
    return lines

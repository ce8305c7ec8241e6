"""The canvas of masked diffusion: the reveal schedule, the ranking of cells and the commit.

These are the OmniVoice decoder's own rules (layer penalty, position temperature), so they live beside the model and
not in the sampler.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from omnitts.sampler import POSITION_STREAM, gumbel


def reveal_schedule(target_frames: int, num_step: int, t_shift: float, codebooks: int = 8) -> list[int]:
    """Cells revealed at each step; they sum to codebooks * target_frames.

    With x = i / num_step, t(x) = s*x / (1 + (s-1)*x) and s = t_shift, step i reveals
    ceil(cells * (t(x_{i+1}) - t(x_i))), at most what is left; the last step reveals all that is left. A small
    t_shift reveals few cells early, while the canvas is still mostly unknown.
    """
    cells = left = codebooks * target_frames
    x = torch.linspace(0, 1, num_step + 1).tolist()  # float32 values: the schedule is defined on them
    t = [t_shift * v / (1 + (t_shift - 1) * v) for v in x]
    reveal = []
    for i in range(num_step):
        count = left if i == num_step - 1 else min(math.ceil(cells * (t[i + 1] - t[i])), left)
        reveal.append(count)
        left -= count
    return reveal


@dataclass(frozen=True)
class RankingParams:
    """One value a request, each a tensor [R] on the canvas's device."""

    layer_penalty_factor: Tensor  # float32; subtracted once per codebook: coarse codebooks are revealed first
    position_temperature: Tensor  # float32; 0 ranks by confidence alone
    seed: Tensor  # int64


def rank_scores(
    confidence: Tensor,
    masked: Tensor,
    params: RankingParams,
    request_of_row: Tensor,
    frame_of_row: Tensor,
    step: Tensor,
) -> Tensor:
    """Ranking score of every cell, float32 [N, C]; cells already revealed get -inf.

    score = confidence - layer_penalty_factor * codebook; where position_temperature > 0 it is divided by that
    and Gumbel noise is added. confidence: float32 [N, C]; masked: bool [N, C]; request_of_row, frame_of_row: int64
    [N]; step: int64 [R].
    """
    codebook = torch.arange(masked.shape[1], device=masked.device)
    score = confidence - params.layer_penalty_factor[request_of_row, None] * codebook
    temperature = params.position_temperature[request_of_row, None]
    noise = gumbel(
        params.seed[request_of_row, None],
        step[request_of_row, None],
        frame_of_row[:, None] * masked.shape[1] + codebook,
        torch.zeros_like(codebook),
        POSITION_STREAM,
    )
    score = torch.where(temperature > 0, score / temperature + noise, score)
    return score.masked_fill(~masked, -math.inf)


def top_cells(scores: Tensor, request_of_row: Tensor, first_row: Tensor, count: Tensor) -> Tensor:
    """The `count[r]` best cells of every request at once: bool [N, C].

    scores: float32 [N, C]; request_of_row: int64 [N], ascending; first_row: int64 [R], where each request's rows
    begin; count: int64 [R]. Two stable sorts (by score, then by request) give each cell its rank within its
    request, without a loop over requests or a host sync. Ties go to the earlier cell in (frame, codebook) order.
    """
    codebooks = scores.shape[1]
    by_score = torch.argsort(scores.flatten(), descending=True, stable=True)
    request = request_of_row.repeat_interleave(codebooks)[by_score]
    request, grouped = torch.sort(request, stable=True)
    order = by_score[grouped]
    rank = torch.arange(len(order), device=scores.device) - first_row[request] * codebooks
    chosen = torch.empty_like(order, dtype=torch.bool)
    chosen[order] = rank < count[request]
    return chosen.view_as(scores)


def commit(canvas: Tensor, tokens: Tensor, chosen: Tensor) -> Tensor:
    """Writes the chosen cells' tokens into the canvas; all others stay. All are [N, C]; returns a new canvas."""
    return torch.where(chosen, tokens, canvas)

"""The reveal schedule, the ranking of cells and the commit."""

import math

import pytest
import torch

from omnitts.model.canvas import RankingParams, commit, rank_scores, reveal_schedule, top_cells


def test_published_schedules(cases):
    for case in cases["schedules"]:
        assert reveal_schedule(case["target_len"], case["num_step"], case["t_shift"]) == case["reveal"], case


@pytest.mark.parametrize("num_step", [1, 7, 32, 999])
@pytest.mark.parametrize("t_shift", [0.01, 0.1, 1.0, 10.0])
def test_every_cell_is_revealed_once(num_step, t_shift):
    for frames in (1, 2, 250, 751):
        reveal = reveal_schedule(frames, num_step, t_shift)
        assert len(reveal) == num_step and sum(reveal) == 8 * frames and min(reveal) >= 0


def ranking(*, penalty=0.0, temperature=0.0, seeds=(1,)) -> RankingParams:
    count = len(seeds)
    return RankingParams(torch.full((count,), penalty), torch.full((count,), temperature), torch.tensor(seeds))


def scores_of(confidence, masked, params, step=0):
    rows = len(confidence)
    zeros = torch.zeros(rows, dtype=torch.int64)
    return rank_scores(confidence, masked, params, zeros, torch.arange(rows), torch.tensor([step]))


def test_scores_penalise_fine_codebooks_and_skip_revealed_cells():
    confidence = torch.tensor([[-1.0, -2.0, -3.0], [-0.5, -0.25, -4.0]])
    masked = torch.tensor([[True, True, True], [False, True, True]])
    scores = scores_of(confidence, masked, ranking(penalty=5.0))
    expected = torch.tensor([[-1.0, -7.0, -13.0], [-math.inf, -5.25, -14.0]])
    torch.testing.assert_close(scores, expected)


def test_position_noise_is_gumbel_over_the_temperature():
    confidence, masked = torch.randn(400, 8), torch.ones(400, 8, dtype=torch.bool)
    quiet = scores_of(confidence, masked, ranking(penalty=2.0))
    noise = scores_of(confidence, masked, ranking(penalty=2.0, temperature=4.0)) - quiet / 4.0
    assert abs(noise.mean() - 0.5772) < 0.1 and abs(noise.var() - torch.pi**2 / 6) < 0.25
    again = scores_of(confidence, masked, ranking(penalty=2.0, temperature=4.0), step=1) - quiet / 4.0
    assert abs(torch.corrcoef(torch.stack([noise.flatten(), again.flatten()]))[0, 1]) < 0.06


def test_top_cells_per_request():
    """Each request's own best cells, as a loop with topk finds them."""
    torch.manual_seed(0)
    frames, counts = [3, 1, 6], [5, 8, 0]
    scores = torch.randn(10, 8)
    request_of_row = torch.arange(3).repeat_interleave(torch.tensor(frames))
    first_row = torch.tensor([0, 3, 4])
    chosen = top_cells(scores, request_of_row, first_row, torch.tensor(counts))
    for request, count in enumerate(counts):
        rows = request_of_row == request
        best = torch.zeros(int(rows.sum()) * 8, dtype=torch.bool)
        best[scores[rows].flatten().topk(count).indices] = True
        assert torch.equal(chosen[rows].flatten(), best)


def test_ties_go_to_the_earlier_cell():
    chosen = top_cells(torch.zeros(2, 4), torch.tensor([0, 0]), torch.tensor([0]), torch.tensor([3]))
    assert chosen.flatten().tolist() == [True, True, True, False, False, False, False, False]


def test_commit_changes_chosen_cells_only():
    canvas, tokens = torch.full((2, 2), 1024), torch.tensor([[1, 2], [3, 4]])
    assert commit(canvas, tokens, torch.tensor([[True, False], [False, True]])).tolist() == [[1, 1024], [1024, 4]]

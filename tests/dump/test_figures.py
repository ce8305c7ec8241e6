import math

import numpy as np
import pytest

from omnitts.dump import Piece, figures
from tests.dump.conftest import make_dump


def test_cells_that_were_revealed_or_idle_do_not_count():
    made = make_dump(frames=10, pieces=(Piece(6, 1), Piece(4, 2)))
    made.tokens[3, :, 6:] = -1  # a step that the second piece did not run
    cells = figures.open_cells(made)
    assert (cells[2] == (made.revealed >= 2)).all()
    assert not cells[3, :, 6:].any() and (cells[3, :, :6] == (made.revealed[:, :6] >= 3)).all()


def test_means_leave_out_what_is_not_known():
    assert figures.mean(np.array([1, np.nan, 3], np.float32)) == 2
    assert figures.lowest(np.array([1, np.nan, 3], np.float32)) == 1
    assert math.isnan(figures.mean(np.zeros(0))) and math.isnan(figures.lowest(np.full(2, np.nan)))


def test_bits():
    assert figures.surprisal_bits(np.log(np.array([0.5, 0.125]))) == pytest.approx(2)
    assert figures.entropy_bits(np.log(np.full((3, 4), 0.1))) == pytest.approx(2)
    assert figures.entropy_bits(np.array([[0.0, -np.inf]])) == 0
    assert figures.entropy_bits(np.full((1, 2), -np.inf)) == 0


def test_differences_are_of_finite_numbers():
    a, b = np.array([1, -np.inf, 3], np.float16), np.array([0.5, -np.inf, -np.inf], np.float16)
    assert figures.difference(a, b).tolist() == [0.5]


def test_by_step_and_codebook_knows_what_was_not_dumped():
    made = make_dump(every=2)
    means = figures.by_step_and_codebook(made)
    assert means.shape == (8, 8) and np.isnan(means[:, 1::2]).all()
    cells = made.revealed[3] >= 2
    assert means[3, 2] == pytest.approx(made.logprobs[1, 3][cells].astype(np.float64).mean())
    assert math.isnan(means[0, 6])  # codebook 0 has long been revealed


def test_thinning_means_neighbours_but_for_unknown_ones():
    values = np.array([[1, 3, np.nan, 5, np.nan, np.nan, 7]])
    thin = figures.thinned(values, 4)
    assert thin[0, [0, 1, 3]].tolist() == [2, 5, 7] and math.isnan(thin[0, 2])
    assert figures.thinned(values, 7).shape == (1, 7)


def test_reveal_order_is_even_in_cells():
    made = make_dump(frames=100)
    shares = figures.reveal_order(made)[made.revealed]
    assert shares.mean() == pytest.approx(0.5) and 0 < shares.min() < 0.1 and 0.9 < shares.max() < 1

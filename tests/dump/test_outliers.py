import math

import numpy as np

from omnitts.dump.outliers import Certainty, doubts


def utterances(count, frames=100, seed=0):
    random = np.random.default_rng(seed)
    return [random.normal(-1, 0.2, frames) for _ in range(count)]


def certainties(frames):
    return [Certainty(float(np.mean(f)) if len(f) else math.nan, f) for f in frames]


def test_alike_utterances_raise_no_doubt():
    for seed in range(5):
        assert not any(doubts(certainties(utterances(200, seed=seed))))


def test_a_bad_utterance_is_found_among_many():
    made = utterances(50)
    made[7] = made[7] - 1
    found = doubts(certainties(made))
    assert [n for n, why in enumerate(found) if why] == [7]
    assert "mean logprob far below the others: median -1.0" in found[7][0] and "low certainty for 4.0 s" in found[7][1]


def test_a_bad_stretch_is_found_and_placed():
    made = utterances(50)
    made[3][50:75] -= 1.5
    made[4][50:55] -= 1.5  # too short to matter
    found = doubts(certainties(made))
    assert [n for n, why in enumerate(found) if why] == [3]
    assert "low certainty for 1.2 s, from 1.9 s on" in found[3]  # the means of neighbours blur its edges


def test_little_is_known_of_few_and_nothing_of_unknown():
    assert doubts([]) == []
    assert doubts(certainties([np.full(10, -1.0), np.full(10, -9.0)])) == [[], []]
    assert doubts([Certainty(math.nan, np.full(40, np.nan))] * 6) == [[]] * 6
    assert doubts([Certainty(-math.inf, np.full(40, -np.inf))] * 6) == [[]] * 6
    assert doubts([Certainty(math.nan, np.zeros(0))] * 6) == [[]] * 6
    assert not any(doubts(certainties([np.full(60, -1.0)] * 6)))

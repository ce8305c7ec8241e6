"""Packing under a budget of positions."""

from hypothesis import given
from hypothesis import strategies as st

from omnitts.packing import pack

items = st.lists(st.tuples(st.integers(1, 800), st.integers(0, 500)), max_size=60)


@given(items, st.integers(1, 3000))
def test_every_item_once_and_within_the_budget(items, budget):
    frames = [target for target, _ in items]
    positions = [2 * target + prompt for target, prompt in items]
    batches = pack(frames, positions, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(items)))
    for batch in batches:
        assert len(batch) == 1 or sum(positions[i] for i in batch) <= budget
    lengths = [frames[i] for batch in batches for i in batch]
    assert lengths == sorted(lengths, reverse=True)


def test_a_batch_is_filled_before_the_next_begins():
    assert pack([10, 10, 10, 10], [30, 30, 30, 30], 90) == [[0, 1, 2], [3]]


def test_an_item_over_the_budget_runs_alone():
    assert pack([5, 500, 5], [10, 1000, 10], 50) == [[1], [0, 2]]

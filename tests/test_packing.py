"""Packing under a budget of positions."""

from hypothesis import given
from hypothesis import strategies as st

from omnitts.packing import halves, pack

items = st.lists(st.tuples(st.integers(1, 800), st.integers(0, 500)), max_size=60)


@given(items, st.integers(1, 3000))
def test_every_item_once_and_within_the_budget(items, budget):
    frames = [target for target, _ in items]
    positions = [2 * target + prompt for target, prompt in items]
    batches = pack(frames, positions, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(items)))
    sizes = [sum(positions[i] for i in batch) for batch in batches]
    for number, (batch, size) in enumerate(zip(batches, sizes, strict=True)):
        assert len(batch) == 1 or size <= budget
        later = [positions[i] for other in batches[number + 1 :] for i in other]
        assert not later or size + min(later) > budget  # nothing that fits is left for later
    first = [frames[batch[0]] for batch in batches]
    assert first == sorted(first, reverse=True)


def test_a_batch_is_filled_before_the_next_begins():
    assert pack([10, 10, 10, 10], [30, 30, 30, 30], 90) == [[0, 1, 2], [3]]


def test_what_is_left_of_a_batch_is_filled_by_the_largest_that_fits():
    assert pack([50, 40, 30, 20, 10], [100, 80, 60, 40, 20], 150) == [[0, 3], [1, 2], [4]]


def test_an_item_over_the_budget_runs_alone():
    assert pack([5, 500, 5], [10, 1000, 10], 50) == [[1], [0, 2]]


@given(st.lists(st.integers(1, 800), min_size=2, max_size=60))
def test_halves_are_never_empty_and_as_equal_as_sizes_allow(sizes):
    cut = halves(sizes)
    assert 1 <= cut < len(sizes)
    assert abs(sum(sizes[:cut]) - sum(sizes[cut:])) <= 2 * max(sizes)


def test_halves():
    assert [halves(sizes) for sizes in ([5, 5], [5, 5, 5, 5], [9, 1, 1], [1, 1, 9])] == [1, 2, 1, 2]

"""Packing: sort by target length, fill batches up to a budget of positions, pad nothing; and the like for decoding."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

# By device. A CPU gains nothing from larger batches, and loses by tensors that its caches do not hold.
DEFAULT_MAX_POSITIONS = {"cpu": 1024, "cuda": 8192}


def pack(target_frames: Sequence[int], positions: Sequence[int], max_positions: int) -> list[list[int]]:
    """Groups items into batches of at most `max_positions` positions; returns lists of item indices.

    target_frames[i] is an item's target length, positions[i] all that it occupies in the packed row: conditional
    plus unconditional document. Items are taken from the longest target down, so that a batch's members end after
    about the same work and the largest memory use comes first. When the next one does not fit, the largest ones that
    do fill the rest: batches then differ little in size, which is what captured steps are good for. An item larger
    than the budget gets a batch alone.
    """
    batches: list[list[int]] = []
    left = sorted(zip(positions, range(len(positions)), strict=True))  # by size
    room = 0

    def take(at: int) -> None:
        nonlocal room
        size, item = left.pop(at)
        room -= size
        batches[-1].append(item)

    for i in sorted(range(len(positions)), key=lambda i: (-target_frames[i], -positions[i], i)):
        at = bisect_left(left, (positions[i], i))
        if at == len(left) or left[at][1] != i:
            continue  # it filled an earlier batch
        if positions[i] > room:
            while fitting := bisect_left(left, (room + 1, 0)):
                take(fitting - 1)
            batches.append([])
            room = max_positions
            at = bisect_left(left, (positions[i], i))
        take(at)
    return batches


def halves(sizes: Sequence[int]) -> int:
    """Where to cut a list of two items or more for two parts of about equal size: how many the first one has."""
    before_half = sum(2 * used < sum(sizes) for used in accumulate(sizes))
    return min(before_half + 1, len(sizes) - 1)

"""Packing: sort by target length, fill batches up to a budget of positions, pad nothing."""

from collections.abc import Sequence

# By device. A CPU gains nothing from larger batches, and loses by tensors that its caches do not hold.
DEFAULT_MAX_POSITIONS = {"cpu": 1024, "cuda": 8192}


def pack(target_frames: Sequence[int], positions: Sequence[int], max_positions: int) -> list[list[int]]:
    """Groups items into batches of at most `max_positions` positions; returns lists of item indices.

    target_frames[i] is an item's target length, positions[i] all that it occupies in the packed row: conditional
    plus unconditional document. Items are taken from the longest target down, so that a batch's members end after
    about the same work and the largest memory use comes first. An item larger than the budget gets a batch alone.
    """
    order = sorted(range(len(positions)), key=lambda i: (-target_frames[i], -positions[i], i))
    batches: list[list[int]] = []
    used = 0
    for i in order:
        if not batches or used + positions[i] > max_positions:
            batches.append([])
            used = 0
        batches[-1].append(i)
        used += positions[i]
    return batches

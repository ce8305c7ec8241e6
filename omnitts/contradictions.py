"""Settings of a recipe that are right one by one and contradict each other: one of them could never take effect."""

from collections.abc import Iterator, Mapping
from typing import Any


def contradictions(settings: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Of all the settings of a recipe, checked one by one before: (those that contradict each other, what to do)."""
    yield from _guidance(settings)
    threshold, length = settings["audio_chunk_threshold"], settings["audio_chunk_duration"]
    if length > threshold:
        yield (
            ("audio_chunk_duration", "audio_chunk_threshold"),
            f"audio_chunk_duration is {length:g} s and audio_chunk_threshold {threshold:g} s, so that chunks are "
            "longer than what is cut into them: set audio_chunk_duration to at most audio_chunk_threshold",
        )


def _guidance(settings: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """An interval that is empty because both ends are equal is taken for meant: guidance_end 0 says "none"."""
    start, end, steps = settings["guidance_start"], settings["guidance_end"], settings["num_step"]
    ends = f"guidance_start is {start:g} and guidance_end {end:g}"
    mend = "or guidance_scale to 0 for no guidance"
    if start > end:
        yield (
            ("guidance_start", "guidance_end"),
            f"{ends}, so that no step is guided: set guidance_start below guidance_end, {mend}",
        )
    some_guided = any(start <= step / steps < end for step in range(steps))
    if start < end and settings["guidance_scale"] > 0 and not some_guided:
        yield (
            ("guidance_start", "guidance_end", "num_step"),
            f"{ends}, and with num_step {steps}, a step at each multiple of {1 / steps:g}, none lies between to be "
            f"guided: set them farther apart, {mend}",
        )

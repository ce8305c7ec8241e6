"""Where the time of a run went, and how full its batches were."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from omnitts.errors import counted

# What the loop itself does, which adds up to the wall time with what is left for `host`; and the stages behind it,
# each the sum over its threads. In a run without threads these are part of `finish`.
LOOP_STAGES = ("prepare", "step", "finish")
BEHIND_STAGES = ("decode", "postprocess", "write")


@dataclass
class Stats:
    """Seconds by stage, and sums over batches. Any thread may add to it."""

    prepare: float = 0.0  # the loop waited for texts and references
    step: float = 0.0  # it was in the engine
    finish: float = 0.0  # it waited for decoding and files
    decode: float = 0.0
    postprocess: float = 0.0
    write: float = 0.0
    batches: int = 0
    clips: int = 0
    positions: int = 0
    captures: int = 0  # of steps, as CUDA graphs
    capturing: float = 0.0  # seconds, part of `step`
    step_positions: int = 0  # of all steps, where rows have shapes (`steps.Engine`)
    step_padding: int = 0  # besides, up to the shapes
    decoded_frames: int = 0
    padded_frames: int = 0  # decoded besides, between clips and behind them
    splits: int = 0  # batches that were halved, as memory ran out
    max_positions: int | None = None  # most positions in a batch after that
    _lock: Any = field(default_factory=Lock, repr=False, compare=False)

    def add(self, **amounts: float) -> None:
        """Add to the fields of these names."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """Adds the seconds that the block takes to a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(**{stage: time.perf_counter() - start})

    def seconds(self, wall: float) -> dict[str, float]:
        """By stage; `host` is what the loop did besides: Python of its own."""
        loop = {stage: getattr(self, stage) for stage in LOOP_STAGES}
        return (
            loop
            | {"host": max(0.0, wall - sum(loop.values()))}
            | {stage: getattr(self, stage) for stage in BEHIND_STAGES}
        )

    def as_dict(self, wall: float, audio: float) -> dict[str, Any]:
        """For summary.json. wall: seconds that the run took; audio: seconds that it made."""
        seconds = self.seconds(wall)
        return {
            "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
            "share": {stage: round(value / wall, 4) if wall else 0.0 for stage, value in seconds.items()},
            "batches": self.batches,
            "clips_per_batch": _ratio(self.clips, self.batches),
            "positions_per_batch": _ratio(self.positions, self.batches),
            "graphs_captured": self.captures,
            "capture_seconds": round(self.capturing, 3),
            "step_padding": _ratio(self.step_padding, self.step_padding + self.step_positions),
            "decode_padding": _ratio(self.padded_frames, self.padded_frames + self.decoded_frames),
            "batches_split": self.splits,
            "audio_seconds": round(audio, 3),
            "real_time_factor": round(wall / audio, 4) if audio else None,
        }

    def lines(self, wall: float, audio: float) -> Iterator[str]:
        """The same in words."""
        shares = {name: f"{share:.1%}" for name, share in self.as_dict(wall, audio)["share"].items()}
        yield (
            f"stats: of {wall:.1f} s, {shares['step']} in the engine, {shares['prepare']} waiting for preparation, "
            f"{shares['finish']} waiting for decoding and files, {shares['host']} between"
        )
        yield (
            f"stats: decode {shares['decode']}, post-process {shares['postprocess']}, write {shares['write']} of that "
            "time, all threads together"
        )
        figures = self.as_dict(wall, audio)
        if self.captures or self.step_positions:
            yield (
                f"stats: {counted(self.captures, 'graph')} captured in {self.capturing:.1f} s of that time; "
                f"{figures['step_padding'] or 0:.1%} of the steps' positions were padding"
            )
        factor = figures["real_time_factor"]
        yield (
            f"stats: {counted(self.batches, 'batch', 'batches')} of {figures['clips_per_batch'] or 0:.1f} clips and "
            f"{figures['positions_per_batch'] or 0:.0f} positions in the mean, {self.splits} split; "
            f"{figures['decode_padding'] or 0:.1%} padding in decoding; {audio:.1f} s of audio"
            + ("" if factor is None else f", real-time factor {factor:.4f}")
        )


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None

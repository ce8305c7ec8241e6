"""summary.json: the sums of a run, what it was asked for, and with what it was made."""

import json
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omnitts import __version__
from omnitts.files import atomic_path
from omnitts.model.checkpoint import Checkpoint

if TYPE_CHECKING:
    from omnitts.tts import TTS

_BEGINNING = b'{\n  "manifest": '


@dataclass
class Totals:
    """The sums of a run."""

    utterances: int
    written: int = 0  # in this run, as all that follows
    failed: int = 0
    kept: int = 0  # written by an earlier run
    failed_before: int = 0  # and not tried again
    dumps_failed: int = 0
    audio_seconds: float = 0.0
    wall_seconds: float = 0.0
    interrupted: bool = False
    stopped: str | None = None  # what made it impossible to go on

    @property
    def left(self) -> int:
        """Utterances that no run has settled."""
        return self.utterances - self.written - self.failed - self.kept - self.failed_before

    @property
    def all_well(self) -> bool:
        """Whether every utterance has its audio, and its dump where one was wanted."""
        troubles = self.failed, self.failed_before, self.dumps_failed, self.interrupted, self.stopped, self.left
        return not any(troubles)

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work for a second of audio."""
        return self.wall_seconds / self.audio_seconds if self.audio_seconds else None


def sums(totals: Totals, started: datetime, *, settled_before: int, lines_before: int) -> dict[str, Any]:
    """What is said of a run's progress. settled_before: ids, and lines_before: lines that earlier runs recorded."""
    factor = totals.real_time_factor
    return {
        "utterances": totals.utterances,
        "written": totals.written,
        "failed": totals.failed,
        "kept": totals.kept,
        "settled_before": settled_before,
        "lines_before": lines_before,
        "failed_before": totals.failed_before,
        "dumps_failed": totals.dumps_failed,
        "interrupted": totals.interrupted,
        "stopped": totals.stopped,
        "audio_seconds": round(totals.audio_seconds, 3),
        "wall_seconds": round(totals.wall_seconds, 3),
        "real_time_factor": None if factor is None else round(factor, 4),
        "started": started.isoformat(timespec="seconds"),
    }


def made_with(checkpoint: Checkpoint, tts: "TTS | None", max_positions: int | None) -> dict[str, Any]:
    """What is said of model and machine; tts: None where there was nothing to do."""
    from omnitts.tts import dtype_name

    return {
        "model_digest": checkpoint.digest,
        "device": None if tts is None else str(tts.device),
        "dtype": None if tts is None else dtype_name(tts.dtype),
        "max_positions": max_positions,
        "versions": {
            "python": platform.python_version(),
            "omnitts": __version__,
            **{name: version(name) for name in ("torch", "transformers", "tokenizers", "soundfile")},
        },
    }


def write_summary(path: Path, value: Mapping[str, Any]) -> None:
    """Writes it whole. Raises OSError."""
    text = json.dumps(value, ensure_ascii=False, indent=2) + "\n"
    with atomic_path(path) as temporary:
        # A file name that is not UTF-8 holds surrogates; escaped with a backslash they are JSON still.
        temporary.write_bytes(text.encode("utf-8", "backslashreplace"))


def is_summary(path: Path) -> bool:
    """Whether a file is one, the beginning of one, or empty. A link is none: a summary takes the place of its name."""
    if path.is_symlink() or not path.is_file():
        return False
    data = path.read_bytes()
    try:
        summary = json.loads(data)
    except ValueError:
        return data.startswith(_BEGINNING[: len(data)])
    return isinstance(summary, dict) and {"state", "utterances", "started"} <= summary.keys()


def read_summary(path: Path) -> dict[str, Any] | None:
    """One that a run wrote, with the numbers that `status` needs; None for anything else."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        numbers = {name: int(summary.get(name, 0)) for name in ("utterances", "settled_before", "lines_before")}
        if not math.isfinite(datetime.fromisoformat(summary["started"]).timestamp()) or numbers["utterances"] < 1:
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
    return summary | numbers

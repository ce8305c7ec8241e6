"""How many positions a batch had best have on a GPU: measured once, on the card at hand, and kept for later runs."""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

import omnitts
from omnitts.bench.timing import milliseconds
from omnitts.engine import Generated, Request
from omnitts.packing import DEFAULT_MAX_POSITIONS
from omnitts.recipe import Recipe
from omnitts.steps import Engine, Shape, positions_of

SIZES = (2048, 4096, 8192, 16_384, 32_768)
_NEAR = 1.01  # times the least time a position: what a smaller batch may take
_STEPS = 32  # of a batch, over which what goes before them is spread
_SHARE = 0.5  # of the free memory that steps may fill; references and decoding have the rest
_TEXT, _FRAMES = 60, 250  # of the requests that are timed: ten seconds of speech


def best_positions(engine: Engine) -> int:
    """The fewest positions whose batches take about as little time a position as any, within the free memory.

    Takes some seconds on the first call, for a card, a model's sizes and a precision; later ones, also in other
    processes, read what it found from the user's cache.
    """
    found = kept().get(_key(engine))
    if not isinstance(found, int) or found < 1:
        found = _measured(engine)
        _keep(_key(engine), found)
    return found


def knee(sizes: Sequence[int], times: Sequence[float]) -> int:
    """The smallest of ascending sizes whose time a position is near the least. times: a step's share of a batch's."""
    each = [time / size for size, time in zip(sizes, times, strict=True)]
    return next(size for size, time in zip(sizes, each, strict=True) if time <= _NEAR * min(each))


@torch.inference_mode()
def _measured(engine: Engine) -> int:
    device = engine.model.device
    sizes, times = [], []
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    try:
        for size in SIZES:
            times.append(_step_milliseconds(engine, size))
            sizes.append(size)
    except torch.OutOfMemoryError:
        pass
    engine.release()
    if not sizes:
        return DEFAULT_MAX_POSITIONS["cuda"]  # it will be halved as needed
    a_position = (torch.cuda.max_memory_allocated(device) - before) / sizes[-1]
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(knee(sizes, times), int(_SHARE * free / a_position)))


def _step_milliseconds(engine: Engine, positions: int) -> float:
    """A step's share of the time of a batch of about so many positions."""
    config = engine.model.config
    request = Request([0] * _TEXT, None, _FRAMES, Recipe(), 0)
    requests = [request] * max(1, positions // positions_of(request))
    step = engine.step(Shape.of(requests))
    blank = Generated(np.full((config.num_audio_codebook, _FRAMES), config.audio_mask_id, np.int16), 0)
    start = time.perf_counter()
    step.fill(requests, [blank] * len(requests))
    step.states(requests, [blank] * len(requests))
    around = 1000 * (time.perf_counter() - start)
    now = torch.zeros(2, step.shape.requests, dtype=torch.int64, device=engine.model.device)
    return milliseconds(lambda: step(now), 5) + around / _STEPS


def _key(engine: Engine) -> str:
    """What the best size depends on."""
    model, config = engine.model, engine.model.config
    precision = "fp8" if model.float8 else str(model.dtype).removeprefix("torch.")
    sizes = f"{config.num_hidden_layers} layers of {config.hidden_size} and {config.intermediate_size}"
    steps = f"{engine.attention}, {'graphs' if engine.cuda_graphs else 'eager'}"
    device = torch.cuda.get_device_name(model.device)
    return f"{device}; {precision}; {sizes}; {steps}; torch {torch.__version__}; omnitts {omnitts.__version__}"


def cache_file() -> Path:
    """Where sizes that were found are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "omnitts" / "batch-positions.json"


def kept() -> dict[str, int]:
    """The sizes that were found, in positions, by what they depend on; empty where they cannot be read."""
    try:
        content = json.loads(cache_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _keep(key: str, positions: int) -> None:
    """Into the cache, where it can be written; what another process writes at the same time may be measured again."""
    path = cache_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        part.write_text(json.dumps(kept() | {key: positions}, indent=2) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError:
        pass

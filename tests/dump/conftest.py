"""Made-up dumps: plausible in every array, and small."""

from dataclasses import asdict
from pathlib import Path

import numpy as np

from omnitts import dump
from omnitts.recipe import Recipe


def make_dump(
    id: str = "a",
    frames: int = 12,
    *,
    num_step: int = 8,
    every: int = 1,
    top: int = 0,
    seed: int = 0,
    dtype: type = np.float16,
    **changes,
) -> dump.Dump:
    """A dump of every `every`th step. Coarse codebooks come first, and logprobs rise from step to step."""
    random = np.random.default_rng(seed)
    canvas = (8, frames)
    rank = np.argsort(np.argsort((random.random(canvas) + 0.4 * np.arange(8)[:, None]).ravel()))
    revealed = (rank * num_step // max(rank.size, 1)).reshape(canvas).astype(np.int16)
    steps = np.arange(0, num_step, every, dtype=np.int32)
    cells = (len(steps), *canvas)
    codes = random.integers(0, 1024, canvas).astype(np.int16)
    guesses = random.integers(0, 1024, cells)
    known = (random.random(cells) < 0.6) | (revealed == steps[:, None, None])
    logprobs = (-random.gamma(2, 1, cells) * (1.5 - steps / num_step)[:, None, None]).astype(dtype)
    masked = revealed >= steps[:, None, None]
    scores = np.where(masked, -rank.reshape(canvas) / 5 - random.random(), -np.inf).astype(dtype)
    arrays = {
        "steps": steps,
        "tokens": np.where(known, codes, guesses).astype(np.int16),
        "logprobs": logprobs,
        "confidence": logprobs,
        "scores": scores,
        "cond_logprobs": logprobs - dtype(0.25),
        "uncond_logprobs": logprobs - dtype(0.5),
        "revealed": revealed,
        "codes": codes,
    }
    if top:
        arrays["top_tokens"] = random.integers(0, 1024, (*cells, top)).astype(np.int16)
        arrays["top_logprobs"] = np.full((*cells, top), -np.log(top), dtype)
    about = {
        "id": id,
        "text": "Hello there, this is a test.",
        "language": "en",
        "instruct": None,
        "reference": None,
        "pieces": (dump.Piece(frames, 5),),
        "recipe": asdict(Recipe(num_step=num_step)),
        "model_digest": "0123456789ab",
        "device": "cpu",
        "dtype": "float32",
        "versions": {"omnitts": "0.1.0"},
        "engine_seconds": 0.25,
        "error": None,
    }
    return dump.Dump(**(about | arrays | changes))


def write(folder: Path, made: dump.Dump) -> Path:
    path = folder / f"{made.id}{dump.SUFFIX}"
    dump.save(path, made)
    return path

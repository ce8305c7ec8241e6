"""The loop of the GPU: in Triton's interpreter here, on a GPU with `pytest -m gpu`; and how rows are laid out."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")

from omnitts.engine import Request  # noqa: E402
from omnitts.recipe import Recipe  # noqa: E402
from omnitts.steps import Shape, _stretch, lay_out, positions_of  # noqa: E402

ROOT = Path(__file__).parent.parent


def run_case(device: str, name: str) -> str:
    """Runs a case in a process of its own: Triton reads TRITON_INTERPRET when it is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1" if device == "cpu" else "0"}
    command = [sys.executable, "-m", "tests.packed_cases", device, name]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["kernels", "attention", "reveal", "loop", "snake", "precision"])
def test_in_the_interpreter(name):
    assert f"{name}: agrees" in run_case("cpu", name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["kernels", "attention", "reveal", "loop", "snake", "precision"])
def test_on_a_gpu(name):
    assert f"{name}: agrees" in run_case("cuda", name)


def request(words: int, reference: int, frames: int, guidance: float = 2.0) -> Request:
    codes = np.arange(8 * reference, dtype=np.int16).reshape(8, reference) if reference else None
    return Request(list(range(words)), codes, frames, Recipe(guidance_scale=guidance), 0)


@pytest.mark.parametrize("frames", [1, 9, 17, 100, 333, 1000, 9000])
def test_shapes_hold_what_they_are_for_and_little_more(frames):
    requests = [request(40, 0, frames), request(7, 50, frames), request(60, 0, frames, guidance=0.0)]
    shape = Shape.of(requests)
    positions = sum(map(positions_of, requests))
    assert positions == 40 + 7 + 50 + 60 + 5 * frames
    assert positions <= shape.positions <= max(positions + 15, 1.032 * positions)
    assert 3 * frames <= shape.frames <= max(3 * frames + 15, 1.5 * 3 * frames)
    assert shape.guided and shape.requests > len(requests)
    assert not Shape.of([request(1, 0, 5, guidance=0.0)]).guided


def test_a_row_holds_every_document():
    requests = [request(3, 2, 4), request(2, 0, 5, guidance=0.0)]
    canvases = [np.full((8, 4), 7, np.int16), np.full((8, 5), 9, np.int16)]
    shape = Shape.of(requests)
    layout = lay_out(requests, canvases, shape)
    # Documents: 3 ids, 2 frames of the reference, 4 of the canvas; 2 ids and 5; 4 without their condition; padding.
    assert layout.bounds[:4] == [0, 9, 16, 20] and layout.bounds[-1] == shape.positions
    assert len(layout.bounds) == 2 * shape.requests
    assert layout.text[:9].tolist() == [0, 1, 2] + [-1] * 6
    assert layout.frame[3:9].tolist() == [shape.frames, shape.frames + 1, 0, 1, 2, 3]
    assert layout.frame[16:20].tolist() == [0, 1, 2, 3] and (layout.frame[20:] == -1).all()
    assert layout.place[:20].tolist() == [*range(9), *range(7), *range(4)]
    assert (layout.codes[:4] == 7).all() and (layout.codes[4:9] == 9).all()
    assert (layout.codes[shape.frames :] == requests[0].reference.T).all()
    assert layout.targets[:9].tolist() == [5, 6, 7, 8, 11, 12, 13, 14, 15]
    assert layout.targets[shape.frames :][:4].tolist() == [16, 17, 18, 19]
    assert layout.offsets.tolist() == [0, 4, 9, 9, shape.frames]


def test_a_row_is_packed_anew_when_it_pays():
    assert _stretch([32, 32, 32], [10, 10, 10]) == 32
    assert _stretch([8, 32, 32], [10, 10, 10]) == 8  # a third of the row is over
    assert _stretch([8, 32, 32], [1, 10, 10]) == 32  # too little to matter
    assert _stretch([8, 9, 32], [2, 2, 10]) == 9

"""The Triton kernels agree with the definition: here in Triton's interpreter, on a GPU with `pytest -m gpu`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton")

ROOT = Path(__file__).parent.parent.parent
CASES = "tests.sampler.kernel_cases"


def run_cases(device: str, *names: str) -> str:
    """Runs the cases in a process of its own: Triton reads TRITON_INTERPRET when it is imported."""
    environment = os.environ | {"TRITON_INTERPRET": "1" if device == "cpu" else "0"}
    done = subprocess.run(
        [sys.executable, "-m", CASES, device, *names], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["small", "large", "close", "hard", "options", "tokens"])
def test_kernels_in_the_interpreter(name):
    assert "cells agree" in run_cases("cpu", name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    "name", ["small", "large", "close", "hard", "options", "tokens", "million", "graph", "draws", "memory"]
)
def test_kernels_on_a_gpu(name):
    assert "cells agree" in run_cases("cuda", name)

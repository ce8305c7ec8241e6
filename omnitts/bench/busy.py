"""How busy a GPU is while something runs, as nvidia-smi sees it: the share of time in which a kernel ran."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryFile

import torch

_INTERVAL = 200  # ms


@dataclass
class Busy:
    """The mean share, once the block is left; None without a GPU, without nvidia-smi, or for want of samples."""

    share: float | None = None


@contextmanager
def sampled(device: torch.device) -> Iterator[Busy]:
    """Samples the device's load, in a process of its own, while the block runs."""
    busy, command = Busy(), shutil.which("nvidia-smi")
    if device.type != "cuda" or command is None:
        yield busy
        return
    # By its UUID: CUDA_VISIBLE_DEVICES renumbers devices for torch alone.
    gpu = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    query = ["--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", f"--loop-ms={_INTERVAL}"]
    with TemporaryFile("w+") as output:  # not a pipe, which a long job would fill
        process = subprocess.Popen(
            [command, f"--id={gpu}", *query], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL
        )
        try:
            yield busy
        finally:
            process.terminate()
            process.wait()
        output.seek(0)
        busy.share = mean_share(output.read())


def mean_share(output: str) -> float | None:
    """The mean of the samples, a percentage a line, without the first and the last, which see more than the block."""
    samples = [float(line) for line in output.split("\n") if line.strip().isdecimal()][1:-1]
    return sum(samples) / len(samples) / 100 if samples else None

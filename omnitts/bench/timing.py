"""Times on the GPU at hand."""

from collections.abc import Callable

import torch


def copy_bandwidth() -> float:
    """Device-to-device copy of 1 GiB, in GB/s, bytes read plus written."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (milliseconds(lambda: target.copy_(source)) * 1e6)


def milliseconds(work: Callable[[], object], repeats: int = 20, calls: int = 1) -> float:
    """Median time of a call on the GPU, by events, after three calls to warm up.

    calls: how many follow each other without a wait, as steps of a loop do: launching one goes on beside another.
    """
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / calls)
    return sorted(times)[len(times) // 2]


def captured_milliseconds(work: Callable[[], object], calls: int = 10, graphs: int = 1) -> float:
    """Median time of a call in a CUDA graph of several, as an engine runs it: without Python between them.

    graphs: how many follow each other without a wait.
    """
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    return milliseconds(graph.replay, calls=graphs) / calls


def matmul_rate(size: int = 8192, dtype: torch.dtype = torch.bfloat16) -> float:
    """A large matrix product's rate in FLOP/s: what the matrix units can do on random numbers."""
    a, b = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
    out = torch.empty(size, size, device="cuda", dtype=dtype)
    return 2 * size**3 / (milliseconds(lambda: torch.mm(a, b, out=out)) / 1e3)

"""What both trainings share: a clock with its learning rate, steps captured as CUDA graphs, averages of weights."""

import math
import time
from collections.abc import Callable

import torch
from torch import nn


class Clock:
    """Training by the clock: what is done as a share, and the rate that belongs to it."""

    def __init__(self, seconds: float, peak_rate: float, warmup_steps: int = 200, last: float = 0.03):
        self.seconds, self.peak, self.warmup, self.last = seconds, peak_rate, warmup_steps, last
        self.start, self.steps = time.time(), 0

    @property
    def share(self) -> float:
        return min(1.0, (time.time() - self.start) / self.seconds)

    def rate(self) -> float:
        """Counts a step. A warm-up, then half flat, then a cosine to 3 % of the peak."""
        self.steps += 1
        falling = max(0.0, 2 * self.share - 1)
        cosine = self.last + (1 - self.last) * 0.5 * (1 + math.cos(math.pi * falling))
        return self.peak * min(1.0, self.steps / self.warmup) * cosine


class Captured:
    """A step without inputs, captured as a CUDA graph after some runs; on the CPU it just runs."""

    def __init__(self, step: Callable[[], object], device: torch.device, warmup: int = 3):
        self.step, self.graph, self.results = step, None, None
        if device.type != "cuda":
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(warmup):
                step()
        torch.cuda.current_stream().wait_stream(side)
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.results = step()
            self.graph = graph
        except RuntimeError as error:  # slower, but it trains
            print(f"not captured: {error}", flush=True)

    def __call__(self) -> object:
        if self.graph is None:
            return self.step()
        self.graph.replay()
        return self.results


class Average:
    """An exponential mean of a module's parameters, which is what gets exported. Early on it is the plain mean."""

    def __init__(self, module: nn.Module, decay: float = 0.999):
        self.parameters = list(module.parameters())
        self.means = [parameter.detach().clone() for parameter in self.parameters]
        self.decay = decay
        self.count = torch.ones((), device=self.means[0].device)

    @torch.no_grad()
    def update(self) -> None:
        self.count += 1
        weight = (1 / self.count).clamp(min=1 - self.decay)
        steps = torch._foreach_sub([parameter.detach() for parameter in self.parameters], self.means)
        torch._foreach_mul_(steps, weight)
        torch._foreach_add_(self.means, steps)

    @torch.no_grad()
    def apply(self) -> None:
        """Puts the means into the module."""
        for parameter, mean in zip(self.parameters, self.means, strict=True):
            parameter.copy_(mean)

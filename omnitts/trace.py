"""What is kept of a loop while it runs, when somebody wants to look at it later."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Watch:
    """What to keep of a request's loop: of which steps, by their numbers in the schedule, and how many likely tokens.

    Each `every`-th step from the first, or, if `only` is given, those.
    """

    every: int = 1
    only: frozenset[int] | None = None
    top_n: int = 0

    def wants(self, step: int) -> bool:
        return step % self.every == 0 if self.only is None else step in self.only


@dataclass(frozen=True)
class Seen:
    """One step of one request, all its cells: arrays [T, C], revealed cells too."""

    step: int  # number in the schedule
    tokens: np.ndarray  # int16, the sampler's choice
    logprobs: np.ndarray  # float32, of the token under guidance
    confidence: np.ndarray  # float32
    scores: np.ndarray  # float32, what ranked the cells; -inf for those already revealed
    cond_logprobs: np.ndarray  # float32, of the token without guidance
    uncond_logprobs: np.ndarray  # float32, of the token without the prompt; cond_logprobs where guidance is 0
    top_tokens: np.ndarray | None = None  # int16 [T, C, N]; -1 where there are fewer
    top_logprobs: np.ndarray | None = None  # float32 [T, C, N]


@dataclass
class Trace:
    """What was seen of a request's loop."""

    revealed: np.ndarray  # int16 [T, C], the step that revealed each cell, -1 while there was none
    seen: list[Seen] = field(default_factory=list)

    @staticmethod
    def of(watch: Watch | None, frames: int, codebooks: int) -> "Trace | None":
        return None if watch is None else Trace(np.full((frames, codebooks), -1, np.int16))


COLUMNS = ("logprobs", "confidence", "scores", "cond_logprobs", "uncond_logprobs")


@dataclass(frozen=True)
class Sight:
    """A step's outputs of all rows, in two tensors, so that two copies bring them to the host."""

    tokens: Tensor  # int16 [N, C, 1 + n]: the choice, and the likeliest
    numbers: Tensor  # float32 [N, C, 5 + n]: COLUMNS, and the logprobs of the likeliest

    @staticmethod
    def of(tokens: Tensor, columns: Sequence[Tensor], top: tuple[Tensor, Tensor] | None = None) -> "Sight":
        """tokens: int64 [N, C]; columns: float32 [N, C] each, as in COLUMNS; top: tokens and logprobs [N, C, n]."""
        tokens, numbers = tokens[..., None], torch.stack(list(columns), -1)
        if top is not None:
            tokens, numbers = torch.cat([tokens, top[0]], -1), torch.cat([numbers, top[1]], -1)
        return Sight(tokens.to(torch.int16), numbers)

    def to_host(self) -> "Sight":
        """In memory that the device writes into meanwhile: to be read after the next wait for it."""
        if not self.tokens.is_cuda:
            return self
        tensors = (self.tokens, self.numbers)
        return Sight(*(torch.empty_like(t, device="cpu", pin_memory=True).copy_(t, non_blocking=True) for t in tensors))

    def seen(self, step: int, rows: slice, top_n: int) -> Seen:
        """A request's rows, copied; its `top_n` may be less than what is there."""
        tokens, numbers = self.tokens[rows].numpy(), self.numbers[rows].numpy()
        columns = {name: numbers[..., i].copy() for i, name in enumerate(COLUMNS)}
        top: dict[str, np.ndarray] = {}
        if top_n:
            top = {"top_tokens": tokens[..., 1 : 1 + top_n].copy()}
            top["top_logprobs"] = numbers[..., len(COLUMNS) :][..., :top_n].copy()
        return Seen(step, tokens[..., 0].copy(), **columns, **top)

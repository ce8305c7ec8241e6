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


COLUMNS = ("tokens", "logprobs", "confidence", "scores", "cond_logprobs", "uncond_logprobs")


@dataclass(frozen=True)
class Sight:
    """A step's outputs of all rows in one tensor, so that one copy brings them to the host.

    numbers: float32 [N, C, 6 + 2 * n]: COLUMNS, then the n likeliest tokens and their logprobs. As float32 a token is
    exact, up to 16,777,216.
    """

    numbers: Tensor

    @staticmethod
    def of(columns: Sequence[Tensor], top: tuple[Tensor, Tensor] | None = None) -> "Sight":
        """columns: [N, C] each, as in COLUMNS; top: tokens and logprobs [N, C, n]."""
        numbers = torch.stack([column.float() for column in columns], -1)
        return Sight(numbers if top is None else torch.cat([numbers, top[0].float(), top[1]], -1))

    def to_host(self) -> "Sight":
        """In memory that the device writes into meanwhile: to be read after the next wait for it."""
        if not self.numbers.is_cuda:
            return self
        host = torch.empty(self.numbers.shape, dtype=torch.float32, pin_memory=True)
        return Sight(host.copy_(self.numbers, non_blocking=True))

    def seen(self, step: int, rows: slice, top_n: int) -> Seen:
        """A request's rows, copied; its `top_n` may be less than what is there."""
        numbers = self.numbers[rows].numpy()
        tokens, *columns = (numbers[..., i].copy() for i in range(len(COLUMNS)))
        first, there = len(COLUMNS), (numbers.shape[-1] - len(COLUMNS)) // 2
        top: dict[str, np.ndarray] = {}
        if top_n:
            top["top_tokens"] = numbers[..., first : first + top_n].astype(np.int16)
            top["top_logprobs"] = numbers[..., first + there : first + there + top_n].copy()
        return Seen(step, tokens.astype(np.int16), *columns, **top)

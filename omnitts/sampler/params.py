"""What a request asks of the sampler, in device tensors that change in place, and what the sampler answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

CONFIDENCES = ("max", "logprob", "margin", "neg_entropy")
STATUS_NOT_FINITE = 1  # a row of the request held NaN, or an infinity that leaves no distribution
STATUS_NOTHING_LEFT = 2  # every token of a row was forbidden or impossible

# name -> (dtype, default, lowest, highest, what is wanted); a default of None must be given
_RANGES: dict[str, tuple[torch.dtype, float | None, float, float, str]] = {
    "guidance_scale": (torch.float32, 0.0, 0.0, 1e4, "a number from 0 to 1e4"),
    "temperature": (torch.float32, 0.0, 0.0, 1e4, "a number from 0 to 1e4"),
    "top_ratio": (torch.float64, 1.0, 0.0, 1.0, "a number above 0 and at most 1"),
    "top_k": (torch.int32, 0, 0, 2**31 - 1, "a whole number, 0 for no limit"),
    "top_p": (torch.float32, 1.0, 0.0, 1.0, "a number above 0 and at most 1"),
    "min_p": (torch.float32, 0.0, 0.0, 1.0, "a number from 0 to 1"),
    "seed": (torch.int64, None, 0, 2**63 - 1, "a whole number from 0 to 2**63 - 1"),
}
_ABOVE_ZERO = ("top_ratio", "top_p")


@dataclass(frozen=True)
class SamplingParams:
    """One entry a request: tensors [R] on the logits' device, and forbidden ids [R, F].

    The sampler reads them on the device at each call, so writing into them (`set`) needs no recompilation and no
    new CUDA graph. A token may be drawn if it passes every filter; all filters look at the distribution after
    guidance and temperature, forbidden ids left out, and keep the likeliest tokens, ties by the lowest id:
    """

    guidance_scale: Tensor  # float32; logprobs are log_softmax(lc + g * (lc - lu)); 0 reads no unconditional logits
    temperature: Tensor  # float32; 0 takes the likeliest token and draws nothing
    top_ratio: Tensor  # float64; keep ceil(top_ratio * V) tokens
    top_k: Tensor  # int32; keep top_k tokens; 0: all
    top_p: Tensor  # float32; keep the fewest tokens whose probabilities sum to at least top_p
    min_p: Tensor  # float32; keep tokens at least min_p times as likely as the likeliest
    seed: Tensor  # int64; keys the request's noise
    forbidden: Tensor  # int32 [R, F]; ids never chosen, -1 for none; they take part in the normalisation

    @staticmethod
    def of(requests: Sequence[Mapping[str, Any]], *, device: torch.device | str = "cpu") -> "SamplingParams":
        """Builds the tensors from one mapping a request, with the names above; only `seed` must be given.

        Raises ValueError naming the request, the argument, its value and what is wanted.
        """
        if not isinstance(requests, Sequence) or isinstance(requests, str):
            raise ValueError(f"requests: wanted a list of mappings, one a request, got {type(requests).__name__}")
        rows = [_checked(f"request {i}", request) for i, request in enumerate(requests)]
        width = max([len(row["forbidden"]) for row in rows], default=0) or 1
        columns: dict[str, Tensor] = {
            name: torch.tensor([row[name] for row in rows], dtype=dtype) for name, (dtype, *_) in _RANGES.items()
        }
        forbidden = [row["forbidden"] + [-1] * (width - len(row["forbidden"])) for row in rows]
        columns["forbidden"] = torch.tensor(forbidden, dtype=torch.int32).view(len(rows), width)
        return SamplingParams(**{name: column.to(device) for name, column in columns.items()})

    def set(self, request: int, **values: Any) -> None:
        """Writes one request's entry in place; names that are not given take their defaults.

        Raises ValueError as `of` does, also when there are more forbidden ids than the tensor has room for.
        """
        count = len(self.seed)
        if isinstance(request, bool) or not isinstance(request, int) or not 0 <= request < count:
            raise ValueError(f"request: wanted a whole number from 0 to {count - 1}, got {request!r}")
        row = _checked(f"request {request}", values)
        room = self.forbidden.shape[1]
        if len(row["forbidden"]) > room:
            raise ValueError(f"forbidden of request {request}: {len(row['forbidden'])} ids, there is room for {room}")
        for name in _RANGES:
            getattr(self, name)[request] = row[name]
        padded = row["forbidden"] + [-1] * (room - len(row["forbidden"]))
        self.forbidden[request] = torch.tensor(padded, dtype=torch.int32)

    def check(self, device: torch.device) -> None:
        """Raises ValueError for tensors of a wrong shape, dtype or device; reads no values, so it does not sync."""
        requests = len(self.seed)
        for field in fields(self):
            tensor = getattr(self, field.name)
            dtype = torch.int32 if field.name == "forbidden" else _RANGES[field.name][0]
            shape = (requests, self.forbidden.shape[-1]) if field.name == "forbidden" else (requests,)
            check_tensor(field.name, tensor, shape, (dtype,), device)


@dataclass(frozen=True)
class Samples:
    """What the sampler says of every position handed in, [N, C], or [K] where cells were picked.

    `logprobs` are those of the chosen token under the guided, unfiltered, untempered distribution over all ids,
    forbidden ones included. A position whose row is flagged in `status` has token 0 and a logprob of -inf.
    """

    tokens: Tensor  # int64
    logprobs: Tensor  # float32
    confidence: Tensor  # float32, by the rule that was asked for
    status: Tensor  # int32 [R]: 0, or STATUS_NOT_FINITE | STATUS_NOTHING_LEFT; reading it is the caller's sync
    top_tokens: Tensor | None = None  # int64 [..., n], the likeliest tokens that are not forbidden
    top_logprobs: Tensor | None = None  # float32 [..., n]


def check_tensor(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...], device: torch.device
) -> None:
    """Raises ValueError that names the argument, what it is and what is wanted."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: wanted a tensor, got {type(tensor).__name__}")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: wanted shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.dtype not in dtypes:
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{name}: wanted {wanted}, got {str(tensor.dtype).removeprefix('torch.')}")
    if tensor.device != device:
        raise ValueError(f"{name}: is on {tensor.device}, the logits are on {device}")


def _checked(place: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """A full row of values in their ranges, or ValueError."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{place}: wanted a mapping of parameters, got {type(values).__name__}")
    unknown = set(values) - set(_RANGES) - {"forbidden"}
    if unknown:
        known = ", ".join([*_RANGES, "forbidden"])
        raise ValueError(f"{place}: no parameter is called {min(unknown, key=str)!r}, they are {known}")
    row: dict[str, Any] = {}
    for name, (dtype, default, lowest, highest, wanted) in _RANGES.items():
        value = values.get(name, default)
        number = isinstance(value, int) or (dtype.is_floating_point and isinstance(value, float))
        in_range = number and not isinstance(value, bool) and lowest <= value <= highest
        if not in_range or (name in _ABOVE_ZERO and value == 0):
            raise ValueError(f"{name} of {place}: wanted {wanted}, got {value!r}")
        row[name] = value
    forbidden = values.get("forbidden", ())
    if not isinstance(forbidden, list | tuple | set | frozenset | range):
        raise ValueError(f"forbidden of {place}: wanted token ids, got {forbidden!r}")
    forbidden = list(forbidden)
    for token in forbidden:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise ValueError(f"forbidden of {place}: wanted token ids, got {token!r}")
    return row | {"forbidden": forbidden}

"""The sampler's front: checks the arguments on the host, without a sync, and calls a backend."""

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from omnitts.sampler.params import (
    CONFIDENCES,
    STATUS_NOT_FINITE,
    STATUS_NOTHING_LEFT,
    Samples,
    SamplingParams,
    check_tensor,
)
from omnitts.sampler.reference import sample_cells

_LOGITS = (torch.float32, torch.bfloat16, torch.float16)
_WHOLE = (torch.int32, torch.int64)
MAX_VOCABULARY = 262_144
_CPU_LOGITS = 1 << 18


def sample(
    cond: Tensor,
    uncond: Tensor | None,
    params: SamplingParams,
    *,
    offsets: Tensor | Sequence[int],
    step: Tensor,
    cells: Tensor | None = None,
    confidence: str = "max",
    top_n: int = 0,
    backend: str | None = None,
) -> Samples:
    """Samples every position of a ragged batch: tokens and logprobs out, the caller picks which to use.

    cond: logits [N, C, V], the rows (frames) of all requests end to end; float32, bfloat16 or float16. Strided
        views are read as they are.
    uncond: logits [M, C, V] of the first M rows, or None. Rows beyond them are unguided, whatever their scale.
    params: one entry a request; read on the device at each call.
    offsets: where each request's rows begin and, last, end: R + 1 whole numbers from 0 to N. A sequence or a CPU
        tensor is checked; of a tensor on the GPU only shape and dtype are, since reading it would be a sync. So it
        is with step and cells.
    step: int64 [R], the diffusion step of each request, from 0 to 2**32 - 1; it counts the noise.
    cells: int64 [K], the positions wanted as row * C + codebook, or None for all. What is left out costs nothing.
    confidence: "max" (the largest logprob), "logprob" (the chosen token's), "margin" (the largest less the
        second), "neg_entropy" (sum of p * log p).
    top_n: also return the likeliest tokens that are not forbidden, with their logprobs.
    backend: "torch" (the definition), "triton", or None: Triton for tensors on a GPU where it is installed.

    Raises ValueError naming the argument, its value and what is wanted.
    """
    _check_logits(cond, uncond)
    rows, codebooks, vocabulary = cond.shape
    if not isinstance(params, SamplingParams):
        raise ValueError(f"params: wanted SamplingParams, got {type(params).__name__}")
    params.check(cond.device)
    offsets = _checked_offsets(offsets, len(params.seed), rows, cond.device)
    check_tensor("step", step, (len(params.seed),), (torch.int64,), cond.device)
    _check_values("step", step, 2**32)
    if cells is not None:
        if not isinstance(cells, Tensor) or cells.ndim != 1:
            raise ValueError(f"cells: wanted shape [K], got {_shape(cells)}")
        check_tensor("cells", cells, tuple(cells.shape), (torch.int64,), cond.device)
        _check_values("cells", cells, rows * codebooks)
    if confidence not in CONFIDENCES:
        raise ValueError(f"confidence: wanted one of {', '.join(CONFIDENCES)}, got {confidence!r}")
    if isinstance(top_n, bool) or not isinstance(top_n, int) or not 0 <= top_n <= vocabulary:
        raise ValueError(f"top_n: wanted a whole number from 0 to {vocabulary}, got {top_n!r}")
    if _backend(backend, cond) == "triton":
        from omnitts.sampler.kernels import sample_with_triton

        samples = sample_with_triton(cond, uncond, params, offsets, step, cells, confidence, top_n)
    else:
        samples = _sample_with_torch(cond, uncond, params, offsets, step, cells, confidence, top_n)
    if cells is not None:
        return samples
    shaped = (tensor if tensor is None else tensor.unflatten(0, (rows, codebooks)) for tensor in _fields(samples))
    tokens, logprobs, scores, top_tokens, top_logprobs = shaped
    return Samples(tokens, logprobs, scores, samples.status, top_tokens, top_logprobs)


def sample_ragged(
    cond: Sequence[Tensor], uncond: Sequence[Tensor | None] | None, params: SamplingParams, **options: object
) -> list[Samples]:
    """`sample` for a list of ragged logits [C, T, V], one a request, copied into one packed tensor.

    uncond may be None, or hold None for requests of guidance_scale 0; these must come after all others. Returns
    Samples of [C, T] fields, one a request; `status` is that request's [1].
    """
    _check_ragged(cond, uncond)
    lengths = [logits.shape[1] for logits in cond]
    offsets = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    packed = torch.cat([logits.transpose(0, 1) for logits in cond])
    given = [logits.transpose(0, 1) for logits in uncond or () if logits is not None]
    if uncond is not None and any(logits is None for logits in uncond[: len(given)]):
        raise ValueError("uncond: requests without unconditional logits must come after all others")
    samples = sample(packed, torch.cat(given) if given else None, params, offsets=offsets, **options)
    parts = (
        [None] * len(lengths) if tensor is None else [part.transpose(0, 1) for part in tensor.split(lengths)]
        for tensor in _fields(samples)
    )
    return [
        Samples(tokens, logprobs, scores, status, top_tokens, top_logprobs)
        for tokens, logprobs, scores, top_tokens, top_logprobs, status in zip(
            *parts, samples.status.split(1), strict=True
        )
    ]


def rows_to_requests(offsets: Tensor, rows: int) -> Tensor:
    """The request of each row, int64 [N], on the device. Rows past the last offset count as the last request's."""
    row = torch.arange(rows, device=offsets.device)
    return torch.searchsorted(offsets[1:-1].contiguous(), row, right=True)


def _fields(samples: Samples) -> tuple[Tensor | None, ...]:
    return samples.tokens, samples.logprobs, samples.confidence, samples.top_tokens, samples.top_logprobs


def _sample_with_torch(
    cond: Tensor,
    uncond: Tensor | None,
    params: SamplingParams,
    offsets: Tensor,
    step: Tensor,
    cells: Tensor | None,
    confidence: str,
    top_n: int,
) -> Samples:
    """The definition, cell by cell: picks each cell's logits and counters. Fields are [K], or [N * C]."""
    rows, codebooks, vocabulary = cond.shape
    position = torch.arange(rows * codebooks, device=cond.device) if cells is None else cells
    request_of_row = rows_to_requests(offsets, rows)
    if uncond is not None and not len(uncond):
        uncond = None

    def sample_some(position: Tensor) -> Samples:
        row, codebook = position // codebooks, position % codebooks
        request = request_of_row[row]
        cell = (row - offsets[request]) * codebooks + codebook
        c, u = cond[row, codebook], None
        if uncond is not None:
            u = uncond[row.clamp(max=len(uncond) - 1), codebook]
            if len(uncond) < rows:
                u = torch.where((row >= len(uncond))[:, None], c, u)  # guidance then changes nothing
        return sample_cells(c, u, params, request, cell, step[request], confidence, top_n)

    # On a CPU, what is worked on at once should stay in its cache.
    size = max(1, _CPU_LOGITS // vocabulary) if cond.device.type == "cpu" else max(1, len(position))
    parts = [sample_some(part) for part in position.split(size)]
    if len(parts) == 1:
        return parts[0]
    status = torch.stack([part.status for part in parts])
    fields = (None if tensors[0] is None else torch.cat(tensors) for tensors in zip(*map(_fields, parts), strict=True))
    tokens, logprobs, scores, top_tokens, top_logprobs = fields
    flags = (status & STATUS_NOT_FINITE).amax(0) | (status & STATUS_NOTHING_LEFT).amax(0)
    return Samples(tokens, logprobs, scores, flags, top_tokens, top_logprobs)


def _check_logits(cond: Tensor, uncond: Tensor | None) -> None:
    if not isinstance(cond, Tensor) or cond.ndim != 3:
        raise ValueError(f"cond: wanted logits [N, C, V], got {_shape(cond)}")
    rows, codebooks, vocabulary = cond.shape
    if not 2 <= vocabulary <= MAX_VOCABULARY:
        raise ValueError(f"cond: wanted a vocabulary of 2 to {MAX_VOCABULARY}, got {vocabulary}")
    if codebooks < 1:
        raise ValueError(f"cond: wanted at least one codebook, got {codebooks}")
    check_tensor("cond", cond, tuple(cond.shape), _LOGITS, cond.device)
    if uncond is not None:
        if not isinstance(uncond, Tensor) or uncond.ndim != 3 or len(uncond) > rows:
            raise ValueError(f"uncond: wanted logits [M, C, V] with M at most {rows}, got {_shape(uncond)}")
        check_tensor("uncond", uncond, (len(uncond), codebooks, vocabulary), (cond.dtype,), cond.device)


def _checked_offsets(offsets: Tensor | Sequence[int], requests: int, rows: int, device: torch.device) -> Tensor:
    if not isinstance(offsets, Tensor):
        if not isinstance(offsets, Sequence) or any(isinstance(n, bool) or not isinstance(n, int) for n in offsets):
            raise ValueError(f"offsets: wanted {requests + 1} whole numbers, got {offsets!r}")
        offsets = torch.tensor(list(offsets), dtype=torch.int64)
    if offsets.device.type not in ("cpu", device.type):
        raise ValueError(f"offsets: is on {offsets.device}, the logits are on {device}")
    check_tensor("offsets", offsets, (requests + 1,), _WHOLE, offsets.device)
    if offsets.device.type == "cpu":
        values = offsets.tolist()
        if values[0] != 0 or values[-1] != rows or values != sorted(values):
            raise ValueError(f"offsets: wanted ascending numbers from 0 to {rows}, got {values}")
    return offsets.to(device, torch.int64)


def _backend(wanted: str | None, cond: Tensor) -> str:
    if wanted not in (None, "torch", "triton"):
        raise ValueError(f"backend: wanted torch or triton, got {wanted!r}")
    if wanted == "triton" and not cond.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        raise ValueError(f"backend: triton needs a GPU, and the logits are on {cond.device}")
    if wanted is not None:
        return wanted
    return "triton" if cond.is_cuda and _has_triton() else "torch"


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def _check_values(name: str, numbers: Tensor, end: int) -> None:
    """ValueError unless all are from 0 up to `end`, which is left out; on a GPU they are taken as they are."""
    if numbers.device.type == "cpu" and len(numbers):
        least, most = int(numbers.min()), int(numbers.max())
        if least < 0 or most >= end:
            raise ValueError(f"{name}: wanted numbers from 0 to {end - 1}, got {least if least < 0 else most}")


def _check_ragged(cond: Sequence[Tensor], uncond: Sequence[Tensor | None] | None) -> None:
    for name, given in (("cond", cond), ("uncond", [] if uncond is None else uncond)):
        if not isinstance(given, list | tuple) or (name == "cond" and not given):
            raise ValueError(f"{name}: wanted a list of logits [C, T, V], got {_shape(given)}")
        if name == "uncond" and len(given) > len(cond):
            raise ValueError(f"uncond: wanted at most {len(cond)} tensors, one a request, got {len(given)}")
        for i, logits in enumerate(given):
            if name == "uncond" and logits is None:
                continue
            if not isinstance(logits, Tensor) or logits.ndim != 3:
                raise ValueError(f"{name}[{i}]: wanted logits [C, T, V], got {_shape(logits)}")
            like = cond[i] if name == "uncond" else cond[0]
            shape = tuple(like.shape) if name == "uncond" else (like.shape[0], logits.shape[1], like.shape[2])
            check_tensor(f"{name}[{i}]", logits, shape, (like.dtype,), like.device)


def _shape(value: object) -> str:
    return f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__

"""Attention within each document of a packed row: FlashInfer's kernels, torch's, or plain ones for any device.

A plan belongs to one layout of documents and serves all layers and steps. It can be made anew for another layout in
the same buffers, which a captured CUDA graph then reads.
"""

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from omnitts.model.backbone import attend

_FLASHINFER_HEADS = (64, 128, 256)
_WORKSPACE = 128 << 20  # bytes, as FlashInfer advises; it holds partial results of long documents


class Attention(Protocol):
    """Attention over a row of fixed length, cut into at most a fixed number of documents."""

    def plan(self, bounds: Sequence[int]) -> None:
        """bounds: where documents begin and end, from 0 to P; empty documents may fill it up."""
        ...

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [P, heads, D]; k, v: [P, kv heads, D]; strided views are read as they are -> [P, heads, D]."""
        ...


def attention_backend(device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """The fastest that is there: "flashinfer", "torch" (half precision on a GPU), or "plain"."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return "plain"
    return "flashinfer" if head_dim in _FLASHINFER_HEADS and has_flashinfer() else "torch"


@cache
def has_flashinfer() -> bool:
    try:
        import flashinfer  # noqa: F401
    except Exception:  # a library that fails to load for whatever reason is as good as none
        return False
    return True


def make_attention(
    backend: str, documents: int, q_heads: int, k_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> Attention:
    """documents: how many bounds, less one, each plan will have."""
    if backend == "flashinfer":
        return FlashInferAttention(documents, q_heads, k_heads, head_dim, dtype, device)
    if backend == "torch":
        return TorchAttention(documents, device)
    return PlainAttention()


class FlashInferAttention:
    """FlashInfer's ragged prefill, in its CUDA graph mode."""

    def __init__(
        self, documents: int, q_heads: int, k_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ):
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        self.bounds = torch.zeros(2, documents + 1, dtype=torch.int32, device=device)
        self.sizes = q_heads, k_heads, head_dim
        self.dtype = dtype
        self.wrapper = BatchPrefillWithRaggedKVCacheWrapper(
            _workspace(device), "NHD", use_cuda_graph=True, qo_indptr_buf=self.bounds[0], kv_indptr_buf=self.bounds[1]
        )

    def plan(self, bounds: Sequence[int]) -> None:
        indptr = torch.tensor(bounds, dtype=torch.int32)
        self.wrapper.plan(indptr, indptr, *self.sizes, causal=False, q_data_type=self.dtype)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.wrapper.run(q, k, v)


@cache
def _workspace(device: torch.device) -> Tensor:
    return torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)


class TorchAttention:
    """Torch's own varlen flash attention. Its grid is as long as the longest document that was ever planned."""

    def __init__(self, documents: int, device: torch.device):
        self.bounds = torch.zeros(documents + 1, dtype=torch.int32, device=device)
        self.longest = 0

    def plan(self, bounds: Sequence[int]) -> None:
        self.bounds.copy_(torch.tensor(bounds, dtype=torch.int32))
        if not self.longest:
            self.longest = bounds[-1]  # no document is longer than the row

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.ops.aten._flash_attention_forward(
            q, k, v, self.bounds, self.bounds, self.longest, self.longest, 0.0, False, False
        )[0]


class PlainAttention:
    """One document after the other; not for CUDA graphs."""

    def plan(self, bounds: Sequence[int]) -> None:
        self.bounds = list(bounds)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = q.shape[1] // k.shape[1]
        return torch.cat([attend(q[a:b], k[a:b], v[a:b], groups) for a, b in pairwise(self.bounds)])

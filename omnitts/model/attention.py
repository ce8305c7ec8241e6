"""Attention within each document of a packed row: kernels of our own, FlashInfer's, or plain ones for any device.

A plan belongs to one layout of documents and serves all layers and steps. It can be made anew for another layout in
the same buffers, which a captured CUDA graph then reads.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from omnitts.model.backbone import attend
from omnitts.model.checkpoint import ModelConfig

_FLASHINFER_HEADS = (64, 128, 256)
_WORKSPACE = 128 << 20  # bytes, as FlashInfer advises; it holds partial results of long documents
_FEW_POSITIONS = 512  # below, the portable kernel's smaller tiles serve a Hopper GPU better


class Attention(Protocol):
    """Attention over a row of fixed length, cut into at most a fixed number of documents."""

    def plan(self, bounds: Sequence[int], queries: Sequence[tuple[int, int]] | None = None) -> None:
        """bounds: where documents begin and end, from 0 to M; empty documents may fill it up.

        queries: of each document, the span of rows that ask; by default all of its own. FlashInfer knows no others.
        """
        ...

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q: [P, heads, D]; k, v: [M, kv heads, D]; strided views are read as they are -> [P, heads, D]."""
        ...


def attention_backend(device: torch.device, dtype: torch.dtype, config: ModelConfig) -> str:
    """The fastest that is there: "hopper", "flashinfer", "tiled" (half precision on a GPU), or "plain"."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return "plain"
    if is_hopper(device, dtype) and config.head_dim == 128 and _pairs_of_heads(config):
        from omnitts.model.hopper_attention import attention_works

        if attention_works(device):
            return "hopper"
    return "flashinfer" if config.head_dim in _FLASHINFER_HEADS and has_flashinfer() else "tiled"


def _pairs_of_heads(config: ModelConfig) -> bool:
    return config.num_attention_heads == 2 * config.num_key_value_heads


@cache
def is_hopper(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels for Hopper GPUs are worth a trial: bfloat16 on such a GPU, and a Triton with Gluon."""
    if device.type != "cuda" or dtype != torch.bfloat16 or torch.cuda.get_device_capability(device)[0] != 9:
        return False
    try:
        from omnitts.model import hopper, hopper_attention  # noqa: F401
    except Exception:  # Gluon is young: names in it move from version to version
        return False
    return True


@cache
def has_flashinfer() -> bool:
    try:
        import flashinfer  # noqa: F401
    except Exception:  # a library that fails to load for whatever reason is as good as none
        return False
    return True


def make_attention(
    backend: str, positions: int, documents: int, config: ModelConfig, dtype: torch.dtype, device: torch.device
) -> Attention:
    """positions: how many queries there are; documents: how many bounds, less one, each plan will have."""
    heads = config.num_attention_heads, config.num_key_value_heads
    if backend == "flashinfer":
        return FlashInferAttention(documents, *heads, config.head_dim, dtype, device)
    if backend == "hopper" and positions >= _FEW_POSITIONS:
        from omnitts.model.hopper_attention import ROWS, hopper_attention

        return TiledAttention(hopper_attention, ROWS, positions, documents, device)
    if backend in ("hopper", "tiled"):
        from omnitts.model.tiled_attention import rows_of_a_tile, tiled_attention

        return TiledAttention(tiled_attention, rows_of_a_tile(*heads), positions, documents, device)
    return PlainAttention()


class TiledAttention:
    """One of our kernels, with the table of tiles that it reads."""

    def __init__(self, kernel: Callable[..., Tensor], rows: int, positions: int, documents: int, device: torch.device):
        from omnitts.model.tiled_attention import tile_capacity

        self.kernel, self.rows = kernel, rows
        self.capacity = tile_capacity(positions, documents, rows)
        self.tiles = torch.zeros(1 + 4 * self.capacity, dtype=torch.int32, device=device)

    def plan(self, bounds: Sequence[int], queries: Sequence[tuple[int, int]] | None = None) -> None:
        from omnitts.model.tiled_attention import tile_table

        keys = list(pairwise(bounds))
        self.tiles.copy_(torch.from_numpy(tile_table(queries or keys, keys, self.rows, self.capacity)))

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.kernel(q, k, v, self.tiles)


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

    def plan(self, bounds: Sequence[int], queries: None = None) -> None:
        indptr = torch.tensor(bounds, dtype=torch.int32)
        self.wrapper.plan(indptr, indptr, *self.sizes, causal=False, q_data_type=self.dtype)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.wrapper.run(q, k, v)


@cache
def _workspace(device: torch.device) -> Tensor:
    return torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)


class PlainAttention:
    """One document after the other; not for CUDA graphs."""

    def plan(self, bounds: Sequence[int], queries: Sequence[tuple[int, int]] | None = None) -> None:
        self.keys = list(pairwise(bounds))
        self.queries = queries or self.keys

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups, out = q.shape[1] // k.shape[1], torch.zeros_like(q)
        for (first, last), (start, end) in zip(self.queries, self.keys, strict=True):
            if first < last:
                out[first:last] = attend(q[first:last], k[start:end], v[start:end], groups)
        return out

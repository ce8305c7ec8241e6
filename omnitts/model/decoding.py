"""Decoding of many clips at once, for either codec: groups of similar length, padded so that no clip hears it."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from omnitts.audio import FRAME_SAMPLES
from omnitts.packing import similar

if TYPE_CHECKING:
    from omnitts.model.codec import Codec
    from omnitts.model.frame_codec import FrameCodec

GROUP_FRAMES = 2048  # most in a group with its padding, 82 s of audio: it bounds memory, and is work enough for a GPU

_settings = RLock()  # torch's switches are the process's, and threads may decode and encode at the same time


@contextmanager
def repeatable(device: torch.device) -> Iterator[None]:
    """One thread on the CPU, no TF32 on a GPU; one caller at a time.

    Convolutions that are split over threads round differently: with one, the number of cores changes no sample. The
    codec is a small part of the work, and short clips decode faster so. TF32 rounds so coarsely that a reference's
    codes differ from the CPU's.
    """
    with _settings:
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if device.type == "cpu" else threads)
        try:
            with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
                yield
        finally:
            torch.set_num_threads(threads)


def decode_dtype(device: torch.device) -> torch.dtype:
    """What batches are decoded in: float32 on the CPU, bfloat16 on a GPU."""
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module itself, when its weights are of this dtype, or else a copy whose weights are."""
    if all(weight.dtype == dtype for weight in module.parameters()):
        return module
    return copy.deepcopy(module).to(dtype)


def decode_groups(lengths: Sequence[int], device: torch.device) -> list[list[int]]:
    """Which of the clips, of so many frames each, are decoded together; on the CPU every one is alone."""
    if device.type == "cpu":
        return [[i] for i in range(len(lengths))]
    return similar(lengths, GROUP_FRAMES)


def decode_batch(codec: "Codec | FrameCodec", codes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """See the codecs' methods of this name."""
    if codec.device.type == "cpu":
        return [codec.decode(clip) for clip in codes]
    return decode_in_groups(codec, codes)


def decode_in_groups(codec: "Codec | FrameCodec", codes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Codes, integers [8, T_i] -> waveforms, float32 [T_i * 960], in the order given."""
    waves: dict[int, np.ndarray] = {}
    for group in similar([clip.shape[-1] for clip in codes], GROUP_FRAMES):
        waves.update(zip(group, decode_group(codec, [codes[i] for i in group]), strict=True))
    return [waves[i] for i in range(len(codes))]


@torch.inference_mode()
def decode_group(codec: "Codec | FrameCodec", codes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Codes, integers [8, T_i] -> waveforms, float32 [T_i * 960]: all in one call of the decoder."""
    lengths = [clip.shape[-1] for clip in codes]
    padded = np.zeros((len(codes), codes[0].shape[0], max(lengths)), np.int64)
    for row, clip in zip(padded, codes, strict=True):
        row[:, : clip.shape[-1]] = clip
    with repeatable(codec.device):
        waves = codec.decode_padded(torch.from_numpy(padded).to(codec.device), lengths)
    rows = waves.cpu().numpy()
    return [row[: length * FRAME_SAMPLES] for row, length in zip(rows, lengths, strict=True)]


class Ends:
    """Where the clips of a padded batch end, at any number of steps a frame."""

    def __init__(self, lengths: Sequence[int], device: torch.device):
        self.longest, self.shortest = max(lengths), min(lengths)
        self.lengths = torch.tensor(lengths, device=device)
        self._masks: dict[int, Tensor] = {}

    def silence(self, x: Tensor, dim: int) -> None:
        """Zero, in place, what lies beyond each clip's end: x has the clips at 0, and their time at `dim`, 1 or 2.

        A convolution then finds after a clip what it finds where a clip ends that is decoded alone: zeros. Only the
        stretch beyond the shortest clip is touched.
        """
        if self.shortest == self.longest:
            return
        rate = x.shape[dim] // self.longest
        mask = self._mask(rate, x.device)
        tail = x.narrow(dim, self.shortest * rate, mask.shape[1])
        tail.masked_fill_(mask[:, :, None] if dim == 1 else mask[:, None], 0)

    def _mask(self, rate: int, device: torch.device) -> Tensor:
        """True beyond the ends: bool [clips, steps from the end of the shortest to that of the longest]."""
        if rate not in self._masks:
            steps = torch.arange(self.shortest * rate, self.longest * rate, device=device)
            self._masks[rate] = steps >= rate * self.lengths[:, None]
        return self._masks[rate]


@contextmanager
def silent_beyond(module: nn.Module, ends: Ends) -> Iterator[None]:
    """Each convolution of the module, [B, C, T] to [B, C', T'], gives zeros beyond the clips' ends meanwhile."""

    def silence(_module: nn.Module, _inputs: tuple, output: Tensor) -> None:
        ends.silence(output, 2)

    kinds = (nn.Conv1d, nn.ConvTranspose1d)
    hooks = [part.register_forward_hook(silence) for part in module.modules() if isinstance(part, kinds)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()

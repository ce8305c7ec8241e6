"""Decoding of many clips at once, for either codec: end to end in one row, with gaps that keep them apart.

A row has one of a few lengths. Convolution libraries choose and build their kernels anew for each size they meet, which
takes longer than to decode a clip; so they meet few.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, cached_property
from threading import RLock
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from omnitts.audio import FRAME_SAMPLES
from omnitts.packing import pack

if TYPE_CHECKING:
    from omnitts.model.codec import Codec
    from omnitts.model.codec import ResidualQuantizer as CodecQuantizer
    from omnitts.model.frame_codec import FrameCodec
    from omnitts.model.frame_codec import ResidualQuantizer as FrameQuantizer

Result = TypeVar("Result")

# Frames between two clips: more than a convolution of either codec reaches to a side. The widest are DAC's of 7 taps, 9
# samples apart, at 8 samples a frame: 27 samples.
GAP = 4
ROW_FRAMES = 4096  # of a row, unless one clip is longer; 164 s of audio: it bounds memory, and is work enough for a GPU
_UNIT = 512  # frames; rows are as many of these as they need

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


def on_codec_thread(device: torch.device, work: Callable[[], Result]) -> Result:
    """Does it under `repeatable`, on a GPU by one thread that lives as long as the process, and on the caller's stream.

    What cuDNN plans for a size it keeps for the thread that met it, so each further thread would plan anew.
    """

    def run() -> Result:
        with torch.inference_mode(), repeatable(device):
            return work()

    if device.type != "cuda":
        return run()
    stream = torch.cuda.current_stream(device)

    def run_on_stream() -> Result:
        with torch.cuda.stream(stream):
            return run()

    return _codec_thread().submit(run_on_stream).result()


@cache
def _codec_thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="omnitts-codec")


def encode_features(features: Tensor, quantizer: "CodecQuantizer | FrameQuantizer") -> tuple[Tensor, bool]:
    """Features as codes, and whether they were finite; of others the codes mean nothing."""
    codes = quantizer.encode(features)
    return codes, bool(features.isfinite().all())


def decode_dtype(device: torch.device) -> torch.dtype:
    """What rows are decoded in: float32 on the CPU, float16 on a GPU, as fast as bfloat16 and eight times as exact."""
    return torch.float32 if device.type == "cpu" else torch.float16


def in_dtype(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module itself, when its weights are of this dtype, or else a copy whose weights are."""
    if all(weight.dtype == dtype for weight in module.parameters()):
        return module
    return copy.deepcopy(module).to(dtype)


class Row:
    """Clips of so many frames, end to end, with GAP frames between them, and the rest of `frames` behind them."""

    def __init__(self, lengths: Sequence[int], device: torch.device | str = "cpu"):
        self.device = torch.device(device)
        self.spans: list[slice] = []
        end = -GAP
        for length in lengths:
            start = end + GAP
            end = start + length
            self.spans.append(slice(start, end))
        self.frames = -(-end // _UNIT) * _UNIT
        self._beyond: dict[int, Tensor] = {}

    @cached_property
    def sound(self) -> Tensor:
        """Whether a frame is a clip's: bool [frames], on the device."""
        return self._sound().to(self.device)

    def silence(self, x: Tensor, dim: int) -> None:
        """Zero, in place, what is no clip's: time is x's dimension `dim`, at a whole number of steps a frame.

        A convolution then finds around a clip what it finds around one that is decoded alone: zeros.
        """
        x.index_fill_(dim, self._steps(x.shape[dim] // self.frames), 0)

    def _steps(self, rate: int) -> Tensor:
        """The steps that are no clip's, at so many steps a frame."""
        if rate not in self._beyond:
            frames = (~self._sound()).nonzero()[:, 0]
            self._beyond[rate] = (frames[:, None] * rate + torch.arange(rate)).flatten().to(self.device)
        return self._beyond[rate]

    def _sound(self) -> Tensor:
        sound = torch.zeros(self.frames, dtype=torch.bool)
        for span in self.spans:
            sound[span] = True
        return sound


def decode_rows(lengths: Sequence[int], device: torch.device) -> list[list[int]]:
    """Which of the clips, of so many frames each, are decoded together; on the CPU every one is alone."""
    if device.type == "cpu":
        return [[i] for i in range(len(lengths))]
    return pack(lengths, [length + GAP for length in lengths], ROW_FRAMES)


def decode_padding(lengths: Sequence[int], device: torch.device) -> int:
    """Frames that `decode_batch` decodes beside the clips'."""
    if device.type == "cpu":
        return 0
    rows = decode_rows(lengths, device)
    return sum(Row([lengths[i] for i in row]).frames for row in rows) - sum(lengths)


def decode_batch(codec: "Codec | FrameCodec", codes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """See the codecs' methods of this name."""
    if codec.device.type == "cpu":
        return [codec.decode(clip) for clip in codes]
    waves: dict[int, np.ndarray] = {}
    for row in decode_rows([clip.shape[-1] for clip in codes], codec.device):
        waves.update(zip(row, decode_row(codec, [codes[i] for i in row]), strict=True))
    return [waves[i] for i in range(len(codes))]


@torch.inference_mode()
def decode_row(codec: "Codec | FrameCodec", codes: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Codes, integers [8, T_i] -> waveforms, float32 [T_i * 960]: all in one call of the decoder."""
    row = Row([clip.shape[-1] for clip in codes], codec.device)
    joined = np.zeros((1, codes[0].shape[0], row.frames), np.int64)
    for span, clip in zip(row.spans, codes, strict=True):
        joined[0, :, span] = clip
    given = torch.from_numpy(joined)
    wave = on_codec_thread(codec.device, lambda: codec.decode_joined(given.to(codec.device), row))
    samples = wave.cpu().numpy()
    if not np.isfinite(samples).all():  # float16 has no numbers from 65,520 on
        return [codec.decode(clip) for clip in codes]
    return [samples[span.start * FRAME_SAMPLES : span.stop * FRAME_SAMPLES] for span in row.spans]

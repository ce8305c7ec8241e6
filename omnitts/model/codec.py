"""The codec: 8 codebooks of 1024 codes at 25 frames a second <-> a 24 kHz waveform.

It is the HiggsAudioV2 tokenizer: a DAC decoder behind a residual quantizer, and, for encoding, a DAC encoder beside a
HuBERT. Each reference audio is encoded once, and many jobs have none, so the encoder is built at its first use.
"""

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omnitts.audio import FRAME_SAMPLES, SAMPLE_RATE, resample
from omnitts.errors import InputError
from omnitts.model.checkpoint import MOST_LAYERS, Checkpoint, read_json, require, require_numbers
from omnitts.model.decoding import Row, decode_batch, decode_dtype, encode_features, in_dtype, on_codec_thread
from omnitts.model.rounding import round_lengths
from omnitts.model.weights import load_weights

if TYPE_CHECKING:
    from omnitts.model.frame_codec import FrameCodec

MODEL_TYPE = "higgs_audio_v2_tokenizer"

# Which stored tensors belong to which half, and which are left over from training.
DECODER_TENSORS = ("quantizer.*", "fc2.*", "acoustic_decoder.*")
ENCODER_TENSORS = ("fc.*", "acoustic_encoder.*", "encoder_semantic.*", "semantic_model.*")
UNUSED_TENSORS = (
    "fc1.*",
    "decoder_semantic.*",
    "semantic_model.masked_spec_embed",
    *(f"quantizer.quantizers.*.codebook.{name}" for name in ("inited", "cluster_size", "embed_avg")),
)

_SEMANTIC_RATE = 16000  # what HuBERT listens at

# HuBERT's convolutions see 400 samples and move by 320: with 160 more at both ends there are 2 features a frame.
_SEMANTIC_PAD = 160


@dataclass(frozen=True)
class CodecConfig:
    """The sizes of the codec; `acoustic` and `semantic` are the sections of config.json for DAC and HuBERT."""

    file: Path = field(compare=False)  # for messages
    acoustic: dict[str, Any]
    semantic: dict[str, Any]
    num_quantizers: int
    codebook_size: int
    codebook_dim: int
    semantic_stride: int  # HuBERT features a frame
    kernel_size: int
    unit_kernel_size: int
    strides: tuple[int, ...]
    channel_ratios: tuple[float, ...]
    block_dilations: tuple[int, ...]

    @property
    def width(self) -> int:
        """Width of the quantized vectors: acoustic and semantic features side by side."""
        return self.acoustic["hidden_size"] + self.semantic["hidden_size"]


def load_codec(checkpoint: Checkpoint, device: str | torch.device) -> "Codec | FrameCodec":
    """The codec of a checkpoint, in float32, ready to decode; which one, the model_type in its config.json says.

    Both kinds have `decode`, `encode` and `encoder`. Raises InputError when its files do not fit together.
    """
    from omnitts.model import frame_codec  # it builds on this module

    path, files = checkpoint.codec_path / "config.json", checkpoint.codec_weight_files
    model_type = read_json(path).get("model_type")
    if model_type == MODEL_TYPE:
        config = read_codec_config(path)
        kind, ignored = Codec, (*UNUSED_TENSORS, *ENCODER_TENSORS)
    elif model_type == frame_codec.MODEL_TYPE:
        config = frame_codec.read_frame_codec_config(path)
        kind, ignored = frame_codec.FrameCodec, frame_codec.ENCODER_TENSORS
    else:
        known = f"{MODEL_TYPE!r} and {frame_codec.MODEL_TYPE!r}"
        message = f"{reprlib.repr(model_type)} is no codec known here, only {known} are"
        raise InputError(message, file=path, field="model_type")
    model = checkpoint.config
    made, needed = (config.num_quantizers, config.codebook_size), (model.num_audio_codebook, model.audio_vocab_size - 1)
    if made != needed:
        message = "{} codebooks of {} codes, but the model speaks {} of {}: not the codec of this model"
        raise InputError(message.format(*made, *needed), file=path)
    frames = torch.zeros(1, config.num_quantizers, 2, dtype=torch.int64, device="meta")
    codec = build(lambda: kind(config, files), frames, (1, 1, 2 * FRAME_SAMPLES), path)
    load_weights(codec, files, device=device, dtype=torch.float32, ignored=ignored)
    return codec


def read_codec_config(path: Path) -> CodecConfig:
    """Read the codec's config.json; what old files leave out has one published value. Raises InputError."""
    content = read_json(path)
    acoustic = require(content, "acoustic_model_config", dict, path)
    semantic = require(content, "semantic_model_config", dict, path)

    def whole(key: str, default: int) -> int:
        return require(content, key, int, path, default=default)

    in_acoustic, in_semantic = "acoustic_model_config.", "semantic_model_config."
    for key in ("hidden_size", "encoder_hidden_size", "decoder_hidden_size"):
        require(acoustic, key, int, path, in_acoustic)
    require(semantic, "hidden_size", int, path, in_semantic)
    require(semantic, "num_hidden_layers", int, path, in_semantic, default=12, most=MOST_LAYERS)

    codebook_size = whole("codebook_size", 1024)
    kbps = require_numbers(content, "target_bandwidths", float, path)[-1]
    bits_per_frame = 1000 * kbps * FRAME_SAMPLES / SAMPLE_RATE
    return CodecConfig(
        file=path,
        acoustic=acoustic,
        semantic=semantic,
        num_quantizers=int(bits_per_frame // math.log2(max(codebook_size, 2))),
        codebook_size=codebook_size,
        codebook_dim=whole("codebook_dim", 64),
        semantic_stride=_semantic_stride(content, path),
        kernel_size=whole("kernel_size", 3),
        unit_kernel_size=whole("unit_kernel_size", 3),
        strides=require_numbers(content, "strides", int, path, default=(1, 1)),
        channel_ratios=require_numbers(content, "channel_ratios", float, path, default=(1.0, 1.0)),
        block_dilations=require_numbers(content, "block_dilations", int, path, default=(1, 1)),
    )


def _semantic_stride(content: dict[str, Any], path: Path) -> int:
    """HuBERT features a frame. InputError unless both halves make frames of 960 samples at 24 kHz."""
    for key, value in (("sample_rate", SAMPLE_RATE), ("semantic_sample_rate", _SEMANTIC_RATE)):
        if content.get(key, value) != value:
            raise InputError(f"{reprlib.repr(content[key])} is not supported, only {value} is", file=path, field=key)
    acoustic, prefix = content["acoustic_model_config"], "acoustic_model_config."
    for key in ("downsampling_ratios", "upsampling_ratios"):
        if math.prod(require_numbers(acoustic, key, int, path, prefix)) != FRAME_SAMPLES:
            message = f"their product is not {FRAME_SAMPLES}, the samples of a frame"
            raise InputError(message, file=path, field=prefix + key)
    hop = require(content, "downsample_factor", int, path, default=320)
    stride, rest = divmod(FRAME_SAMPLES * _SEMANTIC_RATE // SAMPLE_RATE, hop)
    if rest:
        message = f"{hop} is no whole part of a frame at {_SEMANTIC_RATE} Hz"
        raise InputError(message, file=path, field="downsample_factor")
    return stride


def build(make: Callable[[], nn.Module], example: Tensor, shape: tuple[int, ...], file: Path) -> Any:
    """A half of the codec on the meta device, tried there on two frames, where that computes nothing but shapes.

    What goes wrong is the mistake of the sizes in config.json: InputError.
    """
    try:
        with torch.device("meta"):
            module = make().eval()  # in training, HuBERT leaves out layers at random
        with torch.inference_mode():
            made = tuple(module(example).shape)
    except Exception as error:  # of whatever kind transformers and torch find fit
        raise InputError(f"its sizes do not go together: {shorten(str(error), 200)}", file=file) from None
    if made != shape:
        message = f"its sizes do not go together: two frames come out as {list(made)} instead of {list(shape)}"
        raise InputError(message, file=file)
    return module


class Codec(nn.Module):
    """Codes to waveform and back. Parameter names are the checkpoint's; the encoder's appear at its first use.

    On the CPU the result for one clip is the same, bit for bit, whatever else was coded before it.
    """

    def __init__(self, config: CodecConfig, weight_files: Sequence[Path]):
        super().__init__()
        self.config = config
        self.weight_files = weight_files
        self.quantizer = ResidualQuantizer(config)
        self.fc2 = nn.Linear(config.width, config.acoustic["hidden_size"])
        self.acoustic_decoder = _dac_decoder(config)

    @property
    def device(self) -> torch.device:
        return self.fc2.weight.device

    def forward(self, codes: Tensor) -> Tensor:
        """codes: int64 [B, 8, T] -> waveform, float32 [B, 1, T * 960]."""
        return self.acoustic_decoder(self.fc2(self.quantizer.decode(codes)).transpose(1, 2))

    @torch.inference_mode()
    def decode(self, codes: np.ndarray | Tensor) -> np.ndarray:
        """codes: integers [8, T] -> float32 waveform [T * 960] at 24 kHz, or [B, 8, T] -> [B, T * 960].

        One clip a call gives the same bits in any company; in a batch a clip's last bits may come out otherwise.
        """
        codes = torch.as_tensor(codes).to(self.device, torch.int64)
        batch = codes.reshape(-1, *codes.shape[-2:])
        wave = on_codec_thread(self.device, lambda: self(batch))
        return wave.reshape(*codes.shape[:-2], -1).cpu().numpy()

    def decode_batch(self, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Decodes clips of any lengths: int16 [8, T_i] each -> float32 waveforms [T_i * 960], in the order given.

        On the CPU each is what `decode` gives, to the bit. On a GPU clips are decoded end to end by convolutions in
        float16, and the gaps between them are kept silent between all layers, so that a clip's last samples are as good
        as its first; where numbers grow too large for float16, one by one in float32. The error of float16 against
        float32 is 45 dB below the sound, as measured on a CPU with the bundled `noise`.
        """
        return decode_batch(self, codes)

    def decode_joined(self, codes: Tensor, row: Row) -> Tensor:
        """codes: int64 [1, 8, T] of a row of clips -> float32 [T * 960], each clip as if alone."""
        decoder = self._row_decoder
        x = self.fc2(self.quantizer.decode(codes)).transpose(1, 2)
        x = x.to(decoder.conv1.weight.dtype, memory_format=torch.contiguous_format)
        row.silence(x, 2)
        between = passes(x.device)
        # What a convolution's bias is added to is read next by a pass of ours, which adds it on the way.
        x, bias = unbiased(decoder.conv1, x)
        for block in decoder.block:
            x, bias = unbiased(block.conv_t1, between.silent_snake(x, bias, block.snake1.alpha, row))
            for unit in (block.res_unit1, block.res_unit2, block.res_unit3):
                y, inner = unbiased(unit.conv1, between.silent_snake(x, bias, unit.snake1.alpha, row))
                y, outer = unbiased(unit.conv2, between.silent_snake(y, inner, unit.snake2.alpha, row))
                between.add_biased(x, y, bias + outer)
                bias = torch.zeros_like(bias)
        return decoder.conv2(between.silent_snake(x, bias, decoder.snake1.alpha, row)).flatten().float()

    @cached_property
    def _row_decoder(self) -> nn.Module:
        return in_dtype(self.acoustic_decoder, decode_dtype(self.device))

    @torch.inference_mode()
    def encode(self, wave: np.ndarray | Tensor) -> np.ndarray:
        """wave: float [N] at 24 kHz, N a multiple of 960 -> codes, int16 [8, N / 960].

        The first call loads the encoder, as `encoder` does. Raises InputError when it comes to numbers that are not
        finite.
        """
        wave = torch.as_tensor(wave).to(self.device, torch.float32)
        if wave.ndim != 1 or len(wave) == 0 or len(wave) % FRAME_SAMPLES:
            raise ValueError(f"a wave of shape {list(wave.shape)} is not whole frames of {FRAME_SAMPLES} samples")
        encoder = self.encoder
        codes, finite = on_codec_thread(self.device, lambda: encode_features(encoder(wave), self.quantizer))
        if not finite:
            raise InputError("the codec's encoder makes no finite numbers of this recording")
        return codes.to(torch.int16).cpu().numpy()

    @cached_property
    def encoder(self) -> "Encoder":
        """What a wave becomes codes with, loaded at its first use.

        Raises InputError when its sizes do not go together or its weights do not fit them.
        """
        config = self.config
        wave = torch.zeros(2 * FRAME_SAMPLES, device="meta")
        encoder = build(lambda: Encoder(config), wave, (2, config.width), config.file)
        load_weights(
            encoder,
            self.weight_files,
            device=self.device,
            dtype=torch.float32,
            ignored=(*UNUSED_TENSORS, *DECODER_TENSORS),
        )
        return encoder


def unbiased(conv: nn.Conv1d | nn.ConvTranspose1d, x: Tensor) -> tuple[Tensor, Tensor]:
    """A convolution without its bias, [1, C, N], and the bias, [C]."""
    if isinstance(conv, nn.ConvTranspose1d):
        made = F.conv_transpose1d(x, conv.weight, None, conv.stride, conv.padding, conv.output_padding)
    else:
        made = F.conv1d(x, conv.weight, None, conv.stride, conv.padding, conv.dilation)
    return made, conv.bias


class Passes:
    """What lies between the decoder's convolutions, in torch."""

    @staticmethod
    def silent_snake(x: Tensor, bias: Tensor, alpha: Tensor, row: Row) -> Tensor:
        """y + sin(alpha * y)**2 / alpha of y = x + bias where there is a clip, else 0: DAC's activation, [1, C, N]."""
        y = x + bias[:, None]
        y = y + (alpha + 1e-9).reciprocal() * torch.sin(alpha * y).square()
        row.silence(y, 2)
        return y

    @staticmethod
    def add_biased(x: Tensor, y: Tensor, bias: Tensor) -> None:
        """x += y + bias, in place."""
        x += y + bias[:, None]


class FusedPasses:
    """The same, in Triton."""

    @staticmethod
    def silent_snake(x: Tensor, bias: Tensor, alpha: Tensor, row: Row) -> Tensor:
        from omnitts.model.snake import silent_snake

        return silent_snake(x, bias, alpha, row.sound)

    @staticmethod
    def add_biased(x: Tensor, y: Tensor, bias: Tensor) -> None:
        from omnitts.model.snake import add_biased

        add_biased(x, y, bias)


def passes(device: torch.device) -> type[Passes] | type[FusedPasses]:
    """Triton's on a GPU where it is installed."""
    return FusedPasses if device.type == "cuda" and find_spec("triton") is not None else Passes


class Codebook(nn.Module):
    """`embed`: the vectors that the codes stand for, float32 [size, dim]."""

    def __init__(self, size: int, dim: int):
        super().__init__()
        self.register_buffer("embed", torch.empty(size, dim))


class Quantizer(nn.Module):
    """One codebook, and the projections from and to the width of the features."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.codebook = Codebook(config.codebook_size, config.codebook_dim)
        self.project_in = nn.Linear(config.width, config.codebook_dim)
        self.project_out = nn.Linear(config.codebook_dim, config.width)

    def encode(self, features: Tensor) -> Tensor:
        """features [T, width] -> the nearest code of each frame, int64 [T]."""
        point, embed = self.project_in(features), self.codebook.embed
        squared_distance = point.square().sum(1, keepdim=True) - 2 * point @ embed.T + embed.square().sum(1)
        return squared_distance.argmin(1)

    def decode(self, codes: Tensor) -> Tensor:
        """codes [..., T] -> features [..., T, width]."""
        return self.project_out(F.embedding(codes, self.codebook.embed))


class ResidualQuantizer(nn.Module):
    """Each codebook codes what the ones before it left over; a frame is the sum of its 8 entries."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.quantizers = nn.ModuleList(Quantizer(config) for _ in range(config.num_quantizers))

    def encode(self, features: Tensor) -> Tensor:
        """features [T, width] -> codes int64 [8, T]."""
        codes = []
        for quantizer in self.quantizers:
            codes.append(quantizer.encode(features))
            features = features - quantizer.decode(codes[-1])
        return torch.stack(codes)

    def decode(self, codes: Tensor) -> Tensor:
        """codes [..., 8, T] -> features [..., T, width]."""
        layers = zip(self.quantizers, codes.unbind(-2), strict=True)
        return sum(quantizer.decode(layer) for quantizer, layer in layers)


class Encoder(nn.Module):
    """A waveform to the features that the quantizer codes: acoustic (DAC) and semantic (HuBERT) ones, mixed by `fc`."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        self.config = config
        self.acoustic_encoder = _dac_encoder(config)
        self.semantic_model = _hubert(config)
        self.encoder_semantic = SemanticEncoder(config)
        self.fc = nn.Linear(config.width, config.width)
        round_lengths(self)

    def forward(self, wave: Tensor) -> Tensor:
        """wave [N] at 24 kHz, N a whole number of frames -> features [N / 960, width]."""
        # Both halves give one vector a frame: of whole frames neither loses any at its edges.
        acoustic = self.acoustic_encoder(wave[None, None])
        semantic = self.encoder_semantic(self.semantic_features(wave).T[None])
        return self.fc(torch.cat((acoustic, semantic), dim=1)[0].T)

    def semantic_features(self, wave: Tensor) -> Tensor:
        """The mean over all of HuBERT's hidden states: wave [N] -> [N / 960, semantic hidden size]."""
        wave = resample(wave, SAMPLE_RATE, _SEMANTIC_RATE)
        wave = F.pad(wave, (_SEMANTIC_PAD, _SEMANTIC_PAD))
        states = self.semantic_model(wave[None], output_hidden_states=True).hidden_states
        return torch.stack(states).mean(0)[0, :: self.config.semantic_stride]


class SemanticEncoder(nn.Module):
    """Convolutions over HuBERT's features; with the published strides, all 1, each frame keeps its place."""

    def __init__(self, config: CodecConfig):
        super().__init__()
        width = config.semantic["hidden_size"]
        self.conv = nn.Conv1d(width, width, config.kernel_size, padding=config.kernel_size // 2, bias=False)
        outs = [int(width * ratio) for ratio in config.channel_ratios]
        self.conv_blocks = nn.ModuleList(
            SemanticBlock(config, in_width, out_width, stride)
            for in_width, out_width, stride in zip([width, *outs], outs, config.strides, strict=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        """x: [1, hidden size, T] -> [1, hidden size * last channel ratio, T]."""
        x = self.conv(x)
        for block in self.conv_blocks:
            x = block(x)
        return x


class SemanticBlock(nn.Module):
    """Residual units, one a dilation, and a convolution that changes the width."""

    def __init__(self, config: CodecConfig, in_width: int, out_width: int, stride: int):
        super().__init__()
        kernel = 3 if stride == 1 else 2 * stride
        self.res_units = nn.ModuleList(
            SemanticUnit(in_width, config.unit_kernel_size, dilation) for dilation in config.block_dilations
        )
        self.conv = nn.Conv1d(in_width, out_width, kernel, stride=stride, padding=(kernel - 1) // 2)

    def forward(self, x: Tensor) -> Tensor:
        """x: [1, in_width, T] -> [1, out_width, T / stride]."""
        for unit in self.res_units:
            x = unit(x)
        return self.conv(x)


class SemanticUnit(nn.Module):
    """Two convolutions whose result is added to their input."""

    def __init__(self, width: int, kernel: int, dilation: int):
        super().__init__()
        padding = (kernel - 1) // 2 * dilation
        self.conv1 = nn.Conv1d(width, width, kernel, padding=padding, dilation=dilation, bias=False)
        self.conv2 = nn.Conv1d(width, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [1, width, T] -> [1, width, T]."""
        return x + self.conv2(F.elu(self.conv1(F.elu(x))))


# transformers takes seconds to import: below, only where one of its modules is built.


def _dac_decoder(config: CodecConfig) -> nn.Module:
    """[B, hidden_size, T] -> [B, 1, T * 960].

    It departs from DAC's in that there is no tanh at the end, and that a layer of odd stride loses no sample.
    """
    from transformers.models.dac.modeling_dac import DacConfig, DacDecoder

    decoder = DacDecoder(DacConfig(**config.acoustic))
    decoder.tanh = nn.Identity()
    for module in decoder.modules():
        if isinstance(module, nn.ConvTranspose1d):
            module.output_padding = (module.stride[0] % 2,)
    return decoder


def _dac_encoder(config: CodecConfig) -> nn.Module:
    """[B, 1, N] -> [B, hidden_size, N / 960]."""
    from transformers.models.dac.modeling_dac import DacConfig, DacEncoder

    return DacEncoder(DacConfig(**config.acoustic))


def _hubert(config: CodecConfig) -> nn.Module:
    """[B, samples] at 16 kHz -> hidden states; its one weight-normed convolution made plain."""
    from torch.nn.utils.parametrize import remove_parametrizations
    from transformers import HubertConfig, HubertModel

    # Masking is for training: without it HuBERT has no mask vector to load.
    model = HubertModel(HubertConfig(**config.semantic | {"mask_time_prob": 0.0, "mask_feature_prob": 0.0}))
    remove_parametrizations(model.encoder.pos_conv_embed.conv, "weight")
    return model

"""A small codec whose networks run at the rate of frames: 8 codebooks at 25 frames a second <-> a 24 kHz waveform.

    encode: log-mel spectrum, 100 a second -> ConvNeXt -> 4 to 1 -> ConvNeXt -> residual quantizer
    decode: sum of code vectors, 25 a second -> ConvNeXt -> 1 to 4 -> ConvNeXt -> inverse STFT

No layer works on single samples, so it is many times cheaper than a codec of strided convolutions (Vocos has shown
that it need not sound worse). The modules are the ones that training uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omnitts.audio import FRAME_SAMPLES, SAMPLE_RATE
from omnitts.errors import InputError
from omnitts.model.checkpoint import read_json, require
from omnitts.model.codec import build
from omnitts.model.decoding import Row, decode_batch, decode_dtype, encode_features, in_dtype, on_codec_thread
from omnitts.model.rounding import round_lengths
from omnitts.model.weights import load_weights

MODEL_TYPE = "frame_codec"

HOP = 240  # samples between spectra, in and out
STEPS = FRAME_SAMPLES // HOP  # spectra a frame
_MEL_FFT = 1024
_OUT_FFT = 4 * HOP
_QUIETEST = 1e-5  # floor of a mel magnitude
_LOUDEST = 6.0  # limit of a log magnitude: a wild code must not overflow

DECODER_TENSORS = ("quantizer.*", "decoder.*")
ENCODER_TENSORS = ("encoder.*",)


@dataclass(frozen=True)
class FrameCodecConfig:
    """Sizes, named as in config.json: widths and depths of the stacks at 100 (`fine`) and 25 (`coarse`) a second."""

    file: Path = field(compare=False)  # for messages
    num_quantizers: int
    codebook_size: int
    codebook_dim: int
    mel_bins: int
    encoder_fine_width: int
    encoder_fine_depth: int
    encoder_coarse_width: int
    encoder_coarse_depth: int
    decoder_coarse_width: int
    decoder_coarse_depth: int
    decoder_fine_width: int
    decoder_fine_depth: int


def read_frame_codec_config(path: Path) -> FrameCodecConfig:
    """Read the codec's config.json. Raises InputError on a missing or odd key."""
    content = read_json(path)
    for key, value in (("sample_rate", SAMPLE_RATE), ("frame_samples", FRAME_SAMPLES), ("hop_length", HOP)):
        if require(content, key, int, path) != value:
            raise InputError(f"{content[key]} is not supported, only {value} is", file=path, field=key)
    sizes = [name for name in FrameCodecConfig.__dataclass_fields__ if name != "file"]
    limit = 1 << 13
    return FrameCodecConfig(file=path, **{name: require(content, name, int, path, most=limit) for name in sizes})


class FrameCodec(nn.Module):
    """Codes to waveform and back. The encoder is loaded at its first use: many jobs have no reference audio.

    On the CPU the result for one clip is the same, bit for bit, in any batch and on any number of cores.
    """

    def __init__(self, config: FrameCodecConfig, weight_files: Sequence[Path] = ()):
        super().__init__()
        self.config = config
        self.weight_files = weight_files
        self.quantizer = ResidualQuantizer(config)
        self.decoder = Decoder(config)

    @property
    def device(self) -> torch.device:
        return self.quantizer.embed.device

    def forward(self, codes: Tensor) -> Tensor:
        """codes: int64 [B, 8, T] -> waveform, float32 [B, 1, T * 960]."""
        return self.decoder(self.quantizer.decode(codes))[:, None]

    @torch.inference_mode()
    def decode(self, codes: np.ndarray | Tensor) -> np.ndarray:
        """codes: integers [8, T] -> float32 waveform [T * 960] at 24 kHz, or [B, 8, T] -> [B, T * 960]."""
        codes = torch.as_tensor(codes).to(self.device, torch.int64)
        batch = codes.reshape(-1, 1, *codes.shape[-2:])
        # One clip at a time: a matrix product rounds differently in a larger batch.
        wave = on_codec_thread(self.device, lambda: torch.cat([self(clip) for clip in batch]))
        return wave.reshape(*codes.shape[:-2], -1).cpu().numpy()

    def decode_batch(self, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Decodes clips of any lengths: int16 [8, T_i] each -> float32 waveforms [T_i * 960], in the order given.

        On the CPU each is what `decode` gives, to the bit. On a GPU clips are decoded end to end in float16, and the
        gaps between them are kept silent between all layers, so that a clip's last samples are as good as its first;
        where numbers grow too large for float16, one by one in float32. The error of float16 against float32 is 32 to
        47 dB below the speech, by clip, as measured on a CPU with the bundled `mini`.
        """
        return decode_batch(self, codes)

    def decode_joined(self, codes: Tensor, row: Row) -> Tensor:
        """codes: int64 [1, 8, T] of a row of clips -> float32 [T * 960], each clip as if alone."""
        decoder = self._row_decoder
        features = self.quantizer.decode(codes).to(decoder.stem.weight.dtype)
        return decoder(features, row).flatten()

    @cached_property
    def _row_decoder(self) -> "Decoder":
        return in_dtype(self.decoder, decode_dtype(self.device))

    @torch.inference_mode()
    def encode(self, wave: np.ndarray | Tensor) -> np.ndarray:
        """wave: float [N] at 24 kHz, N a multiple of 960 -> codes, int16 [8, N / 960]."""
        wave = torch.as_tensor(wave).to(self.device, torch.float32)
        if wave.ndim != 1 or len(wave) == 0 or len(wave) % FRAME_SAMPLES:
            raise ValueError(f"a wave of shape {list(wave.shape)} is not whole frames of {FRAME_SAMPLES} samples")
        encoder = self.encoder
        codes, finite = on_codec_thread(self.device, lambda: encode_features(encoder(wave[None]), self.quantizer))
        if not finite:
            raise InputError("the codec's encoder makes no finite numbers of this recording")
        return codes[0].to(torch.int16).cpu().numpy()

    @cached_property
    def encoder(self) -> "Encoder":
        wave = torch.zeros(1, 2 * FRAME_SAMPLES, device="meta")
        shape = (1, 2, self.config.codebook_dim)
        holder = nn.ModuleDict({"encoder": build(lambda: Encoder(self.config), wave, shape, self.config.file)})
        load_weights(holder, self.weight_files, device=self.device, dtype=torch.float32, ignored=DECODER_TENSORS)
        return holder["encoder"]


class ResidualQuantizer(nn.Module):
    """Each codebook codes what the ones before it left over; a frame is the sum of its 8 entries.

    `embed`: the vectors that the codes stand for, float32 [8, size, dim].
    """

    def __init__(self, config: FrameCodecConfig):
        super().__init__()
        self.register_buffer("embed", torch.zeros(config.num_quantizers, config.codebook_size, config.codebook_dim))

    def encode(self, features: Tensor) -> Tensor:
        """features [B, T, dim] -> codes int64 [B, 8, T]."""
        codes = []
        for embed in self.embed:
            codes.append(nearest(features, embed))
            features = features - F.embedding(codes[-1], embed)
        return torch.stack(codes, dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """codes [B, 8, T] -> features [B, T, dim]."""
        return sum(F.embedding(layer, embed) for layer, embed in zip(codes.unbind(1), self.embed, strict=True))


def nearest(points: Tensor, embed: Tensor) -> Tensor:
    """The index of the closest row of embed [size, dim] to each of points [..., dim]: int64 [...]."""
    return (embed.square().sum(1) - 2 * points @ embed.T).argmin(-1)


class ConvNeXt(nn.Module):
    """A depthwise convolution over time, then a feed-forward layer in each place, added to the input."""

    def __init__(self, width: int):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 3 * width)
        self.narrow = nn.Linear(3 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.2))

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, T, width] -> [B, T, width]."""
        y = self.norm(self.conv(x.transpose(1, 2)).transpose(1, 2))
        return x + self.scale * self.narrow(F.gelu(self.widen(y)))


def _stack(width: int, depth: int) -> nn.Sequential:
    return nn.Sequential(*(ConvNeXt(width) for _ in range(depth)))


class Encoder(nn.Module):
    """A waveform to the vectors that the quantizer codes."""

    def __init__(self, config: FrameCodecConfig):
        super().__init__()
        self.mel_bins = config.mel_bins
        self.stem = nn.Linear(config.mel_bins, config.encoder_fine_width)
        self.fine = _stack(config.encoder_fine_width, config.encoder_fine_depth)
        self.merge = nn.Linear(STEPS * config.encoder_fine_width, config.encoder_coarse_width)
        self.coarse = _stack(config.encoder_coarse_width, config.encoder_coarse_depth)
        self.norm = nn.LayerNorm(config.encoder_coarse_width)
        self.project = nn.Linear(config.encoder_coarse_width, config.codebook_dim)
        round_lengths(self)

    def forward(self, wave: Tensor) -> Tensor:
        """wave [B, N] at 24 kHz, N a whole number of frames -> [B, N / 960, codebook_dim]."""
        return self.project(self.norm(self.features(log_mel(wave, self.mel_bins))))

    def features(self, mel: Tensor) -> Tensor:
        """log-mel [B, T * 4, bins] -> [B, T, coarse width]."""
        x = self.fine(self.stem(mel))
        return self.coarse(self.merge(x.reshape(len(x), -1, STEPS * x.shape[-1])))


class Decoder(nn.Module):
    """Sums of code vectors to a waveform."""

    def __init__(self, config: FrameCodecConfig):
        super().__init__()
        self.stem = nn.Linear(config.codebook_dim, config.decoder_coarse_width)
        self.coarse = _stack(config.decoder_coarse_width, config.decoder_coarse_depth)
        self.split = nn.Linear(config.decoder_coarse_width, STEPS * config.decoder_fine_width)
        self.fine = _stack(config.decoder_fine_width, config.decoder_fine_depth)
        self.norm = nn.LayerNorm(config.decoder_fine_width)
        self.head = nn.Linear(config.decoder_fine_width, _OUT_FFT + 2)

    def forward(self, features: Tensor, row: Row | None = None) -> Tensor:
        """features [B, T, codebook_dim] -> waveform [B, T * 960]. row: where the clips are, if several share it."""
        x = self._run(self.coarse, self.stem(features), row)
        x = self.split(x)
        x = self._run(self.fine, x.reshape(len(x), -1, x.shape[-1] // STEPS), row)
        return inverse_stft(self.head(self.norm(x)).float(), row)

    def _run(self, stack: nn.Sequential, x: Tensor, row: Row | None) -> Tensor:
        for block in stack:
            if row is not None:
                row.silence(x, 1)
            x = block(x)
        return x


def log_mel(wave: Tensor, bins: int, fft: int = _MEL_FFT, hop: int = HOP) -> Tensor:
    """Natural log of mel magnitudes: wave [B, N], N a multiple of `hop` -> [B, N / hop, bins]."""
    return mel_spectrum(wave, bins, fft, hop).clamp(min=_QUIETEST).log()


def mel_spectrum(wave: Tensor, bins: int, fft: int = _MEL_FFT, hop: int = HOP) -> Tensor:
    """Mel magnitudes: wave [B, N], N a multiple of `hop` -> [B, N / hop, bins]."""
    edge = (fft - hop) // 2
    frames = F.pad(wave, (edge, fft - hop - edge)).unfold(-1, fft, hop)
    spectrum = torch.fft.rfft(frames * _hann(fft, wave.device))
    return spectrum.abs() @ _mel_filters(bins, fft, wave.device)


def inverse_stft(x: Tensor, row: Row | None = None) -> Tensor:
    """Log magnitudes and phases [B, T, 962] -> waveform [B, T * 240], by overlap-add of Hann windows.

    row: where the clips are, if several share it; spectra between them sound in none.
    """
    magnitude, phase = x.chunk(2, dim=-1)
    spectrum = torch.polar(magnitude.clamp(max=_LOUDEST).exp(), phase)
    window = _hann(_OUT_FFT, x.device)
    frames = torch.fft.irfft(spectrum, n=_OUT_FFT) * window
    weights = window.square().expand(1, x.shape[1], -1)
    if row is not None:
        weights = weights.clone()
        row.silence(frames, 1)
        row.silence(weights, 1)
    added, norm = _overlap_add(frames), _overlap_add(weights)
    edge = (_OUT_FFT - HOP) // 2
    return (added / norm.clamp(min=1e-3))[:, edge:-edge]


def _overlap_add(frames: Tensor) -> Tensor:
    """Frames [B, T, 960], a hop apart -> their sum [B, (T + 3) * 240]."""
    overlap = _OUT_FFT // HOP
    parts = frames.unflatten(-1, (overlap, HOP))
    shifted = [F.pad(parts[:, :, k], (0, 0, k, overlap - 1 - k)) for k in range(overlap)]
    return torch.stack(shifted).sum(0).flatten(1)


@lru_cache(maxsize=16)
def _hann(length: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # training uses it too
        return torch.hann_window(length, device=device)


@lru_cache(maxsize=16)
def _mel_filters(bins: int, fft: int, device: torch.device) -> Tensor:
    """Triangles evenly spaced on the mel scale from 0 to 12 kHz, each summing to 1: float32 [fft / 2 + 1, bins]."""
    top = 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, bins + 2) / 2595) - 1)
    frequency = np.linspace(0, SAMPLE_RATE / 2, fft // 2 + 1)[:, None]
    left, centre, right = corners[:-2], corners[1:-1], corners[2:]
    triangles = np.minimum((frequency - left) / (centre - left), (right - frequency) / (right - centre)).clip(min=0)
    # The narrowest triangles may fall between two bins of the spectrum: those take the nearest bin.
    nearest_bin = np.abs(frequency - centre).argmin(0)
    empty = triangles.sum(0) == 0
    triangles[nearest_bin[empty], np.flatnonzero(empty)] = 1
    return torch.from_numpy(triangles / triangles.sum(0)).float().to(device)

"""Trains the codec on the shards, while they are being made if need be.

    python -m training.codec DATA --out CODEC --seconds 240                   encoder, codebooks and decoder
    python -m training.codec DATA --out CODEC --seconds 150 --adversarial     the decoder alone, against judges

The first stage fixes the codes; the second may run at any time after, also after the model was trained on the codes.
Both go on from what is in CODEC, unless --fresh is given.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omnitts.audio import FRAME_SAMPLES, SAMPLE_RATE, resample
from omnitts.model.duration import FRAME_RATE
from omnitts.model.frame_codec import (
    Encoder,
    FrameCodec,
    FrameCodecConfig,
    log_mel,
    mel_spectrum,
    nearest,
    read_frame_codec_config,
)
from training.data import LABELS, load_shard
from training.discriminator import Discriminator, deceit_losses, judge_loss
from training.loop import Average, Captured, Clock
from training.optimizer import Optimizer
from training.pieces import have_pieces, load_pieces, save_pieces
from training.teacher import PHONES, RATE

SIZES = {
    "model_type": "frame_codec",
    "sample_rate": SAMPLE_RATE,
    "frame_samples": 960,
    "hop_length": 240,
    "num_quantizers": 8,
    "codebook_size": 1024,
    "codebook_dim": 64,
    "mel_bins": 100,
    "encoder_fine_width": 256,
    "encoder_fine_depth": 2,
    "encoder_coarse_width": 320,
    "encoder_coarse_depth": 3,
    "decoder_coarse_width": 384,
    "decoder_coarse_depth": 3,
    "decoder_fine_width": 288,
    "decoder_fine_depth": 5,
}
MATRICES = ("widen", "narrow", "merge", "split")

MEL_SCALES = ((2048, 480, 120, 1.0), (1024, 240, 100, 2.0), (480, 120, 40, 1.0), (240, 60, 20, 1.0))  # fft, hop, bins
MEL_FLOOR = 3e-4
DROPOUT = 0.3  # share of the clips that keep only their first codebooks
GAIN_SPREAD = 0.35  # of the logarithm of a clip's loudness


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the codec.")
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--adversarial", action="store_true", help="train the decoder alone, against judges")
    parser.add_argument("--fresh", action="store_true", help="start anew though there is a codec in OUT")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--frames", type=int, default=48, help="length of the clips that a batch is made of")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    training = Training.start(args.out, device, args.fresh)
    speech = Speech(args.data, args.batch * args.frames, device)
    step = adversarial_step if args.adversarial else reconstruction_step
    run(training, speech, step(training, speech, args.batch, args.frames, args.seed), args.seconds, args.rate)
    training.save(args.out)


class Training(nn.Module):
    """The codec, and what only its training needs: the codebooks' statistics and the phone classifier."""

    def __init__(self, config: FrameCodecConfig):
        super().__init__()
        self.codec = FrameCodec(config)
        self.encoder = Encoder(config)
        self.phones = nn.Linear(config.codebook_dim, LABELS * len(PHONES))
        self.register_buffer("counts", torch.zeros(config.num_quantizers, config.codebook_size))

    @classmethod
    def start(cls, folder: Path, device: torch.device, fresh: bool = False) -> "Training":
        """From the weights in the folder, or from random ones."""
        folder.mkdir(parents=True, exist_ok=True)
        config_file = folder / "config.json"
        config_file.write_text(json.dumps(SIZES, indent=2) + "\n", encoding="utf-8")
        training = cls(read_frame_codec_config(config_file))
        if not fresh and have_pieces(folder, "codec"):
            training.load_state_dict(load_pieces(folder, "codec"))
        return training.to(device)

    def save(self, folder: Path) -> None:
        save_pieces(folder, "codec", self.state_dict())

    def quantize(self, z: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes z [B, T, dim] with the first kept[b] codebooks, and moves the codebooks towards what they coded.

        Returns the coded z, with gradients as if it had not been coded, codebook 0's part of it, likewise, and
        the loss that keeps the encoder near the codebooks.
        """
        embed = self.codec.quantizer.embed
        residual, coded, distance, first = z.detach(), torch.zeros_like(z), 0.0, None
        for number in range(len(embed)):
            codes = nearest(residual, embed[number])
            vector = F.embedding(codes, embed[number])
            used = (kept > number)[:, None, None]
            self._move(number, residual.flatten(0, 1), codes.flatten())
            coded = coded + used * vector
            distance = distance + (used * (z - coded).square()).mean()
            first = coded if number == 0 else first
            residual = residual - vector
        return z + (coded - z).detach(), z + (first - z).detach(), distance / len(embed)

    @torch.no_grad()
    def _move(self, number: int, points: Tensor, codes: Tensor, decay: float = 0.99) -> None:
        """Exponential means of the points that each code stood for; a code that nothing falls to is put on a point."""
        embed, counts = self.codec.quantizer.embed[number], self.counts[number]
        new = torch.zeros_like(counts).index_add_(0, codes, torch.ones_like(points[:, 0]))
        sums = torch.zeros_like(embed).index_add_(0, codes, points)
        total = decay * counts + (1 - decay) * new
        mean = (decay * counts[:, None] * embed + (1 - decay) * sums) / total[:, None].clamp(min=1e-6)
        even = len(points) / len(embed)
        dead = total < 0.05 * even
        chosen = points[torch.randint(len(points), (len(embed),), device=points.device)]
        embed.copy_(torch.where(dead[:, None], chosen, mean))
        counts.copy_(torch.where(dead, 0.2 * even, total))  # a code that stays unused is put elsewhere soon


class Speech:
    """All of the shards so far on the device, end to end, to cut clips from anywhere."""

    def __init__(self, folder: Path, needed: int, device: torch.device, hours: float = 60.0):
        """Waits until there are `needed` frames."""
        self.folder, self.device, self.seen = folder, device, set()
        room = int(hours * 3600 * FRAME_RATE) if device.type == "cuda" else 60 * needed
        self.wave = torch.zeros(room * FRAME_SAMPLES, dtype=torch.int16, device=device)
        self.labels = torch.zeros(room * LABELS, dtype=torch.uint8, device=device)
        self.frames = torch.zeros((), dtype=torch.int64, device=device)
        self.made = 0
        while self.made < needed:
            self.refresh()
            time.sleep(0.5)

    def refresh(self, most: int = 4) -> None:
        """Takes in some of the shards that are new."""
        new = [file for file in sorted(self.folder.glob("*.npz")) if file not in self.seen][:most]
        for file in new:
            self.seen.add(file)
            for clip in load_shard(file):
                if (self.made + clip.frames) * LABELS > len(self.labels):
                    return
                start, stop = self.made, self.made + clip.frames
                self.wave[start * FRAME_SAMPLES : stop * FRAME_SAMPLES] = upsampled(clip.wave, self.device)
                self.labels[start * LABELS : stop * LABELS] = torch.from_numpy(clip.phones)
                self.made = stop
        self.frames.fill_(self.made)

    def cut(self, batch: int, frames: int) -> tuple[Tensor, Tensor]:
        """Random clips: waves at 24 kHz [batch, frames * 960] of varied loudness, phones [batch, frames * 2]."""
        # Anywhere between two labels: a frame of the codec begins anywhere.
        room = (self.frames - frames - 1) * LABELS
        start = (torch.rand(batch, 1, device=self.device, dtype=torch.float64) * room).long()
        step = FRAME_SAMPLES // LABELS
        wave = self.wave[start * step + torch.arange(frames * FRAME_SAMPLES, device=self.device)].float() / 32768
        labels = self.labels[start + torch.arange(frames * LABELS, device=self.device)].long()
        gain = torch.exp(GAIN_SPREAD * torch.randn(batch, 1, device=self.device))
        return wave * gain, labels


def upsampled(wave: np.ndarray, device: torch.device) -> Tensor:
    """The teacher's samples, int16 at 16 kHz, at 24 kHz."""
    at_24k = resample(torch.from_numpy(wave).to(device).float(), RATE, SAMPLE_RATE)
    return at_24k.round().clamp(-32768, 32767).to(torch.int16)


def reconstruction_step(training: Training, speech: Speech, batch: int, frames: int, seed: int):
    """The first stage: everything learns to make the mel spectra again, and codebook 0 to tell phones apart."""
    optimizer = Optimizer(training.named_parameters(), MATRICES)
    average = Average(training)
    codebooks = training.codec.config.num_quantizers

    def step() -> dict[str, Tensor]:
        wave, labels = speech.cut(batch, frames)
        optimizer.zero_grad()
        with autocast(wave.device):
            features = training.encoder.features(log_mel(wave, training.encoder.mel_bins))
            z = training.encoder.project(training.encoder.norm(features)).float()
        kept = torch.randint(1, codebooks + 1, (batch,), device=wave.device)
        kept = torch.where(torch.rand(batch, device=wave.device) < DROPOUT, kept, codebooks)
        coded, first, distance = training.quantize(z, kept)
        with autocast(wave.device):
            made = training.codec.decoder(coded)
            phones = training.phones(first).float()
        mel = mel_loss(made, wave)
        phone = F.cross_entropy(phones.reshape(-1, len(PHONES)), labels.flatten())
        loss = mel + 0.2 * phone + 0.25 * distance
        loss.backward()
        optimizer.step()
        average.update()
        return {"mel": mel.detach(), "phone": phone.detach(), "distance": distance.detach()}

    return step, [optimizer], average


def adversarial_step(training: Training, speech: Speech, batch: int, frames: int, seed: int):
    """The second stage: codes stay as they are, and the decoder learns to sound like the teacher."""
    decoder = training.codec.decoder
    judges = Discriminator().to(speech.device)
    if speech.device.type == "cuda":
        judges.to(memory_format=torch.channels_last)
    optimizer = Optimizer(decoder.named_parameters(), MATRICES, betas=(0.8, 0.98))
    judging = Optimizer(judges.named_parameters(), (), betas=(0.8, 0.98))
    average = Average(decoder)

    def step() -> dict[str, Tensor]:
        wave, _ = speech.cut(batch, frames)
        with torch.no_grad():
            codes = training.codec.quantizer.encode(training.encoder(wave))
            coded = training.codec.quantizer.decode(codes)
        optimizer.zero_grad()
        with autocast(wave.device):
            made = decoder(coded)
        judging.zero_grad()
        with autocast(wave.device):
            harshness = judge_loss(judges(wave), judges(made.detach()))
        harshness.backward()
        judging.step()
        with autocast(wave.device):
            verdict, feature = deceit_losses(judges(wave), judges(made))
        mel = mel_loss(made, wave)
        (15 * mel + verdict + 2 * feature).backward()
        optimizer.step()
        average.update()
        return {
            "mel": mel.detach(),
            "verdict": verdict.detach(),
            "feature": feature.detach(),
            "judges": harshness.detach(),
        }

    return step, [optimizer, judging], average


def autocast(device: torch.device) -> torch.autocast:
    # Without a cache of cast weights, which would go stale in a captured graph.
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False)


def mel_loss(made: Tensor, wave: Tensor) -> Tensor:
    """The mean distance of log-mel spectra over several resolutions; a tenth of it is of the magnitudes' distance."""
    total, weights = 0.0, 0.0
    for fft, hop, bins, weight in MEL_SCALES:
        a, b = (mel_spectrum(w.float(), bins, fft, hop) for w in (made, wave))
        log = (a.clamp(min=MEL_FLOOR).log() - b.clamp(min=MEL_FLOOR).log()).abs().mean()
        total = total + weight * (log + 0.1 * (a - b).abs().mean() / b.abs().mean())
        weights += weight
    return total / weights


def run(training: Training, speech: Speech, parts: tuple, seconds: float, rate: float) -> None:
    step, optimizers, average = parts
    start = time.time()
    captured = Captured(step, speech.device)
    print(f"captured after {time.time() - start:.1f} s, {sum(p.numel() for p in training.parameters())} parameters")
    clock = Clock(seconds, rate)
    while clock.share < 1:
        now = clock.rate()
        for optimizer in optimizers:
            optimizer.rate.fill_(now)
        results = captured()
        if clock.steps % 20 == 0:
            speech.refresh()
        if clock.steps % 500 == 1 or speech.device.type == "cpu":
            shown = " ".join(f"{name} {value.item():.4f}" for name, value in results.items())
            print(f"step {clock.steps} at {clock.share:.0%} of {speech.made / 90000:.1f} h: {shown}", flush=True)
    average.apply()
    print(f"{clock.steps} steps in {time.time() - start:.0f} s, {speech.made / 90000:.1f} h heard")


if __name__ == "__main__":
    main()

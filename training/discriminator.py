"""Judges of waveforms by their complex spectra at three resolutions."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_FFTS = (2048, 1024, 512)
_WIDTH = 32


class SpectrumJudge(nn.Module):
    """Convolutions over the real and imaginary parts of one short-time spectrum."""

    def __init__(self, fft: int):
        super().__init__()
        self.fft = fft
        sizes = ((2, (3, 9), 1), *((_WIDTH, (3, 9), 2),) * 3, (_WIDTH, (3, 3), 1))
        self.convs = nn.ModuleList(
            nn.Conv2d(width, _WIDTH, kernel, (1, stride), (kernel[0] // 2, kernel[1] // 2))
            for width, kernel, stride in sizes
        )
        self.last = nn.Conv2d(_WIDTH, 1, 3, padding=1)

    def forward(self, wave: Tensor) -> list[Tensor]:
        """wave [B, N] -> the hidden layers' features and, last, the verdicts [B, 1, frames, bands]."""
        window = torch.hann_window(self.fft, device=wave.device)
        frames = F.pad(wave, (self.fft // 2, self.fft // 2)).unfold(-1, self.fft, self.fft // 4)
        spectrum = torch.view_as_real(torch.fft.rfft(frames * window, norm="ortho"))
        # Compressed, so that quiet parts count.
        size = spectrum.square().sum(-1, keepdim=True)
        x = (spectrum * (size + 1e-6) ** -0.35).permute(0, 3, 1, 2)
        features = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), 0.1)
            features.append(x)
        return [*features, self.last(x)]


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.judges = nn.ModuleList(SpectrumJudge(fft) for fft in _FFTS)

    def forward(self, wave: Tensor) -> list[list[Tensor]]:
        """wave [B, N] -> what each judge says."""
        return [judge(wave) for judge in self.judges]


def judge_loss(real: list[list[Tensor]], fake: list[list[Tensor]]) -> Tensor:
    """Hinge loss of the judges."""
    return sum(
        F.relu(1 - r[-1].float()).mean() + F.relu(1 + f[-1].float()).mean() for r, f in zip(real, fake, strict=True)
    ) / len(real)


def deceit_losses(real: list[list[Tensor]], fake: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
    """The generator's losses: how far the verdicts are from good, and how far the hidden features differ."""
    verdict = sum(F.relu(1 - f[-1].float()).mean() for f in fake) / len(fake)
    feature = sum(
        (a.float().detach() - b.float()).abs().mean() / a.float().detach().abs().mean()
        for r, f in zip(real, fake, strict=True)
        for a, b in zip(r[:-1], f[:-1], strict=True)
    )
    return verdict, feature / sum(len(r) - 1 for r in real)

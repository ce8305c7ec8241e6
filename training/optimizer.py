"""Muon for the matrices of a network's trunk, AdamW for all else, both fit for capture in a CUDA graph."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

_MOMENTUM = 0.95
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


class Optimizer:
    """One step over all parameters. Muon's steps are scaled to the size of AdamW's, so that both share a rate."""

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        matrices: tuple[str, ...],
        weight_decay: float = 0.01,
        betas: tuple[float, float] = (0.9, 0.98),
    ):
        """matrices: parts of the names of the parameters that go to Muon, if they have two dimensions."""
        by_shape, others = defaultdict(list), []
        for name, parameter in named:
            is_matrix = parameter.ndim == 2 and any(part in name for part in matrices)
            (by_shape[parameter.shape] if is_matrix else others).append(parameter)
        self.groups = list(by_shape.values())
        self.momenta = [torch.zeros(len(group), *group[0].shape, device=group[0].device) for group in self.groups]
        device = others[0].device
        self.rate = torch.zeros((), device=device)
        self.weight_decay = weight_decay
        cuda = device.type == "cuda"
        self.adam = torch.optim.AdamW(
            others, lr=self.rate, betas=betas, weight_decay=weight_decay, capturable=cuda, fused=True
        )

    def zero_grad(self) -> None:
        for parameter in (*self.adam.param_groups[0]["params"], *(p for group in self.groups for p in group)):
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        self.adam.step()
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            gradient = torch.stack([parameter.grad for parameter in group])
            momentum.lerp_(gradient, 1 - _MOMENTUM)
            update = orthogonal(gradient.lerp(momentum, _MOMENTUM))
            size = 0.2 * max(update.shape[1:]) ** 0.5
            for parameter, change in zip(group, update, strict=True):
                parameter.mul_(1 - self.rate * self.weight_decay)
                parameter.sub_(change * (self.rate * size))


def orthogonal(x: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly, by five Newton-Schulz steps: [N, rows, columns]."""
    a, b, c = _NEWTON_SCHULZ
    wide = x.shape[1] <= x.shape[2]
    y = (x if wide else x.mT).bfloat16()
    y = y / (y.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = y @ y.mT
        y = a * y + (b * gram + c * gram @ gram) @ y
    return (y if wide else y.mT).float()

"""Logarithm and exponential that give the same float32 bits everywhere: in torch, in Triton, on the CPU and the GPU.

A token is chosen by comparing floats, so two backends agree on every token only if the floats are the same. Library
functions differ in their last bit; these are float32 sums, products and fused multiply-adds, in an order that
`kernels.py` repeats. The polynomials are minimax fits of relative error; for noise that is plenty.
"""

import torch
from torch import Tensor

LN2 = 0.6931471805599453
# log(1 + f) = f * P(f) for sqrt(1/2) - 1 <= f <= sqrt(2) - 1; relative error 7.4e-6. Highest power first.
LOG_COEFFICIENTS = (
    -0.1429191380739212,
    0.2205590307712555,
    -0.2540329098701477,
    0.3325802683830261,
    -0.4999021589756012,
    1.000004529953003,
)
# exp(r) for |r| <= log(2) / 2; relative error 7.5e-8. Highest power first.
EXP_COEFFICIENTS = (
    0.008297652006149292,
    0.04191538318991661,
    0.16667574644088745,
    0.49998894333839417,
    0.9999997019767761,
    1.0000001192092896,
)
SQRT_HALF_BITS = 0x3F3504F3  # float32 bits of sqrt(1/2)
EXP_FLOOR = -80.0  # exp of less is taken to be that of this: a share of 2e-35 is never drawn nor counted
ROUNDER = 1.5 * 2.0**23  # added to a small float32, rounds it to a whole number, held in the sum's lowest bits


def log(x: Tensor) -> Tensor:
    """Natural logarithm of positive, normal float32 numbers."""
    bits = x.view(torch.int32)
    exponent = (bits - SQRT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).view(torch.float32) - 1.0
    return fma(exponent.float(), LN2, f * _horner(f, LOG_COEFFICIENTS))


def negative_log_of_rest(v: Tensor) -> Tensor:
    """-log(1 - v) of float32 numbers between 0 and 1; accurate also where 1 - v is not."""
    return torch.where(v < 0.25, v * _horner(-v, LOG_COEFFICIENTS), -log(1.0 - v))


def exp(x: Tensor) -> Tensor:
    """Exponential of float32 numbers <= 0, at least that of EXP_FLOOR."""
    x = x.clamp(min=EXP_FLOOR)
    shifted = fma(x, 1 / LN2, ROUNDER)
    remainder = fma(shifted - ROUNDER, -LN2, x)
    power = shifted.view(torch.int32) << 23
    return (_horner(remainder, EXP_COEFFICIENTS).view(torch.int32) + power).view(torch.float32)


def fma(x: Tensor, factor: Tensor | float, addend: Tensor | float) -> Tensor:
    """x * factor + addend with one rounding. A product of two float32 is exact in float64."""
    factor, addend = (
        value.double() if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float32).double().item()
        for value in (factor, addend)
    )
    return (x.double() * factor + addend).float()


def _horner(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    total = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = fma(total, x, coefficient)
    return total

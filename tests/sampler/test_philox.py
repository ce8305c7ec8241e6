"""Philox against its published test vectors, and the noise made from it."""

import pytest
import torch

from omnitts.sampler import POSITION_STREAM, TOKEN_STREAM, gumbel, philox4x32
from omnitts.sampler.philox import uniform


def words(*values: int) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=torch.int64) for value in values]


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter, key, expected):
    assert [int(word) for word in philox4x32(tuple(words(*key)), tuple(words(*counter)))] == list(expected)


def draws(seed=7, step=3, cells=1000, indices=64, stream=TOKEN_STREAM) -> torch.Tensor:
    cell, index = torch.arange(cells)[:, None], torch.arange(indices)
    return gumbel(torch.tensor(seed), torch.tensor(step), cell, index, stream)


def test_noise_does_not_depend_on_its_neighbours():
    whole = draws()
    assert torch.equal(whole[17:18, 5:6], gumbel(*words(7, 3), torch.tensor([[17]]), torch.tensor([[5]]), TOKEN_STREAM))
    assert torch.equal(whole[:333], draws(cells=333))
    assert torch.equal(whole[:, :13], draws(indices=13))


@pytest.mark.parametrize("apart", [1, 128, 256, 512, 1024])
def test_noise_of_tokens_that_share_random_words_is_independent(apart):
    whole = draws(cells=60, indices=2048)
    pairs = torch.stack([whole[:, :-apart].flatten(), whole[:, apart:].flatten()])
    assert (pairs[0] != pairs[1]).double().mean() > 0.999
    assert abs(torch.corrcoef(pairs)[0, 1]) < 0.015
    assert abs(torch.corrcoef((pairs * 2**12).frac())[0, 1]) < 0.015  # the low bits


def test_noise_differs_by_each_coordinate():
    whole = draws()
    others = [
        draws(seed=8),
        draws(seed=7 + (1 << 40)),
        draws(step=4),
        draws(stream=POSITION_STREAM),
        whole.roll(1, 0),
        whole.roll(1, 1),
    ]
    for other in others:
        assert (whole != other).double().mean() > 0.999
        correlation = torch.corrcoef(torch.stack([whole.flatten(), other.flatten()]))[0, 1]
        assert abs(correlation) < 0.02


def test_uniform_is_open_and_even():
    cell, index = torch.arange(2000)[:, None], torch.arange(128)
    u = uniform(torch.tensor(1), torch.tensor(0), cell, index, TOKEN_STREAM)
    assert u.min() > 0 and u.max() < 1
    assert torch.equal(u, u.float().double())  # exact in float32
    counts = torch.histc(u.float(), 64, 0, 1)
    expected = u.numel() / 64
    assert ((counts - expected) ** 2 / expected).sum() < 130  # chi-square, 63 degrees of freedom, p = 1e-6


def test_gumbel_moments():
    noise = draws(cells=4000).double()
    assert noise.dtype == torch.float64 and draws().dtype == torch.float32
    assert abs(noise.mean() - 0.5772157) < 0.01
    assert abs(noise.var() - torch.pi**2 / 6) < 0.03

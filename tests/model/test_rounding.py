"""Convolutions of rounded lengths: the same numbers as of the exact ones."""

import pytest
import torch
from torch import nn

from omnitts.model.rounding import lengthened, round_lengths, rounded_up


@pytest.mark.parametrize("steps", [1, 2, 7, 8, 9, 100, 129, 1023])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 7, "padding": 27, "dilation": 9},
        {"kernel_size": 10, "stride": 5, "padding": 5},
        {"kernel_size": 128, "padding": 64, "groups": 2},
        {"kernel_size": 1},
    ],
)
def test_a_longer_convolution_is_the_exact_one_and_more(steps, options):
    torch.manual_seed(0)
    conv, x = nn.Conv1d(4, 6, **options), torch.randn(2, 4, steps)
    with torch.inference_mode():
        expected = conv(x)
        torch.testing.assert_close(lengthened(conv, conv.forward, x), expected)
        round_lengths(conv)
        assert torch.equal(conv(x), expected)  # on a CPU nothing changes


def test_lengths_are_few_and_little_longer():
    sizes = {rounded_up(steps) for steps in range(75 * 960, 200 * 960)}
    assert len(sizes) <= 7
    assert all(steps <= rounded_up(steps) < 1.25 * steps + 1 for steps in range(1, 3000))

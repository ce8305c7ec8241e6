"""A few of `tests.fuzz`'s mutations."""

from tests.fuzz import fuzz


def test_whatever_is_in_a_manifest_a_command_ends_as_it_should():
    codes = fuzz(300, seed=1)
    assert codes[0] > 10 and codes[2] > 100

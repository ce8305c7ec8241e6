import os

import pytest

from omnitts.files import atomic_path


def test_the_file_appears_when_the_block_ends(tmp_path):
    path = tmp_path / "a.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path
        assert temporary.name.startswith(".a.txt.")
        assert not path.exists()
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file_and_no_other(tmp_path, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(error), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_block_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a.txt"):
        pass
    assert os.listdir(tmp_path) == []

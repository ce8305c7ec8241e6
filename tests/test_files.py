import os

import pytest

from omnitts.errors import InputError
from omnitts.files import atomic_path, check_folder, open_alone


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


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError) as error, atomic_path(tmp_path / "folder") as temporary:
        temporary.write_text("new")
    assert error.value.filename == str(tmp_path / "folder") and error.value.filename2 is None
    with pytest.raises(FileNotFoundError) as error, atomic_path(tmp_path / "none" / "a.txt") as temporary:
        temporary.write_text("new")
    assert error.value.filename == str(tmp_path / "none" / "a.txt")
    assert os.listdir(tmp_path) == ["folder"]


def test_checking_a_folder_makes_it_and_touches_nothing_in_it(tmp_path):
    check_folder(tmp_path / "a" / "b", "--out")
    (tmp_path / "a" / "b" / "omnitts-probe").write_text("mine")
    check_folder(tmp_path / "a" / "b", "--out")
    assert os.listdir(tmp_path / "a" / "b") == ["omnitts-probe"]
    with pytest.raises(InputError, match=r"--out: .*omnitts-probe is a file: name a folder"):
        check_folder(tmp_path / "a" / "b" / "omnitts-probe", "--out")


def test_a_file_is_opened_by_one_at_a_time(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with open_alone(path, "--out") as file:
        file.write("first")
        file.flush()
        with pytest.raises(InputError, match="--out: another run is writing into"), open_alone(path, "--out"):
            pass
        assert path.read_text() == "oldfirst"
    with open_alone(path, "--out") as file:
        file.write(" again")
    assert path.read_text() == "oldfirst again"


def test_what_cannot_be_opened_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "none" / "a.txt")
    for path in (tmp_path, tmp_path / "link"):
        with pytest.raises(InputError, match="--out: cannot write"), open_alone(path, "--out"):
            pass

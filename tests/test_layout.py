import pytest

from omnitts.errors import InputError
from omnitts.layout import Layout, read_layout


def test_flat_files_lie_side_by_side():
    assert read_layout("flat") == Layout()
    assert Layout().stem("a.b") == "a.b"


def test_nested_folders_are_the_same_in_every_version():
    assert [read_layout(f"nested:{n}").stem("greeting") for n in (1, 2, 4)] == [
        "41/greeting",
        "41/15/greeting",
        "41/15/62/35/greeting",
    ]
    assert str(read_layout("nested:2")) == "nested:2" and str(Layout()) == "flat"


def test_nested_folders_fill_evenly():
    folders = [Layout(1).stem(f"{number:06d}").split("/")[0] for number in range(25_600)]
    counts = [folders.count(folder) for folder in set(folders)]
    assert len(counts) == 256 and min(counts) > 50 and max(counts) < 150


@pytest.mark.parametrize("text", ["", "nested", "nested:0", "nested:5", "nested:2:2", "deep"])
def test_anything_else_is_refused(text):
    with pytest.raises(InputError, match=r"--layout: .* wanted flat, or nested:N"):
        read_layout(text)

"""The choice of a batch's size, without the card that it is measured on."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from omnitts import knee


def test_the_knee_is_the_smallest_size_near_the_best():
    assert knee.knee((1000, 2000, 4000, 8000), (2.0, 3.0, 5.0, 9.95)) == 4000
    assert knee.knee((1000, 2000), (1.0, 2.0)) == 1000
    assert knee.knee((1000,), (7.0,)) == 1000


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """The sizes that were measured; the cache is a folder of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(knee, "_key", lambda engine: engine.name)
    calls = []
    monkeypatch.setattr(knee, "_measured", lambda engine: calls.append(engine.name) or 4096 * len(calls))
    return calls


def test_it_is_measured_once_for_each_card(measured):
    one, other = SimpleNamespace(name="one"), SimpleNamespace(name="other")
    assert [knee.best_positions(engine) for engine in (one, other, one, other)] == [4096, 8192, 4096, 8192]
    assert measured == ["one", "other"]


@pytest.mark.parametrize("content", ["", "[1]", '{"one": "many"}', '{"one": 0}', "\udce9"])
def test_a_spoilt_cache_is_made_anew(measured, content):
    path = knee.cache_file()
    path.parent.mkdir(parents=True)
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert knee.best_positions(SimpleNamespace(name="one")) == 4096
    assert json.loads(path.read_text(encoding="utf-8"))["one"] == 4096
    assert not list(path.parent.glob("*.part"))


def test_a_cache_that_cannot_be_written_costs_nothing(measured, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert knee.best_positions(SimpleNamespace(name="one")) == 4096

"""Work spread over Ray's actors: the files of a single process, whatever becomes of an actor."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnitts import fleet
from omnitts.errors import InputError
from omnitts.fleet import Bundle, Load, bundles, launch, seconds_of
from omnitts.manifest import read_utterances
from omnitts.model.checkpoint import open_checkpoint
from omnitts.prepare import WINDOW
from omnitts.recipe import Recipe

ROOT = Path(__file__).parent.parent


@given(st.lists(st.integers(1, 30), min_size=1, max_size=200), st.integers(1, 100), st.integers(1, 5))
def test_bundles_hold_every_utterance_once_and_little_more_than_asked(durations, seconds, workers):
    utterances = read_utterances([{"text": "Hi.", "duration": d} for d in durations], recipe=Recipe())
    made = list(bundles(utterances, seconds, workers))
    assert sorted(u.id for bundle in made for u in bundle.utterances) == sorted(u.id for u in utterances)
    for bundle in made:
        assert sum(map(seconds_of, bundle.utterances[:-1])) < seconds


def test_windows_are_cut_where_they_end():
    utterances = read_utterances([{"text": "Hi.", "duration": 1}] * (WINDOW + 3), recipe=Recipe())
    made = list(bundles(utterances, 1e9, 1))
    assert sum(len(bundle.utterances) for bundle in made) == WINDOW + 3


def test_without_ray_one_line_says_so(monkeypatch, checkpoint_dir):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"--engine: needs Ray: pip install ray, or the extra ray"):
        launch(Load(None, "cpu", "auto", True, False), open_checkpoint(checkpoint_dir), 1, None)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "nowhere.invalid:6379", "a:99999"])
def test_a_cluster_that_does_not_answer_is_known_at_once(address, checkpoint_dir):
    pytest.importorskip("ray")
    start = time.monotonic()
    with pytest.raises(InputError, match="--ray-address: no cluster answers at "):
        launch(Load(None, "cpu", "auto", True, False), open_checkpoint(checkpoint_dir), 1, address)
    assert time.monotonic() - start < 30


def test_a_bundle_that_is_lost_too_often_goes_one_by_one_and_then_fails(monkeypatch):
    ray = pytest.importorskip("ray")
    utterances = read_utterances([{"text": "Hi."}, {"text": "Ho."}], recipe=Recipe())
    made = fleet.Fleet(None, None, None, [])

    def lost(call):
        raise ray.exceptions.RayActorError()

    monkeypatch.setattr(ray, "wait", lambda calls, num_returns: (calls[:1], calls[1:]))
    monkeypatch.setattr(ray, "get", lost)
    waiting, results = [Bundle(utterances)], []
    queue = fleet.deque(waiting)
    calls = 0
    while queue:
        bundle = queue.popleft()
        made._busy[calls] = bundle, None
        calls += 1
        results += made._next(queue)[1]
    assert calls == 3 * fleet.TRIES and sorted(speech.id for speech in results) == [u.id for u in utterances]
    assert all("was lost 3 times" in speech.error for speech in results)


def synth(folder: Path, manifest: Path, checkpoint: Path, *options: object) -> subprocess.Popen:
    command = ["synth", manifest, "--out", folder, "--model", checkpoint, "--set", "num_step=4", *options]
    return subprocess.Popen([sys.executable, "-m", "omnitts", *map(str, command)], cwd=ROOT, stderr=subprocess.PIPE)


def actors() -> list[int]:
    """Processes of this machine that are Ray's actors of ours."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::Worker"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
def test_the_files_are_those_of_one_process_though_an_actor_is_killed(tmp_path, checkpoint_dir):
    pytest.importorskip("ray")
    manifest = tmp_path / "lines.jsonl"
    records = [{"id": f"{i:03d}", "text": f"This is line {i}, " * (1 + i % 5) + "so."} for i in range(60)]
    manifest.write_text("".join(json.dumps(record) + "\n" for record in records))
    with synth(tmp_path / "local", manifest, checkpoint_dir) as alone:
        assert alone.wait(120) == 0
    with synth(tmp_path / "ray", manifest, checkpoint_dir, "--engine", "ray", "--workers", 2) as spread:
        end = time.monotonic() + 120
        results = tmp_path / "ray" / "results.jsonl"
        while not (results.exists() and results.stat().st_size) and spread.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.02)
        victims = actors()
        if victims and spread.poll() is None:
            os.kill(victims[0], signal.SIGKILL)
        said = spread.communicate(timeout=180)[1].decode()
    assert spread.returncode == 0, said
    assert "Traceback" not in said
    lines = [json.loads(line) for line in results.read_text().splitlines()]
    assert sorted(line["id"] for line in lines) == [record["id"] for record in records]
    for record in records:
        name = f"{record['id']}.wav"
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes()

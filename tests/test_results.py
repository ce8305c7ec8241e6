"""results.jsonl: what a later run reads from it, whatever became of the one that wrote it."""

import json
from dataclasses import replace

import pytest

from omnitts.files import open_alone, sweep
from omnitts.manifest import read_utterances
from omnitts.recipe import Recipe
from omnitts.results import (
    content_key,
    cut_to_whole_lines,
    line_key,
    part_name,
    read_results,
    reference_digest,
    results_files,
)


def utterance(**fields):
    (made,) = read_utterances([{"id": "a", "text": "Hello."} | fields], recipe=fields.pop("run", None) or Recipe())
    return made


def test_a_key_follows_what_the_audio_follows_from():
    key = line_key(utterance(), "model")
    assert key == line_key(utterance(), "model") == line_key(replace(utterance(), id="b", line=7), "model")
    assert int(key, 16) < 2**64 and len(key) == 16
    changed = [
        *({"text": "Hello!"}, {"language": "en"}, {"instruct": "female"}, {"duration": 2}, {"speed": 1.5}),
        *({"seed": 3}, {"recipe": {"num_step": 8}}),
    ]
    keys = {line_key(utterance(**fields), "model") for fields in changed} | {line_key(utterance(), "other"), key}
    assert len(keys) == len(changed) + 2


def test_a_recording_counts_by_its_content(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"one")
    (tmp_path / "b.wav").write_bytes(b"one")
    (tmp_path / "c.wav").write_bytes(b"two")
    cloned = replace(utterance(), ref_text="So.")
    a, b, c = (replace(cloned, ref_audio=str(tmp_path / name)) for name in ("a.wav", "b.wav", "c.wav"))
    assert line_key(a, "m") == line_key(b, "m") != line_key(c, "m")
    assert reference_digest(str(tmp_path / "none")) != reference_digest(str(tmp_path / "nothing"))
    assert content_key(a) == content_key(b) != content_key(c)


def write(path, *lines) -> None:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))


def line(name, key="0" * 15 + "1", status="ok"):
    return {"id": name, "key": key, "status": status}


def test_only_names_of_results_are_taken_for_results(tmp_path):
    for name in ("results.jsonl", "results-2-of-3.jsonl", "results-old.jsonl", "results.jsonl.bak", "my-results.jsonl"):
        (tmp_path / name).write_text("")
    (tmp_path / "results-1-of-3.jsonl").mkdir()
    assert [path.name for path in results_files(tmp_path)] == ["results-2-of-3.jsonl", "results.jsonl"]


@pytest.mark.parametrize("cut", range(1, len(json.dumps(line("b"))) + 1))
def test_a_line_that_was_cut_off_is_gone_and_the_others_are_not(tmp_path, cut):
    path = tmp_path / "results.jsonl"
    write(path, line("a"), json.dumps(line("b"))[:cut])
    whole = cut == len(json.dumps(line("b")))
    assert [found["id"] for found in read_results(path)] == (["a", "b"] if whole else ["a"])
    with open_alone(path, "--out") as file:
        cut_to_whole_lines(file)
        file.write(json.dumps(line("c")) + "\n")
    assert [json.loads(text)["id"] for text in path.read_text().splitlines()] == ["a", "c"]


def test_long_and_empty_files_are_cut_too(tmp_path):
    path = tmp_path / "results.jsonl"
    for content, kept in (("", ""), ("x" * 9000, ""), ("x\n" + "y" * 9000, "x\n"), ("x\n", "x\n")):
        path.write_text(content)
        with open_alone(path, "--out") as file:
            cut_to_whole_lines(file)
        assert path.read_text() == kept


def test_names_of_parts():
    assert part_name("results.jsonl", None) == "results.jsonl"
    assert part_name("results.jsonl", (2, 8)) == "results-2-of-8.jsonl"


def test_only_what_nobody_writes_any_more_is_swept(tmp_path):
    import os
    import subprocess
    import sys

    from omnitts.files import _host

    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    (tmp_path / "ab").mkdir()
    dead = [tmp_path / f".a.wav.tmp-{_host()}-{done.pid}", tmp_path / "ab" / f".b.wav.tmp-{_host()}-{done.pid}"]
    alive = [tmp_path / f".c.wav.tmp-{_host()}-{os.getpid()}", tmp_path / f".d.wav.tmp-another-{done.pid}"]
    others = [tmp_path / "e.wav", tmp_path / ".f.tmp-x"]
    for path in (*dead, *alive, *others):
        path.write_text("")
    sweep(tmp_path)
    assert not any(path.exists() for path in dead) and all(path.exists() for path in (*alive, *others))

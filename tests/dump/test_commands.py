"""What all commands of `omnitts dump` share: bad input is told in one line, before anything is written."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from omnitts.dump import load
from omnitts.dump.format import FORMAT
from tests.dump.conftest import make_dump, write

ROOT = Path(__file__).parent.parent.parent


def spoiled(folder: Path) -> dict[str, tuple[Path, str]]:
    """Files that are no dumps, by what is wrong with them, each with what is to be said."""
    whole = write(folder, make_dump("whole")).read_bytes()
    half, empty, text = (folder / name for name in ("half", "empty", "text"))
    half.write_bytes(whole[: len(whole) // 2])
    empty.write_bytes(b"")
    text.write_text("Hello.")
    save_file({"x": np.zeros(1)}, folder / "weights.safetensors")
    save_file({"x": np.zeros(1)}, folder / "newer.safetensors", {"format": FORMAT, "version": "2"})
    shapes = write(folder, replace(make_dump("shapes"), scores=np.zeros((8, 8, 11), np.float16)))
    return {
        "a truncated one": (half, "damaged"),
        "an empty file": (empty, "not a dump, or a damaged one"),
        "a text": (text, "not a dump"),
        "another safetensors file": (folder / "weights.safetensors", "not a dump"),
        "a newer version": (folder / "newer.safetensors", "update omnitts"),
        "shapes that disagree": (shapes, "scores is float16 [8, 8, 11] instead of"),
        "a length that is none": (write(folder, make_dump("odd", engine_seconds=None)), "engine_seconds is None"),
        "a folder": (folder, "a folder, not a dump"),
        "a missing file": (folder / "none", "no such file"),
    }


@pytest.mark.parametrize("command", ["show", "plot", "diff"])
def test_what_is_no_dump_is_told(run, tmp_path, command):
    rest = {"show": [], "plot": ["-o", tmp_path / "out.png"], "diff": [write(tmp_path, make_dump("other"))]}[command]
    for what, (path, wanted) in spoiled(tmp_path).items():
        code, printed, said = run("dump", command, path, *rest)
        assert (code, printed, said.count("\n")) == (2, "", 1), what
        assert wanted in said and str(path) in said, what
    assert not (tmp_path / "out.png").exists()


OUTPUTS = {"plot": "a.png", "report": "a.html", "export": "a.parquet"}


@pytest.mark.parametrize("command", OUTPUTS)
def test_outputs_are_checked_first(run, tmp_path, command):
    (tmp_path / "file").touch()
    source = tmp_path / "nothing"  # which nobody gets to look at
    for out, wanted in (
        (tmp_path / "file" / OUTPUTS[command], "is a file, not a folder"),
        (tmp_path / f".{OUTPUTS[command].partition('.')[2]}", "is an ending without a name"),
        (tmp_path / "a.txt", "does not end in ."),
        (tmp_path / "a", "does not end in ."),
    ):
        code, _, said = run("dump", command, source, "-o", out)
        assert code == 2 and "--out" in said and wanted in said and said.count("\n") == 1
    (tmp_path / OUTPUTS[command]).mkdir()
    code, _, said = run("dump", command, source, "-o", tmp_path / OUTPUTS[command])
    assert code == 2 and "is a folder" in said


@pytest.mark.parametrize("command", ["report", "export"])
def test_folders_without_dumps_are_told(run, tmp_path, command):
    out = tmp_path / OUTPUTS[command]
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for source, wanted in (("empty", "no dumps"), ("none", "no such folder"), ("file", "a file, not a folder")):
        code, _, said = run("dump", command, tmp_path / source, "-o", out)
        assert code == 2 and wanted in said and said.count("\n") == 1 and not out.exists()


def test_every_command_teaches(run):
    assert "omnitts dump report" in run("dump", "--help")[1]
    for command in ("show", "plot", "diff", "report", "export"):
        code, printed, _ = run("dump", command, "--help")
        assert code == 0 and f"omnitts dump {command} " in printed.split("Options:")[0].split("\n", 1)[1]


def test_help_and_show_load_nothing_heavy(tmp_path):
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "omnitts", "dump", "--help"], capture_output=True, cwd=ROOT)
    assert done.returncode == 0 and time.perf_counter() - start < 2  # half a second on an idle machine
    code = (
        "import json, sys, omnitts.cli as c\n"
        "try: c.main(['dump', 'show', sys.argv[1]])\nexcept SystemExit as e: assert not e.code\n"
        "print(json.dumps([m for m in ('torch', 'matplotlib', 'pyarrow', 'soundfile') if m in sys.modules]))"
    )
    command = [sys.executable, "-c", code, write(tmp_path, make_dump())]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1]) == [], done.stderr


def test_dumps_read_back_as_they_were(tmp_path):
    made = make_dump(top=3)
    read = load(write(tmp_path, made))
    assert (read.id, read.pieces, dict(read.recipe)) == (made.id, made.pieces, dict(made.recipe))
    assert (read.top_logprobs == made.top_logprobs).all() and read.scores.dtype == np.float16

"""Options and arguments that name files: what no file can be called is refused by each, and the option named."""

import os
from pathlib import Path

import pytest

from omnitts.errors import InputError
from omnitts.paths import check_path, check_readable

SYNTH = ["synth", "lines.jsonl", "--out", "o"]
PLACES = {
    "MANIFEST": [["check", "PATH"], ["plan", "PATH"], ["synth", "PATH", "--out", "o"], ["bench", "precision", "PATH"]],
    "--recipe": [["check", "lines.jsonl", "--recipe", "PATH"], [*SYNTH, "--recipe", "PATH"]],
    "--voice": [["check", "lines.jsonl", "--voice", "PATH"], [*SYNTH, "--voice", "PATH"]],
    "--out": [["synth", "lines.jsonl", "--out", "PATH"]],
    "--model": [[*SYNTH, "--model", "PATH"], ["doctor", "--model", "PATH"]],
    "--dump-logprobs": [[*SYNTH, "--dump-logprobs", "PATH"]],
    "DIR": [
        ["status", "PATH"],
        ["dump", "report", "PATH", "-o", "r.html"],
        ["dump", "export", "PATH", "-o", "c.parquet"],
    ],
    "NAME|FILE": [["recipes", "show", "PATH"]],
    "REF_AUDIO": [["voice", "create", "PATH", "--text", "So.", "-o", "v.safetensors"]],
    "FILE": [["dump", "show", "PATH"], ["dump", "plot", "PATH", "-o", "p.png"]],
    "A": [["dump", "diff", "PATH", "b"]],
    "B": [["dump", "diff", "a", "PATH"]],
    "--wav": [["dump", "plot", "a", "-o", "p.png", "--wav", "PATH"]],
    "--wavs": [["dump", "report", "a", "-o", "r.html", "--wavs", "PATH"]],
    "--json": [["doctor", "--json", "PATH"], ["bench", "sampler", "--json", "PATH"]],
}


@pytest.mark.parametrize("name", PLACES)
def test_every_option_refuses_what_cannot_be(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    Path("lines.jsonl").write_text('{"text": "Hi."}\n')
    os.symlink("loop", "loop")
    for path, told in (
        ("", "is blank"),
        ("a\0b", "has a NUL"),
        ("n" * 300, "is 300 bytes long, and a name has room for 255"),
        (f"none/{'é' * 128}/x", "is 256 bytes long"),
        ("lines.jsonl/x", "lines.jsonl is a file, not a folder: no way to lines.jsonl/x"),
        ("loop", "no way to loop (Too many levels of symbolic links)"),
        ("x/" * 3000, "File name too long"),
    ):
        for command in PLACES[name]:
            code, printed, said = run(*(path if word == "PATH" else word for word in command))
            assert (code, printed, said.count("\n")) == (2, "", 1), (command, path)
            assert said.startswith(f"error: {name}: ") and told in said, (command, path)
    assert sorted(os.listdir()) == ["lines.jsonl", "loop"]


def test_where_one_may_not_look(tmp_path, monkeypatch):
    def refuse(path, **_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(InputError, match=r"--voice: no way to far/a \(Permission denied\): choose another"):
        check_path("far/a", "--voice")


def test_what_one_may_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    check_readable(str(tmp_path / "none"), "--voice")
    with pytest.raises(InputError, match=rf"--voice: {tmp_path} may not be read"):
        check_readable(str(tmp_path), "--voice")


@pytest.mark.parametrize(
    "path", ["a", "-", ".", "../x", "é" * 127, "no/such/folder", "a b", "k2-fsa/OmniVoice", "x" * 255]
)
def test_what_can_be_is_left_to_the_command(path):
    check_path(path, "--out")
    check_readable(path, "--out")

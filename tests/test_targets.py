"""What -o and --json may take the place of, and how a file gets there."""

import json
import os
import stat
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from omnitts.errors import InputError
from omnitts.inputs import Inputs
from omnitts.targets import Kind, Target
from tests.dump.conftest import make_dump, write

ROOT = Path(__file__).parent.parent


def is_marked(path: Path) -> bool:
    return path.read_text().startswith("mine")


KIND = Kind("a note", (".txt",), is_marked)


def put(path, text="mine, new", *, inputs=None, replace=False):
    target = Target(str(path), "--out", KIND, replace)
    target.check()
    target.check_free(inputs or Inputs())
    with target.writing() as temporary:
        temporary.write_text(text)


def refused(path, **options) -> str:
    before = {each: each.lstat().st_mtime_ns for each in Path(path).parent.rglob("*")} if "\0" not in str(path) else {}
    with pytest.raises(InputError) as caught:
        put(path, **options)
    assert caught.value.field == "--out" and all(each.lstat().st_mtime_ns == at for each, at in before.items())
    return caught.value.message


def test_missing_folders_are_made_and_nothing_else(tmp_path):
    put(tmp_path / "x" / "y" / "a.txt")
    assert (tmp_path / "x" / "y" / "a.txt").read_text() == "mine, new"
    assert [each.name for each in tmp_path.rglob("*")] == ["x", "y", "a.txt"]


def test_an_error_leaves_no_folder_behind(tmp_path):
    target = Target(str(tmp_path / "x" / "y" / "a.txt"), "--out", KIND)
    target.check()
    assert not (tmp_path / "x").exists()
    with pytest.raises(KeyboardInterrupt), target.writing() as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_what_omnitts_wrote_is_replaced_and_what_is_empty(tmp_path):
    for old in ("mine, old", ""):
        (tmp_path / "a.txt").write_text(old)
        put(tmp_path / "a.txt")
        assert (tmp_path / "a.txt").read_text() == "mine, new"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("content", [b"hers", b"\xff\xfe", b" "])
def test_what_it_did_not_write_is_not(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    told = refused(tmp_path / "a.txt")
    assert "nothing in it says that omnitts wrote it as a note: " in told and "--replace-files" in told
    assert (tmp_path / "a.txt").read_bytes() == content
    put(tmp_path / "a.txt", replace=True)
    assert (tmp_path / "a.txt").read_text() == "mine, new"


def test_inputs_are_not_replaced_by_any_name(tmp_path):
    """Not when they are empty, nor with --replace-files."""
    (tmp_path / "in.txt").write_text("")
    os.link(tmp_path / "in.txt", tmp_path / "hard.txt")
    (tmp_path / "soft.txt").symlink_to("in.txt")
    inputs = Inputs()
    inputs.add(tmp_path / "in.txt", "the manifest")
    for name in ("in.txt", "hard.txt", "soft.txt", "IN.TXT", "x/../in.txt"):
        for replace in (False, True):
            told = refused(tmp_path / name, inputs=inputs, replace=replace)
            assert told.startswith(f"{tmp_path / name} is the manifest {tmp_path / 'in.txt'}"), name


def test_links_stay_and_what_they_lead_to_is_written(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "old.txt").write_text("mine, old")
    (tmp_path / "link.txt").symlink_to("far/old.txt")
    (tmp_path / "dangling.txt").symlink_to("none/yet/new.txt")
    (tmp_path / "hers.txt").symlink_to("far/hers.txt")
    (tmp_path / "far" / "hers.txt").write_text("hers")
    put(tmp_path / "link.txt")
    put(tmp_path / "dangling.txt")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "dangling.txt").is_symlink()
    assert (tmp_path / "far" / "old.txt").read_text() == (tmp_path / "none/yet/new.txt").read_text() == "mine, new"
    assert "--replace-files" in refused(tmp_path / "hers.txt")


def test_paths_that_cannot_be_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "to-folder.txt").symlink_to("folder.txt")
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    (tmp_path / "to-file.txt").symlink_to("file/a.txt")
    for name, told in (
        ("a", "does not end in .txt, as a note does"),
        ("a.txt.bak", "does not end in .txt"),
        (".txt", f"is an ending without a name: write {tmp_path}/NAME.txt"),
        (".TXT", "is an ending without a name"),
        ("folder.txt", "is a folder"),
        ("to-folder.txt", "is a folder"),
        ("a.txt/", "is a folder"),
        ("file/a.txt", f"{tmp_path}/file is a file, not a folder"),
        ("file/x/y/a.txt", f"{tmp_path}/file is a file, not a folder"),
        ("to-file.txt", "is a file, not a folder"),
        ("loop.txt", "Too many levels of symbolic links"),
        ("n" * 300 + ".txt", "is 304 bytes long, and a name has room for 255"),
        ("none/" + "é" * 130 + "/a.txt", "is 260 bytes long"),
        ("a\0.txt", "has a NUL"),
        ("\ud800.txt", "has half a surrogate pair"),
    ):
        assert told in refused(f"{tmp_path}/{name}"), name
    assert "is blank" in refused(" ")


def test_long_names_that_can_be_are_written(tmp_path):
    for name in ("n" * 251 + ".txt", "é" * 125 + ".txt"):
        put(tmp_path / name)
    assert len(os.listdir(tmp_path)) == 2


def test_a_folder_without_permission_is_refused(tmp_path, monkeypatch):
    import tempfile

    def no_place(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", no_place)
    told = refused(tmp_path / "x" / "a.txt")
    assert told == f"cannot write to {tmp_path}: Permission denied; choose another folder"


def test_a_foreign_file_that_came_meanwhile_stays(tmp_path):
    target = Target(str(tmp_path / "a.txt"), "--out", KIND)
    target.check_free(Inputs())
    with pytest.raises(FileExistsError) as caught, target.writing() as temporary:
        temporary.write_text("mine")
        (tmp_path / "a.txt").write_text("hers")
    assert (tmp_path / "a.txt").read_text() == "hers" and os.listdir(tmp_path) == ["a.txt"]
    assert caught.value.filename == str(tmp_path / "a.txt") and "--replace-files" in caught.value.strerror


def test_one_of_ours_that_came_meanwhile_is_replaced(tmp_path):
    target = Target(str(tmp_path / "a.txt"), "--out", KIND)
    with target.writing() as temporary:
        temporary.write_text("mine, later")
        (tmp_path / "a.txt").write_text("mine, sooner")
    assert (tmp_path / "a.txt").read_text() == "mine, later" and os.listdir(tmp_path) == ["a.txt"]


def test_a_file_system_without_hard_links_will_do(tmp_path, monkeypatch):
    def no_links(source, to):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    put(tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "mine, new" and os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_devices_and_pipes_are_written_into(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "a.txt").read_text()))
    reader.start()
    put(tmp_path / "a.txt")
    reader.join()
    assert read == ["mine, new"] and stat.S_ISFIFO((tmp_path / "a.txt").stat().st_mode)
    any_name = Kind("a note", (), is_marked)
    with Target("/dev/null", "--out", any_name).writing() as temporary:
        temporary.write_text("gone")
    assert not os.path.isfile("/dev/null")


# ---- The commands ----


@dataclass
class Case:
    """A command but for its output, the name of that, and what it reads."""

    arguments: list
    name: str
    reads: Path
    option: str = "-o"


@pytest.fixture
def cases(tmp_path, vectors, checkpoint_dir, monkeypatch) -> dict[str, Case]:
    import soundfile

    from omnitts import doctor

    monkeypatch.setattr(doctor, "examine", lambda model, device: iter([doctor.Section("versions", ["none"])]))
    recording = tmp_path / "reference.wav"
    soundfile.write(recording, vectors["codec/encode/0/audio"].numpy(), 24000)
    (tmp_path / "dumps").mkdir()
    dump = write(tmp_path / "dumps", make_dump())
    model = ["--model", checkpoint_dir, "--device", "cpu"]
    return {
        "voice": Case(["voice", "create", recording, "--text", "So.", *model], "v.safetensors", recording),
        "plot": Case(["dump", "plot", dump], "p.png", dump),
        "svg": Case(["dump", "plot", dump], "p.svg", dump),
        "report": Case(["dump", "report", dump.parent], "r.html", dump),
        "export": Case(["dump", "export", dump.parent], "c.parquet", dump),
        "json": Case(["doctor"], "d.json", None, "--json"),
    }


NAMES = ["voice", "plot", "svg", "report", "export", "json"]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_knows_its_own_files_and_no_others(run, cases, tmp_path, name):
    case = cases[name]
    out = tmp_path / "deep" / "er" / case.name
    assert run(*case.arguments, case.option, out)[0] == 0
    for _ in range(2):  # made again
        assert run(*case.arguments, case.option, out)[0] == 0
    made = out.read_bytes()
    other = cases["report" if name != "report" else "plot"]
    for content in (b'{"some": "thing"}', made[: len(made) // 3][::-1], cases["voice"].arguments[2].read_bytes()):
        out.write_bytes(content)
        code, printed, said = run(*case.arguments, case.option, out)
        option = "--json" if case.option == "--json" else "--out"
        assert (code, printed, said.count("\n")) == (2, "", 1) and said.startswith(f"error: {option}: {out} is there")
        assert out.read_bytes() == content
    other_out = out.with_name(other.name)
    assert run(*other.arguments, other.option, other_out)[0] == 0
    out.write_bytes(other_out.read_bytes())
    assert run(*case.arguments, case.option, out)[0] == 2
    assert run(*case.arguments, case.option, out, "--replace-files")[0] == 0
    assert run(*case.arguments, case.option, out)[0] == 0


@pytest.mark.parametrize("name", [name for name in NAMES if name != "json"])
@pytest.mark.parametrize("link", ["hard", "soft"])
def test_no_command_replaces_what_it_reads(run, cases, tmp_path, name, link):
    case = cases[name]
    out, before = tmp_path / case.name, case.reads.read_bytes()
    os.link(case.reads, out) if link == "hard" else out.symlink_to(case.reads)
    for more in ([], ["--replace-files"]):
        code, printed, said = run(*case.arguments, case.option, out, *more)
        assert (code, printed, said.count("\n")) == (2, "", 1)
        assert str(out) in said and str(case.reads) in said
    assert case.reads.read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_every_command_refuses_the_same_paths(run, cases, tmp_path, name):
    case = cases[name]
    option = "--json" if case.option == "--json" else "--out"
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / case.name).mkdir(parents=True)
    for out, told in (
        (f"{'n' * 300}{Path(case.name).suffix}", "bytes long"),
        (tmp_path / "file" / case.name, "is a file, not a folder"),
        (tmp_path / "folder" / case.name, "is a folder"),
        ("", "is blank"),
        (f"a\0{case.name}", "has a NUL"),
    ):
        code, printed, said = run(*case.arguments, case.option, out)
        assert (code, printed, said.count("\n")) == (2, "", 1), out
        assert said.startswith(f"error: {option}: ") and told in said
    if case.option == "-o":
        code, _, said = run(*case.arguments, "-o", tmp_path / Path(case.name).suffix)
        assert code == 2 and "is an ending without a name" in said
    bad = [*case.arguments[:2], *(tmp_path / "none" if isinstance(each, Path) else each for each in case.arguments[2:])]
    if name not in ("json", "voice"):
        assert run(*bad, case.option, tmp_path / "new" / case.name)[0] == 2 and not (tmp_path / "new").exists()


def test_json_of_another_command_or_of_a_run_is_foreign(run, cases, tmp_path):
    case = cases["json"]
    for content in ({"omnitts": "0.1.0", "command": "bench step"}, {"versions": {}, "written": 3}, ["omnitts"]):
        (tmp_path / "d.json").write_text(json.dumps(content))
        assert run(*case.arguments, "--json", tmp_path / "d.json")[0] == 2
    (tmp_path / "d.json").write_text("[" * 100_000)
    assert run(*case.arguments, "--json", tmp_path / "d.json")[0] == 2
    assert run(*case.arguments, "--json", tmp_path / "new.json")[0] == 0
    assert json.loads((tmp_path / "new.json").read_text())["command"] == "doctor"


def test_json_goes_into_devices(run, cases):
    assert run(*cases["json"].arguments, "--json", "/dev/null")[0] == 0
    assert not os.path.isfile("/dev/null")


def test_json_leaves_the_manifest_and_the_model_alone(run, tmp_path, checkpoint_dir):
    import shutil

    manifest = tmp_path / "lines.jsonl"
    manifest.write_text('{"text": "Hi."}\n')
    model = shutil.copytree(checkpoint_dir, tmp_path / "model")
    options = ["--model", model, "--device", "cpu", "--dtype", "bfloat16", "--against", "float32", "--replace-files"]
    for out, what in ((manifest, "the manifest"), (model / "config.json", "a file of the model,")):
        before = out.read_bytes()
        code, _, said = run("bench", "precision", manifest, *options, "--json", out)
        assert code == 2 and said.startswith(f"error: --json: {out} is {what} {out}") and out.read_bytes() == before
    code, _, said = run("doctor", "--model", model, "--json", model / "config.json")
    assert code == 2 and "is a file of the model" in said


@pytest.mark.skipif(os.name != "posix", reason="redirects in a shell's way")
@pytest.mark.parametrize("descriptor", [0, 1, 2])
def test_what_the_shell_redirects_is_no_output(tmp_path, descriptor):
    """Empty or not, replaced or not: the lines that go there, or come from there, would be lost."""
    name = ("standard input", "standard output", "standard error")[descriptor]
    path = tmp_path / "d.json"
    path.write_text("")
    for more in ([], ["--replace-files"]):
        with open(path, "r+") as file, open(tmp_path / "said", "w+") as said:
            streams = [subprocess.DEVNULL, subprocess.DEVNULL, said]
            streams[descriptor] = file
            command = [sys.executable, "-m", "omnitts", "doctor", "--json", path, *more]
            code = subprocess.run(command, cwd=ROOT, stdin=streams[0], stdout=streams[1], stderr=streams[2]).returncode
        told = path.read_text() if descriptor == 2 else (tmp_path / "said").read_text()
        assert code == 2 and told.startswith(f"error: --json: {path} is the file that is {name}: choose another name")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_reader_of_a_pipe_may_go_away(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    reader = threading.Thread(target=lambda: os.close(os.open(tmp_path / "a.txt", os.O_RDONLY)))
    reader.start()
    put(tmp_path / "a.txt", "mine" * (1 << 20))
    reader.join()

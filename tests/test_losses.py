"""Nobody's file is lost: what a run would destroy is refused before it starts, by all commands alike."""

import json
import os
import shutil
from pathlib import Path

import pytest
import soundfile

from omnitts.claims import Claims
from omnitts.losses import same_manifest
from tests.test_cli import FAST, lines_of

WORDS = "The words that are spoken in it."


@pytest.fixture
def folder(tmp_path, recording) -> Path:
    """Recordings of somebody's, anna.wav and ben.wav, in a folder of their own."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("anna", "ben"):
        shutil.copy(recording, folder / f"{name}.wav")
    return folder


def cloned(name: str, of: str, text: str = "Hello.") -> dict:
    return {"id": name, "text": text, "ref_audio": of, "ref_text": WORDS}


def write(path: Path, *records: dict) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def refused(run, checkpoint_dir):
    """That check, plan and synth all refuse a manifest and a folder with one line, and touch nothing."""

    def insist(path: Path, out: Path, *options: object) -> str:
        before = content(out)
        said = set()
        for command in (["check"], ["plan", "--model", checkpoint_dir], ["synth", "--model", checkpoint_dir, *FAST]):
            code, _, err = run(*command, path, "--out", out, *options)
            assert code == 2 and err.count("error: ") == 1, err
            said.add(err.split("error: ")[1])
        assert content(out) == before and len(said) == 1
        return said.pop()

    return insist


def test_a_recording_is_not_written_over(folder, refused):
    path = write(folder / "lines.jsonl", cloned("anna", "anna.wav"), cloned("ben", "ben.wav"))
    for options in ((), ("--replace-files",)):
        said = refused(path, folder, *options)
        assert said.startswith("--out: 2 files that this run reads would be written over: ")
        assert f"{folder / 'anna.wav'} is the recording {folder / 'anna.wav'}" in said


@pytest.mark.parametrize("way", ["hard", "soft", "folder", "case", "form"])
def test_nor_is_it_under_another_name(folder, refused, way, tmp_path):
    name = "take"
    if way == "hard":
        os.link(folder / "anna.wav", folder / "take.wav")
    elif way == "soft":
        (folder / "take.wav").symlink_to("anna.wav")
    elif way == "folder":
        (tmp_path / "other").symlink_to(folder)
        name = "anna"
    elif way == "case":
        name = "Anna"
    else:
        (folder / "anna.wav").rename(folder / "ann\u00e1.wav")
        name = "anna\u0301"
    recording = "ann\u00e1.wav" if way == "form" else "anna.wav"
    path = write(folder / "lines.jsonl", {"id": name, "text": "Hi."}, cloned("b", recording))
    said = refused(path, tmp_path / "other" if way == "folder" else folder, "--replace-files")
    assert "1 file that this run reads would be written over" in said and f"is the recording {folder}" in said


def test_a_refused_line_removes_nobodys_file(folder, run, checkpoint_dir):
    path = write(folder / "lines.jsonl", {"id": "carl", "text": "Hello."}, cloned("ben", "ben.wav", "..."))
    before = content(folder)
    code, _, said = run("synth", path, "--out", folder, "--keep-going", "--model", checkpoint_dir, *FAST)
    assert code == 1 and "1 of 2 written" in said
    assert content(folder) | before == content(folder)


def test_a_refused_line_removes_no_recording_that_an_earlier_run_made(folder, run, refused, checkpoint_dir):
    out = folder / "out"
    path = write(folder / "lines.jsonl", {"id": "ben", "text": "Hello."})
    options = ["--model", checkpoint_dir, *FAST]
    assert run("synth", path, "--out", out, *options)[0] == 0
    write(path, {"id": "ben", "text": "..."}, cloned("carl", "out/ben.wav"))
    code, _, said = run("synth", path, "--out", out, "--keep-going", *options)
    assert code == 2 and "out/ben.wav is the recording" in said and (out / "ben.wav").exists()


@pytest.mark.parametrize("name", ["results.jsonl", "summary.json", "RESULTS.jsonl"])
def test_a_manifest_is_not_written_over(folder, refused, name):
    path = write(folder / name, {"id": "a", "text": "Hi."})
    assert f"{name} is the manifest" in refused(path, folder).replace("results.jsonl is", f"{name} is")
    assert f"{name} is the manifest" in refused(path, folder, "--replace-files").replace(
        "results.jsonl is", f"{name} is"
    )


def test_an_overwriting_run_empties_no_manifest(folder, run, checkpoint_dir):
    path = write(folder / "results.jsonl", {"id": "a", "text": "Hi."})
    for more in ((), ("--overwrite",), ("--overwrite", "--replace-files")):
        code, _, said = run("synth", path, "--out", folder, "--model", checkpoint_dir, *more)
        assert code == 2 and "is the manifest" in said and path.read_text().startswith('{"id": "a", "text"')


def test_a_recipe_and_a_voice_are_not_written_over(folder, run, refused, checkpoint_dir):
    recipe = folder / "a.wav"
    recipe.write_text("num_step: 2\n")
    path = write(folder / "lines.jsonl", {"id": "a", "text": "Hi."})
    assert f"is the recipe {recipe}" in refused(path, folder, "--recipe", recipe)
    write(path, {"id": "a", "text": "Hi.", "recipe": "a.wav"})
    assert f"is the recipe {recipe}" in refused(path, folder)
    voice, odd = folder / "v.safetensors", folder / "v.wav"
    made = ["voice", "create", folder / "anna.wav", "--text", WORDS, "-o", voice, "--model", checkpoint_dir]
    assert run(*made)[0] == 0
    voice.rename(odd)
    write(path, {"id": "v", "text": "Hi."})
    assert f"is the voice {odd}" in refused(path, folder, "--voice", odd)
    write(path, {"id": "v", "text": "Hi."}, {"id": "w", "text": "Hi.", "voice": "v.wav"})
    assert f"is the voice {odd}" in refused(path, folder)


# ---- Files that no line of results.jsonl tells of ----


def test_somebodys_files_are_counted_and_named(folder, run, refused, checkpoint_dir):
    path = write(folder / "lines.jsonl", *({"id": name, "text": "Hi."} for name in ("anna", "ben", "carl")))
    said = refused(path, folder)
    assert said.startswith("--out: 2 files in the way that omnitts did not write: ") and "--replace-files" in said
    assert f"{folder / 'anna.wav'}, {folder / 'ben.wav'}; move them" in said
    code, _, said = run("synth", path, "--out", folder, "--overwrite", "--model", checkpoint_dir, *FAST)
    assert code == 2 and "2 files in the way" in said
    before = content(folder)
    code, _, said = run("synth", path, "--out", folder, "--replace-files", "--model", checkpoint_dir, *FAST)
    assert code == 0 and content(folder)["anna.wav"] != before["anna.wav"]
    assert run("synth", path, "--out", folder, "--overwrite", "--model", checkpoint_dir, *FAST)[0] == 0  # own by now


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.codes.npy", ["--save-codes"]),
        ("a.flac", ["--format", "flac"]),
        ("000000.tar", ["--webdataset", 2]),
        ("000007.tar", ["--webdataset", 2]),
        ("summary.json", []),
        ("results.jsonl", []),
        ("results-1-of-2.jsonl", ["--shard", "1/2"]),
    ],
)
def test_of_all_kinds(folder, refused, name, options):
    (folder / name).write_text('{"text": "somebody\'s"}')
    said = refused(write(folder / "lines.jsonl", {"id": "a", "text": "Hi."}), folder, *options)
    assert "1 file in the way that omnitts did not write" in said and name in said


def test_links_that_lead_nowhere_are_somebodys(folder, refused):
    for name in ("a.wav", "results.jsonl"):
        (folder / name).symlink_to("gone")
    said = refused(write(folder / "lines.jsonl", {"id": "a", "text": "Hi."}), folder)
    assert "2 files in the way" in said and not (folder / "gone").exists()


@pytest.mark.parametrize("soft", [True, False])
@pytest.mark.parametrize("name", ["results.jsonl", "summary.json"])
def test_nothing_is_written_through_a_link_to_somebodys_file(folder, run, refused, checkpoint_dir, name, soft):
    for text in ("", "My notes.\n", '{"id": "'):
        notes = folder / "notes.txt"
        notes.write_text(text)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to("notes.txt") if soft else os.link(notes, folder / name)
        path = write(folder / "lines.jsonl", {"id": "a", "text": "Hi."})
        if soft or text.startswith("My") or name == "results.jsonl":
            assert "in the way that omnitts did not write" in refused(path, folder)
        out = ["--out", folder, "--replace-files", "--model", checkpoint_dir, *FAST]
        assert run("synth", path, *out)[0] == 0 and notes.read_text() == text
        for made in ("a.wav", "results.jsonl", "summary.json"):
            (folder / made).unlink()


def test_dumps_replace_dumps_only(run, manifest, tmp_path, checkpoint_dir):
    path, dumps = manifest({"id": "a", "text": "Hi."}), tmp_path / "dumps"
    common = ["synth", path, "--model", checkpoint_dir, "--dump-logprobs", dumps, *FAST, "--out"]
    assert run(*common, tmp_path / "one")[0] == 0
    assert run(*common, tmp_path / "two")[0] == 0  # over a dump of another folder's run
    (dumps / "a.dump.safetensors").write_bytes(b"somebody's")
    code, _, said = run(*common, tmp_path / "three")
    assert code == 2 and "a.dump.safetensors" in said and "omnitts did not write" in said


def test_codes_that_are_not_wanted_go_only_if_they_are_own(run, manifest, tmp_path, checkpoint_dir):
    path, out = manifest({"id": "a", "text": "Hi."}), tmp_path / "out"
    out.mkdir()
    (out / "a.codes.npy").write_bytes(b"somebody's")
    assert run("synth", path, "--out", out, "--model", checkpoint_dir, *FAST)[0] == 0
    assert (out / "a.codes.npy").read_bytes() == b"somebody's"


def test_a_file_that_comes_meanwhile_costs_its_line_alone(run, manifest, tmp_path, checkpoint_dir, monkeypatch):
    def come_before(self, path, data):
        if path.name == "b.wav":
            path.write_bytes(b"somebody's")
        return put(self, path, data)

    put = Claims.put
    monkeypatch.setattr(Claims, "put", come_before)
    path, out = manifest({"id": "a", "text": "Hi."}, {"id": "b", "text": "Ho."}), tmp_path / "out"
    code, _, said = run("synth", path, "--out", out, "--model", checkpoint_dir, *FAST)
    assert code == 1 and "1 of 2 written" in said
    assert "cannot write b.wav: a file is there that omnitts did not write: move it" in said
    assert (out / "b.wav").read_bytes() == b"somebody's"


def test_an_output_that_somebody_changed_is_somebodys(run, manifest, recording, tmp_path, checkpoint_dir):
    path, out = manifest({"id": "a", "text": "Hi."}), tmp_path / "out"
    common = ["synth", path, "--out", out, "--model", checkpoint_dir, *FAST]
    assert run(*common)[0] == 0
    wave, rate = soundfile.read(out / "a.wav")
    soundfile.write(out / "a.wav", wave[: len(wave) // 2], rate)  # trimmed, in an editor
    trimmed = (out / "a.wav").read_bytes()
    for more in ((), ("--overwrite",)):
        code, _, said = run(*common, *more)
        assert code == 2 and "a.wav (changed since it was written)" in said
    assert (out / "a.wav").read_bytes() == trimmed
    assert run(*common, "--replace-files")[0] == 0 and (out / "a.wav").read_bytes() != trimmed


def test_a_foreign_results_file_may_be_replaced_when_asked(run, manifest, tmp_path, checkpoint_dir):
    path, out = manifest({"id": "a", "text": "Hi."}), tmp_path / "out"
    out.mkdir()
    (out / "results.jsonl").write_text("somebody's\n")
    assert run("synth", path, "--out", out, "--replace-files", "--model", checkpoint_dir, *FAST)[0] == 0
    assert [line["id"] for line in lines_of(out)] == ["a"]


def test_results_that_were_cut_off_in_their_first_line_are_own(run, manifest, tmp_path, checkpoint_dir):
    path, out = manifest({"id": "a", "text": "Hi."}), tmp_path / "out"
    out.mkdir()
    for start in ('{"id": "a", "status": "o', "{", ""):
        (out / "a.wav").unlink(missing_ok=True)
        (out / "results.jsonl").write_text(start)
        assert run("synth", path, "--out", out, "--overwrite", "--model", checkpoint_dir, *FAST)[0] == 0


# ---- Two manifests, one folder ----


@pytest.fixture
def book(tmp_path) -> list[Path]:
    paths = [tmp_path / f"ch{number}.txt" for number in (1, 2)]
    for number, path in enumerate(paths, 1):
        path.write_text(f"Chapter {number}.\nIts words, {number}.\n")
    return paths


def test_lines_of_another_manifest_are_not_replaced(run, refused, book, tmp_path, checkpoint_dir):
    out, options = tmp_path / "book", ["--model", checkpoint_dir, *FAST]
    assert run("synth", book[0], "--out", out, *options)[0] == 0
    said = refused(book[1], out)
    assert said.startswith(
        f"--out: {out} holds 2 lines of {os.path.relpath(book[0])} under ids that {book[1]} has too: "
    )
    assert f"000001, 000002; choose a folder for each, such as {out / 'ch2'}" in said and '"ch2-000001"' in said
    before = content(out)
    assert run("synth", book[0], "--out", out, *options)[0] == 0 and content(out)["000001.wav"] == before["000001.wav"]
    assert run("synth", book[1], "--out", out, "--replace-files", *options)[0] == 0
    assert content(out)["000001.wav"] != before["000001.wav"]


def test_lines_that_say_the_same_are_shared(run, book, tmp_path, checkpoint_dir):
    """The first lines of a manifest are tried as a file of their own, and then the whole of it is run."""
    out, options = tmp_path / "book", ["--model", checkpoint_dir, *FAST]
    book[1].write_text(book[0].read_text() + "One more.\n")
    assert run("synth", book[0], "--out", out, *options)[0] == 0
    code, _, said = run("synth", book[1], "--out", out, *options)
    assert code == 0 and "1 of 3 written" in said and "2 were there" in said


def test_a_manifest_may_be_edited_and_moved(run, refused, book, tmp_path, checkpoint_dir):
    options = ["--model", checkpoint_dir, *FAST]
    assert run("synth", book[0], "--out", tmp_path / "a" / "out", *options)[0] == 0
    book[0].write_text("Other words.\n")
    code, _, said = run("synth", book[0], "--out", tmp_path / "a" / "out", *options)
    assert code == 0 and "1 of 1 written" in said
    (tmp_path / "moved").mkdir()
    (tmp_path / "a" / "out").rename(tmp_path / "moved" / "wavs")
    book[0].rename(tmp_path / "moved" / "ch1.txt")
    (tmp_path / "moved" / "ch1.txt").write_text("Once more, others.\n")
    code, _, said = run("synth", tmp_path / "moved" / "ch1.txt", "--out", tmp_path / "moved" / "wavs", *options)
    assert code == 0 and "1 of 1 written" in said
    (tmp_path / "deep").mkdir()
    other = tmp_path / "deep" / "ch1.txt"  # of the same name, while the first is still there
    other.write_text("A namesake.\n")
    assert "holds 1 line of" in refused(other, tmp_path / "moved" / "wavs")


def test_the_same_holds_for_shards_and_ids_of_ones_own(run, refused, tmp_path, checkpoint_dir):
    options = ["--model", checkpoint_dir, *FAST]
    first, second = (write(tmp_path / f"{name}.jsonl", {"id": "a", "text": f"Of {name}."}) for name in ("one", "two"))
    for more in ([], ["--webdataset", 2], ["--layout", "nested:1"]):
        out = tmp_path / "-".join(map(str, ["out", *more]))
        assert run("synth", first, "--out", out, *options, *more)[0] == 0
        assert "holds 1 line of" in refused(second, out, *more)


def test_manifests_are_told_apart_by_file_and_not_by_spelling(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "a.txt").write_text("A.")
    (tmp_path / "link.txt").symlink_to("a.txt")
    out = tmp_path / "out"
    for source, same in (
        *((str(tmp_path / "a.txt"), True), (str(out / ".." / "a.txt"), True), (str(tmp_path / "link.txt"), True)),
        *((str(tmp_path / "b.txt"), False), (None, False)),
    ):
        assert same_manifest("../a.txt", source, out) is same
    assert same_manifest("../gone.txt", "elsewhere/gone.txt", out)  # moved
    assert same_manifest(None, None, out) and not same_manifest(None, "a.txt", out)

"""Success means that all of it was done: every line of the manifest, and every file as it was written."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from omnitts import manifest as manifests
from omnitts.claims import Claims
from tests.test_cli import FAST, lines_of, results_of

# ---- What can be read once only ----


@pytest.fixture
def piped(tmp_path):
    """Writes into a named pipe, as a process of its own would."""
    writers = []

    def start(text: str, name: str = "pipe.jsonl") -> Path:
        path = tmp_path / name
        os.mkfifo(path)
        writers.append(threading.Thread(target=lambda: path.write_text(text), daemon=True))
        writers[-1].start()
        return path

    yield start
    for writer in writers:
        writer.join(10)
        assert not writer.is_alive()


def lines(count: int) -> str:
    return "".join(json.dumps({"id": f"line-{number}", "text": "Hi."}) + "\n" for number in range(count))


@pytest.mark.parametrize("count", [3, 20])  # fewer and more than are kept in memory
@pytest.mark.parametrize("command", ["check", "plan", "synth"])
def test_a_pipe_is_read_once(run, piped, tmp_path, checkpoint_dir, monkeypatch, count, command):
    monkeypatch.setattr(manifests, "KEPT", 5)
    options = {"check": [], "plan": ["--model", checkpoint_dir], "synth": ["--model", checkpoint_dir, *FAST]}[command]
    out = tmp_path / "out"
    code, printed, said = run(command, piped(lines(count)), "--out", out, *options)
    assert code == 0 and str(count) in printed + said
    if command == "synth":
        assert f"{count} of {count} written" in said and len(results_of(out)) == count


def test_a_long_pipe_is_too(run, piped):
    code, printed, _ = run("check", piped(lines(17_000)))
    assert code == 0 and "17,000 utterances" in printed


def test_a_pipe_of_texts_and_a_bad_one(run, piped, tmp_path):
    assert "2 utterances" in run("check", piped("One.\nTwo.\n", "pipe.txt"))[1]
    code, _, said = run("check", piped('{"text": "Hi."}\n{"text": ""}\n', "other"))
    assert code == 2 and f"{tmp_path / 'other'}:2: text: " in said


@pytest.mark.skipif(not os.path.exists("/dev/stdin"), reason="needs /dev/stdin")
def test_standard_input_by_its_path(tmp_path, checkpoint_dir):
    command = [sys.executable, "-m", "omnitts", "synth", "/dev/stdin", "--out", tmp_path / "out", *FAST, "--model"]
    root = Path(__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run([*command, checkpoint_dir], input=lines(2), text=True, capture_output=True, env=environment)
    assert done.returncode == 0 and "2 of 2 written" in done.stderr


def test_pipes_are_told_apart_where_ids_are_numbers(run, piped, tmp_path, checkpoint_dir):
    options = ["--out", tmp_path / "out", "--model", checkpoint_dir, *FAST]
    assert run("synth", piped("One.\n", "1.txt"), *options)[0] == 0
    code, _, said = run("synth", piped("Two.\n", "2.txt"), *options)
    assert code == 2 and "holds 1 line of an earlier pipe or standard input under ids that" in said
    assert run("synth", piped('{"id": "a", "text": "One."}\n', "3.jsonl"), *options)[0] == 0
    assert run("synth", piped('{"id": "a", "text": "Mended."}\n', "4.jsonl"), *options)[0] == 0


# ---- A manifest that does not stay as it was ----


@pytest.mark.parametrize("change", ["emptied", "shorter", "longer", "other words", "replaced", "gone", "touched"])
def test_a_manifest_that_changes_ends_the_run_with_a_true_word(run, tmp_path, checkpoint_dir, monkeypatch, change):
    path, out = tmp_path / "lines.jsonl", tmp_path / "out"
    path.write_text(lines(400))

    def change_it(self, target, data):
        if not done:
            done.append(target)
            text = {"emptied": "", "shorter": lines(50), "longer": lines(500)}.get(change, lines(400))
            if change == "gone":
                path.unlink()
            elif change == "replaced":
                (tmp_path / "new").write_text(text)
                os.replace(tmp_path / "new", path)
            elif change == "touched":
                os.utime(path, (1, 1))
            else:
                path.write_text(text.replace("Hi.", "Ho.") if change == "other words" else text)
        return put(self, target, data)

    done, put = [], Claims.put
    monkeypatch.setattr(manifests, "KEPT", 5)
    monkeypatch.setattr("omnitts.prepare.WINDOW", 8)
    with monkeypatch.context() as patched:
        patched.setattr(Claims, "put", change_it)
        code, _, said = run("synth", path, "--out", out, "--model", checkpoint_dir, "--set", "num_step=1")
    summary, written = json.loads((out / "summary.json").read_text()), len(results_of(out))
    assert code == 1 and "nothing was started" not in said and 0 < written < 400
    assert summary["state"] == "stopped" and summary["written"] == written
    assert f"{written} of 400 written" in said and "lines.jsonl" in summary["stopped"] and said.count("error: ") == 1
    assert run("status", out)[0] == 1


def test_lines_that_were_not_reached_are_counted(run, manifest, tmp_path, checkpoint_dir, monkeypatch):
    """Whatever the cause may be."""
    from omnitts.tts import TTS

    stream = TTS.stream

    def lose_some(self, utterances, **options):
        return stream(self, list(utterances)[:2], **options)

    monkeypatch.setattr(TTS, "stream", lose_some)
    path, out = manifest(*({"text": "Hi."} for _ in range(5))), tmp_path / "out"
    code, _, said = run("synth", path, "--out", out, "--model", checkpoint_dir, *FAST)
    assert code == 1 and f"error: {path}: only 2 of 5 lines were reached" in said and "2 of 5 written" in said
    assert json.loads((out / "summary.json").read_text())["state"] == "stopped"
    assert run("status", out)[0] == 1


def test_an_end_that_nobody_foresaw_leaves_a_true_state(run, manifest, tmp_path, checkpoint_dir, monkeypatch):
    from omnitts.tts import TTS

    def fail(self, utterances, **options):
        raise ValueError("of no known kind")

    monkeypatch.setattr(TTS, "stream", fail)
    path, out = manifest({"text": "Hi."}), tmp_path / "out"
    with pytest.raises(ValueError, match="of no known kind"):
        run("synth", path, "--out", out, "--model", checkpoint_dir, *FAST)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["state"] == "stopped" and "of no known kind" in summary["stopped"]


# ---- Files that are not as they were ----


@pytest.fixture
def job(run, manifest, tmp_path, checkpoint_dir):
    """Runs one manifest of five lines into tmp_path / "out"."""
    path = manifest(*({"id": name, "text": f"Hello {name}."} for name in "abcde"))

    def again(*options: object) -> tuple[int, str]:
        code, _, said = run("synth", path, "--out", tmp_path / "out", "--model", checkpoint_dir, *FAST, *options)
        return code, said

    return again


@pytest.mark.parametrize("format", ["wav", "flac", "ogg", "mp3"])
def test_a_file_that_was_cut_is_made_again(run, job, tmp_path, format):
    out = tmp_path / "out"
    assert job("--format", format)[0] == 0
    before = {name: (out / f"{name}.{format}").read_bytes() for name in "abcd"}
    for name, length in zip("abcd", (1000, 70, 3, 0), strict=True):
        os.truncate(out / f"{name}.{format}", length)
    code, printed, _ = run("status", out)
    assert code == 1 and "1 of 5 written" in printed and "4 no longer there as written" in printed
    code, said = job("--format", format)
    assert code == 0 and "4 of 5 written" in said and "1 were there" in said
    assert {name: (out / f"{name}.{format}").read_bytes() for name in "abcd"} == before
    assert run("status", out)[0] == 0


def test_so_is_one_that_grew_and_codes_too(run, job, tmp_path):
    out = tmp_path / "out"
    assert job("--save-codes")[0] == 0
    with open(out / "a.wav", "ab") as file:
        file.write(b"more")
    os.truncate(out / "b.codes.npy", 200)
    (out / "c.codes.npy").unlink()
    code, said = job("--save-codes")
    assert code == 0 and "3 of 5 written" in said
    assert run("status", out, "--verify")[0] == 0


def test_verify_finds_what_has_the_same_length(run, job, tmp_path):
    out = tmp_path / "out"
    assert job("--save-codes")[0] == 0
    for name in ("a.wav", "c.codes.npy"):
        data = bytearray((out / name).read_bytes())
        data[-1] ^= 1
        (out / name).write_bytes(data)
    assert run("status", out)[0] == 0
    code, printed, _ = run("status", "--verify", out)
    assert code == 1 and "3 of 5 written" in printed and "2 no longer there as written" in printed
    assert job("--save-codes", "--overwrite")[0] == 0 and run("status", "--verify", out)[0] == 0


def inside(out: Path) -> dict[str, list[str]]:
    found = {}
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as tar:
            found[path.name] = [name for name in tar.getnames() if name.endswith(".wav")]
    return found


@pytest.mark.parametrize("harm", ["deleted", "cut", "emptied", "grown"])
def test_a_shard_that_is_not_whole_is_made_again(run, job, tmp_path, harm):
    out = tmp_path / "out"
    assert job("--webdataset", 2)[0] == 0
    before, shards = inside(out), {path.name: path.read_bytes() for path in out.glob("*.tar")}
    shard = out / "000001.tar"
    if harm == "deleted":
        shard.unlink()
    elif harm == "grown":
        shard.write_bytes(shard.read_bytes() + bytes(512))
    else:
        os.truncate(shard, 0 if harm == "emptied" else 5000)
    code, printed, _ = run("status", out)
    assert code == 1 and "3 of 5 written" in printed and "2 no longer there as written" in printed
    code, said = job("--webdataset", 2)
    assert code == 0 and "2 of 5 written" in said and "3 were there" in said
    assert inside(out) == before and {path.name: path.read_bytes() for path in out.glob("*.tar")} == shards
    assert run("status", out)[0] == 0 and run("status", "--verify", out)[0] == 0


def test_a_shard_that_was_made_anew_holds_no_lines_of_the_old_one(run, job, tmp_path):
    out = tmp_path / "out"
    assert job("--webdataset", 2)[0] == 0
    (out / next(name for name, names in inside(out).items() if "a.wav" in names)).unlink()
    assert "1 of 1 written" in job("--webdataset", 1, "--limit", 1)[1]  # its number is free again
    code, said = job("--webdataset", 2)
    assert code == 0 and "of 5 written" in said
    assert sorted(name for names in inside(out).values() for name in names) == [f"{name}.wav" for name in "abcde"]


def test_overwriting_leaves_no_shard_of_before(run, job, tmp_path):
    out = tmp_path / "out"
    assert job("--webdataset", 1)[0] == 0 and len(inside(out)) == 5
    assert job("--webdataset", 3, "--overwrite")[0] == 0
    assert {name: len(names) for name, names in inside(out).items()} == {"000000.tar": 3, "000001.tar": 2}
    (out / "000007.tar").write_bytes(b"somebody's")
    code, said = job("--webdataset", 3, "--overwrite")
    assert code == 2 and "000007.tar" in said and (out / "000007.tar").exists()


@pytest.mark.parametrize("options", [[], ["--save-codes"], ["--webdataset", 2], ["--layout", "nested:2"]])
def test_what_a_killed_run_put_down_and_did_not_record_is_made_again(run, job, tmp_path, monkeypatch, options):
    """As a kill between the file and its line leaves it."""
    from omnitts import job as jobs

    class Killed(BaseException):
        pass

    def die(self, line):
        raise Killed

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(jobs._Job, "_record", die)
        patched.setattr(Claims, "close", lambda self: None)
        with pytest.raises(Killed):
            job(*options)
    assert [path for path in out.rglob("*") if path.suffix in (".wav", ".tar")]
    assert not (out / "results.jsonl").exists() or not lines_of(out)
    code, said = job(*options)
    assert code == 0 and "5 of 5 written" in said and run("status", "--verify", out)[0] == 0
    assert not list(out.glob(".*"))


# ---- What status trusts ----


def test_status_looks_at_the_files(run, job, tmp_path):
    out = tmp_path / "out"
    assert job("--layout", "nested:1")[0] == 0 and run("status", out)[0] == 0
    for path in out.rglob("*.wav"):
        path.unlink()
    code, printed, _ = run("status", out)
    assert code == 1 and "0 of 5 written" in printed and "5 no longer there" in printed and "complete" not in printed


def test_status_counts_the_lines(run, job, tmp_path):
    out = tmp_path / "out"
    assert job()[0] == 0
    results = out / "results.jsonl"
    text = results.read_text().splitlines(keepends=True)
    results.write_text("".join(text[:2]))
    code, printed, _ = run("status", out)
    assert code == 1 and "2 of 5 written" in printed and "3 left" in printed
    (out / "summary.json").unlink()  # then the manifest itself is counted
    code, printed, _ = run("status", out)
    assert code == 1 and "2 of 5 written" in printed and "3 left" in printed
    results.write_text("".join(text))
    assert run("status", out)[0] == 0


def test_status_sees_that_the_manifest_has_grown(run, job, tmp_path):
    out, path = tmp_path / "out", tmp_path / "lines.jsonl"
    assert job("--limit", 3)[0] == 0 and run("status", out)[0] == 0  # as much as was asked for
    assert job()[0] == 0 and run("status", out)[0] == 0
    path.write_text(path.read_text() + '{"id": "f", "text": "One more."}\n\ufeff \n')
    code, printed, _ = run("status", out)
    assert code == 1 and "5 of 6 written" in printed and "1 left" in printed


def test_status_believes_no_number_that_is_none(run, job, tmp_path):
    out = tmp_path / "out"
    assert job()[0] == 0
    results = out / "results.jsonl"
    text = results.read_text()
    seconds = lines_of(out)[0]["seconds"]
    results.write_text(text.replace(f'"seconds": {seconds}', '"seconds": NaN', 1))
    code, printed, _ = run("status", out)
    assert code == 1 and "nan" not in printed and "4 of 5 written" in printed and "1 left" in printed
    assert "1 of 5 written" in job()[1]
    for summary in (
        "{",
        "[]",
        "null",
        '{"utterances": "x"}',
        '{"utterances": -3, "started": "2020-01-01"}',
        '{"utterances": Infinity}',
        "{}",
    ):
        (out / "summary.json").write_text(summary)
        assert run("status", out)[0] == 0, summary


def test_status_goes_round_no_circle(run, job, tmp_path):
    out = tmp_path / "out"
    assert job()[0] == 0
    (out / "round").symlink_to(out)
    (out / "nowhere").symlink_to("none")
    assert run("status", out)[0] == 0


def test_status_of_results_of_earlier_versions(run, job, tmp_path):
    out = tmp_path / "out"
    assert job("--save-codes")[0] == 0
    old = [{k: v for k, v in line.items() if k not in ("files", "content", "manifest")} for line in lines_of(out)]
    (out / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    assert run("status", out)[0] == 0
    code, said = job("--save-codes")
    assert code == 0 and "5 were there" in said
    shutil.copy(out / "a.wav", tmp_path / "a.wav")
    (out / "a.wav").write_bytes(b"")
    assert run("status", out)[0] == 1
    code, said = job("--save-codes")
    assert code == 0 and "1 of 5 written" in said
    assert (out / "a.wav").read_bytes() == (tmp_path / "a.wav").read_bytes()

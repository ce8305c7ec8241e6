"""The command line: what it writes, what it says, and the exit codes that scripts trust."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import soundfile
from safetensors.torch import load_file, save_file

from omnitts.claims import Claims
from omnitts.model.voice import Voice, save_voice

ROOT = Path(__file__).parent.parent
FAST = ("--set", "num_step=2")


put = Claims.put


def refuse_a(self, path, data):
    """In place of `Claims.put`: a system that does not let a.wav be written."""
    if path.name == "a.wav":
        raise PermissionError(13, "Permission denied", str(path))
    return put(self, path, data)


def results_of(folder: Path) -> dict[str, dict]:
    lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    return {line["id"]: line for line in map(json.loads, lines)}


def test_synth_writes_all_its_files(run, manifest, recording, tmp_path, checkpoint_dir):
    path = manifest(
        {"id": "plain", "text": "Hello there."},
        {"id": "cloned", "text": "Hello again.", "ref_audio": "reference.wav", "ref_text": "So it is."},
        {"id": "own", "text": "Hello.", "recipe": {"num_step": 3}, "seed": 11},
    )
    out = tmp_path / "deep" / "wavs"
    code, printed, said = run("synth", path, "--out", out, "--model", checkpoint_dir, "--save-codes", *FAST)
    assert code == 0 and printed == ""
    assert "3 of 3 written" in said
    assert sorted(p.name for p in out.iterdir()) == sorted(
        ["results.jsonl", "summary.json"]
        + [f"{i}{s}" for i in ("plain", "cloned", "own") for s in (".wav", ".codes.npy")]
    )
    results = results_of(out)
    for name, line in results.items():
        info = soundfile.info(out / line["path"])
        assert (info.samplerate, info.channels, info.subtype) == (24000, 1, "PCM_16")
        assert line["seconds"] == pytest.approx(info.frames / 24000, abs=1e-3)
        codes = np.load(out / f"{name}.codes.npy")
        assert codes.dtype == np.int16 and codes.shape == (8, line["frames"])
        assert (line["status"], line["error"]) == ("ok", None)
    assert results["own"]["seed"] == 11
    assert results["own"]["recipe"] == "default+num_step=3"
    assert results["plain"]["recipe"] == "default+num_step=2"
    assert results["own"]["recipe_digest"] != results["plain"]["recipe_digest"]
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["utterances"], summary["written"], summary["failed"]) == (3, 3, 0)
    assert summary["audio_seconds"] == pytest.approx(sum(line["seconds"] for line in results.values()), abs=0.01)
    assert summary["real_time_factor"] > 0 and summary["device"] == "cpu" and summary["dtype"] == "float32"
    assert summary["versions"]["torch"]
    asked = {key: summary[key] for key in ("manifest", "recipe", "settings", "voice", "model", "format")}
    assert asked == {
        "manifest": str(path),
        "recipe": "default",
        "settings": ["num_step=2"],
        "voice": None,
        "model": str(checkpoint_dir),
        "format": "wav",
    }


@pytest.mark.parametrize("format", ["wav", "flac", "ogg", "opus", "mp3"])
def test_formats_repeat_to_the_byte(run, manifest, tmp_path, checkpoint_dir, format):
    path = manifest({"id": "a", "text": "Hi."})
    made = []
    for folder in ("one", "two"):
        out = tmp_path / folder
        assert run("synth", path, "--out", out, "--model", checkpoint_dir, "--format", format, "--quiet", *FAST)[0] == 0
        assert soundfile.info(out / f"a.{format}").samplerate == 24000
        made.append((out / f"a.{format}").read_bytes())
    assert made[0] == made[1]


def test_files_are_as_the_audio_options_say(run, manifest, tmp_path, checkpoint_dir):
    path, out = manifest({"id": "a", "text": "Hi."}), tmp_path / "out"
    options = ["--sample-rate", 48_000, "--subtype", "PCM_24", "--format", "flac"]
    assert run("synth", path, "--out", out, "--model", checkpoint_dir, *options, *FAST)[0] == 0
    info = soundfile.info(out / "a.flac")
    assert (info.samplerate, info.subtype) == (48_000, "PCM_24")
    assert results_of(out)["a"]["seconds"] == pytest.approx(info.frames / 48_000, abs=1e-3)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["audio"] == {"format": "flac", "sample_rate": 48_000, "subtype": "PCM_24", "quality": None}
    assert summary["layout"] == "flat"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--format", "mp3", "--sample-rate", "16001"], "--sample-rate: mp3 cannot hold 16001 Hz"),
        (["--sample-rate", "4000"], "Invalid value for '--sample-rate'"),
        (["--format", "ogg", "--subtype", "PCM_16"], "--subtype: ogg has no PCM_16"),
        (["--audio-quality", "0.5"], "--audio-quality: wav keeps every sample"),
        (["--layout", "deep"], "--layout: 'deep': wanted flat, or nested:N"),
        (["--webdataset", "0"], "Invalid value for '--webdataset'"),
        (["--webdataset", "9", "--layout", "flat"], "--layout: of no use with --webdataset"),
        (["--webdataset", "9", "--save-codes"], "--save-codes: of no use with --webdataset"),
    ],
)
def test_output_that_cannot_be_is_refused_before_work(run, manifest, tmp_path, checkpoint_dir, options, says):
    path = manifest({"id": "a", "text": "Hi."})
    code, _, said = run("synth", path, "--out", tmp_path / "o", "--model", checkpoint_dir, *options)
    assert code == 2 and said.startswith(f"error: {says}") and said.count("\n") == 1
    assert not (tmp_path / "o").exists()


def test_nested_files_lie_where_the_results_say(run, manifest, tmp_path, checkpoint_dir):
    path, out = manifest({"id": "greeting", "text": "Hi."}, {"id": "b", "text": "Hi."}), tmp_path / "out"
    common = ["synth", path, "--out", out, "--model", checkpoint_dir, "--layout", "nested:2", *FAST]
    assert run(*common, "--save-codes")[0] == 0
    results = results_of(out)
    assert results["greeting"]["path"] == "41/15/greeting.wav"
    for line in results.values():
        audio = out / line["path"]
        assert audio.exists() and audio.with_name(f"{line['id']}.codes.npy").exists()
    assert sorted(p.name for p in out.iterdir() if p.is_file()) == ["results.jsonl", "summary.json"]
    assert json.loads((out / "summary.json").read_text())["layout"] == "nested:2"
    assert run(*common, "--overwrite")[0] == 0
    assert not list(out.rglob("*.npy"))


def test_shards_hold_what_the_results_say(run, manifest, tmp_path, checkpoint_dir):
    path = manifest(*({"id": f"line-{n}", "text": "Hello there."} for n in range(5)))
    out = tmp_path / "out"
    common = ["synth", path, "--out", out, "--model", checkpoint_dir, *FAST]
    assert run(*common, "--webdataset", 2)[0] == 0
    assert sorted(p.name for p in out.iterdir()) == [
        *("000000.tar", "000001.tar", "000002.tar", "results.jsonl", "summary.json"),
    ]
    results = results_of(out)
    assert len(results) == 5
    for name, line in results.items():
        with tarfile.open(out / line["shard"]) as tar:
            assert line["names"] == [f"{name}.wav", f"{name}.json", f"{name}.codes.npy"]
            audio, facts, _ = (tar.extractfile(member).read() for member in line["names"])
        assert json.loads(facts)["text"] == "Hello there." and line["path"] is None
        (tmp_path / f"{name}.wav").write_bytes(audio)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["webdataset"] == 2 and summary["written"] == 5
    code, _, said = run(*common, "--webdataset", 2)
    assert code == 0 and "0 of 5 written" in said and "5 were there" in said
    before = {shard.name: shard.read_bytes() for shard in out.glob("*.tar")}
    code, _, said = run(*common, "--webdataset", 2, "--overwrite")
    assert code == 0 and "5 of 5 written" in said
    assert {shard.name: shard.read_bytes() for shard in out.glob("*.tar")} == before
    common[3] = tmp_path / "files"
    assert run(*common)[0] == 0
    for name in results:
        assert (tmp_path / f"{name}.wav").read_bytes() == (tmp_path / "files" / f"{name}.wav").read_bytes()


def test_ids_that_shards_would_cut_are_refused(run, manifest, tmp_path, checkpoint_dir):
    path = manifest({"id": "a.b", "text": "Hi."})
    code, _, said = run("synth", path, "--out", tmp_path / "o", "--model", checkpoint_dir, "--webdataset", 2)
    assert code == 2 and said.startswith(f"error: {path}:1: id: 'a.b' has a dot")


def test_interrupting_keeps_the_shard_that_was_begun(run, manifest, tmp_path, checkpoint_dir, monkeypatch):
    from omnitts import job

    made = []

    def stop_at_the_fourth(*arguments):
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(members(*arguments))
        return made[-1]

    members = job.members
    monkeypatch.setattr(job, "members", stop_at_the_fourth)
    path, out = manifest(*({"id": f"line-{n}", "text": "Hi."} for n in range(5))), tmp_path / "out"
    code, _, said = run("synth", path, "--out", out, "--model", checkpoint_dir, "--webdataset", 2, *FAST)
    assert code == 130 and "3 of 5 written" in said
    assert sorted(p.name for p in out.glob("*.tar")) == ["000000.tar", "000001.tar"]
    assert sorted(line["shard"] for line in results_of(out).values()) == ["000000.tar", "000000.tar", "000001.tar"]
    assert not [p for p in out.iterdir() if p.name.startswith(".")]


def test_quiet_says_nothing(run, manifest, tmp_path, checkpoint_dir):
    path = manifest({"text": "Hi."})
    assert run("synth", path, "--out", tmp_path / "o", "--model", checkpoint_dir, "--quiet", *FAST) == (0, "", "")


def test_the_bundled_checkpoint_says_what_it_is(run, manifest, tmp_path):
    code, _, said = run("synth", manifest({"text": "Hi."}), "--out", tmp_path / "o", *FAST)
    assert code == 0 and "mini" in said and "k2-fsa/OmniVoice" in said
    assert (tmp_path / "o" / "000001.wav").exists()
    assert json.loads((tmp_path / "o" / "summary.json").read_text())["model"] == "mini"


def test_a_reference_that_breaks_later_costs_no_other(run, manifest, recording, tmp_path, checkpoint_dir, monkeypatch):
    """It passes the check, then is gone when its turn comes."""
    from omnitts import tts

    def vanish(path):
        Path(path).unlink(missing_ok=True)
        return read_audio(path)

    read_audio = tts.read_audio
    monkeypatch.setattr(tts, "read_audio", vanish)
    path = manifest(
        {"id": "good", "text": "Hello there."},
        {"id": "bad", "text": "Hello.", "ref_audio": "reference.wav", "ref_text": "So it is."},
    )
    out = tmp_path / "out"
    code, _, said = run("synth", path, "--out", out, "--model", checkpoint_dir, *FAST)
    assert code == 1
    results = results_of(out)
    assert results["good"]["status"] == "ok" and (out / "good.wav").exists()
    assert results["bad"]["status"] == "failed" and f"{path}:2: ref_audio: no such file: " in results["bad"]["error"]
    assert f"error: {results['bad']['error']}\n" in said
    assert results["bad"]["path"] is None and not (out / "bad.wav").exists()
    assert "1 of 2 written" in said and "1 failed" in said
    assert json.loads((out / "summary.json").read_text())["failed"] == 1


def test_a_file_that_cannot_be_written_costs_no_other(run, manifest, tmp_path, checkpoint_dir):
    out = tmp_path / "out"
    (out / "blocked.wav").mkdir(parents=True)  # a folder where the file should go
    path = manifest({"id": "blocked", "text": "Hello."}, {"id": "good", "text": "Hello."})
    code, _, _ = run("synth", path, "--out", out, "--model", checkpoint_dir, *FAST)
    assert code == 1
    results = results_of(out)
    assert results["good"]["status"] == "ok"
    assert "blocked.wav" in results["blocked"]["error"]
    assert not [p for p in out.iterdir() if p.name.startswith(".")]


def test_files_agree_with_the_results_of_the_latest_run(run, manifest, tmp_path, checkpoint_dir, monkeypatch):
    """What an earlier run left goes when its line fails, and codes go with the audio that they were of."""
    path = manifest({"id": "a", "text": "Hello."}, {"id": "b", "text": "Hello."})
    out = tmp_path / "out"
    common = ["synth", path, "--out", out, "--model", checkpoint_dir, *FAST]
    assert run(*common, "--save-codes")[0] == 0

    monkeypatch.setattr(Claims, "put", refuse_a)
    code, _, said = run(*common, "--overwrite")
    wanted = f"{path}:1: id: cannot write a.wav: Permission denied; put that right, and run this line again"
    assert code == 1 and f"error: {wanted}\n" in said and results_of(out)["a"]["error"] == wanted
    assert sorted(p.name for p in out.iterdir()) == ["b.wav", "results.jsonl", "summary.json"]


def test_codes_that_cannot_be_written_are_told_by_their_name(run, manifest, tmp_path, checkpoint_dir):
    out = tmp_path / "out"
    (out / "a.codes.npy").mkdir(parents=True)
    path = manifest({"id": "a", "text": "Hello."})
    code, _, said = run("synth", path, "--out", out, "--model", checkpoint_dir, "--save-codes", *FAST)
    assert code == 1 and "cannot write a.codes.npy: Is a directory" in said
    line = results_of(out)["a"]
    assert line["status"] == "failed" and line["path"] is None and not (out / "a.wav").exists()


def test_a_second_run_into_the_same_folder_is_refused(run, manifest, tmp_path, checkpoint_dir):
    fcntl = pytest.importorskip("fcntl")
    out = tmp_path / "out"
    out.mkdir()
    line = '{"id": "000001", "status": "failed", "error": "of the first run"}\n'
    (out / "results.jsonl").write_text(line)
    common = ["synth", manifest({"text": "Hi."}), "--out", out, "--model", checkpoint_dir, "--quiet", *FAST]
    with open(out / "results.jsonl") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        code, _, said = run(*common)
        assert code == 2 and said.count("\n") == 1 and "another run is writing" in said
        assert (out / "results.jsonl").read_text() == line
        assert [p.name for p in out.iterdir()] == ["results.jsonl"]
    assert run(*common)[0] == 0


def test_results_that_cannot_be_written_are_one_line(run, manifest, tmp_path, checkpoint_dir):
    common = ["synth", manifest({"text": "Hi."}), "--model", checkpoint_dir, "--quiet", *FAST, "--out"]
    (tmp_path / "a" / "results.jsonl").mkdir(parents=True)
    code, _, said = run(*common, tmp_path / "a")
    assert code == 2 and said.count("\n") == 1 and "results.jsonl is a folder" in said
    (tmp_path / "b" / "summary.json").mkdir(parents=True)
    code, _, said = run(*common, tmp_path / "b")
    assert code == 2 and said.count("\n") == 1 and "summary.json is a folder" in said
    assert not (tmp_path / "b" / "results.jsonl").exists()


def test_a_folder_that_goes_away_is_no_traceback(run, manifest, tmp_path, checkpoint_dir, monkeypatch):
    def write_into_nothing(self, path, data):
        shutil.rmtree(path.parent, ignore_errors=True)
        return put(self, path, data)

    monkeypatch.setattr(Claims, "put", write_into_nothing)
    path = manifest({"id": "a", "text": "Hi."}, {"id": "b", "text": "Hi."})
    code, _, said = run("synth", path, "--out", tmp_path / "o", "--model", checkpoint_dir, *FAST)
    assert code == 1 and f"cannot write {tmp_path / 'o' / 'a.wav'}: No such file or directory" in said
    assert "goes on from here" in said and "0 of 2 written" in said


def test_interrupting_keeps_what_is_done(run, manifest, tmp_path, checkpoint_dir, monkeypatch):
    written = []

    def write_then_stop(*arguments):
        if written:
            raise KeyboardInterrupt
        written.append(put(*arguments))
        return written[0]

    monkeypatch.setattr(Claims, "put", write_then_stop)
    path = manifest({"id": "a", "text": "Hello."}, {"id": "b", "text": "Hello."})
    code, _, said = run("synth", path, "--out", tmp_path / "out", "--model", checkpoint_dir, *FAST)
    assert code == 130 and "interrupted" in said
    assert len(results_of(tmp_path / "out")) == 1
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["interrupted"] is True


@pytest.fixture
def threads(monkeypatch):
    """The stages of a GPU's run."""
    from omnitts.stages import on_threads

    monkeypatch.setattr("omnitts.tts.stages_for", lambda device: on_threads(None))
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("omnitts")]


def test_threads_write_the_same_files(run, manifest, recording, tmp_path, checkpoint_dir, monkeypatch):
    from omnitts import prepare
    from omnitts.stages import on_threads

    monkeypatch.setattr(prepare, "FIRST_WINDOW", 3)
    path = manifest(
        *({"text": f"Number {n}."} for n in range(6)),
        {"text": "Hello again.", "ref_audio": "reference.wav", "ref_text": "So it is."},
    )
    common = ["synth", path, "--model", checkpoint_dir, "--max-positions", 200, "--save-codes", *FAST, "--out"]
    assert run(*common, tmp_path / "one")[0] == 0
    monkeypatch.setattr("omnitts.tts.stages_for", lambda device: on_threads(None))
    assert run(*common, tmp_path / "two")[0] == 0
    names = sorted(p.name for p in (tmp_path / "one").iterdir())
    assert names == sorted(p.name for p in (tmp_path / "two").iterdir()) and len(names) == 2 * 7 + 2
    for name in names:
        if name.endswith((".wav", ".npy")):
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert results_of(tmp_path / "one") == results_of(tmp_path / "two")


def test_threads_fill_shards(threads, run, manifest, tmp_path, checkpoint_dir):
    path, out = manifest(*({"id": f"line-{n}", "text": "Hi."} for n in range(30))), tmp_path / "out"
    common = ["synth", path, "--out", out, "--model", checkpoint_dir, "--max-positions", 100, "--webdataset", 7, *FAST]
    assert run(*common)[0] == 0
    inside = {}
    for shard in out.glob("*.tar"):
        with tarfile.open(shard) as tar:
            inside[shard.name] = tar.getnames()
    assert [len(inside[name]) for name in sorted(inside)] == [21, 21, 21, 21, 6]
    for line in results_of(out).values():
        assert set(line["names"]) <= set(inside[line["shard"]])
    assert len(results_of(out)) == 30


def test_threads_lose_no_line_and_no_failure(threads, run, manifest, tmp_path, checkpoint_dir):
    out = tmp_path / "out"
    for name in ("line-3", "line-20"):
        (out / f"{name}.wav").mkdir(parents=True)
    path = manifest(*({"id": f"line-{n}", "text": "Hi."} for n in range(30)))
    code, _, said = run("synth", path, "--out", out, "--model", checkpoint_dir, "--max-positions", 100, *FAST)
    assert code == 1 and "28 of 30 written" in said and "2 failed" in said
    assert {name for name, line in results_of(out).items() if line["status"] == "failed"} == {"line-3", "line-20"}
    assert said.count("cannot write line-") == 2 and len(results_of(out)) == 30


def test_interrupting_threads_keeps_what_the_engine_made(threads, run, manifest, tmp_path, checkpoint_dir, monkeypatch):
    from omnitts import pipeline

    generate, batches = pipeline.generate, []

    def generate_then_stop(*arguments, **options):
        if len(batches) == 5:
            raise KeyboardInterrupt
        batches.append(1)
        return generate(*arguments, **options)

    monkeypatch.setattr(pipeline, "generate", generate_then_stop)
    path = manifest(*({"text": "Hello."} for _ in range(9)))
    out = tmp_path / "out"
    common = ["synth", path, "--out", out, "--model", checkpoint_dir, "--max-positions", 1, *FAST]
    code, _, said = run(*common)
    assert code == 130 and "5 of 9 written" in said and "interrupted" in said
    assert len(results_of(out)) == len(list(out.glob("*.wav"))) == 5
    assert json.loads((out / "summary.json").read_text())["interrupted"] is True


def test_threads_that_cannot_record_end_the_run_with_one_line(
    threads, run, manifest, tmp_path, checkpoint_dir, monkeypatch
):
    from omnitts import job

    def record(line, results, totals):
        raise OSError(28, "No space left on device", "results.jsonl")

    monkeypatch.setattr(job, "_record", record)
    path = manifest(*({"text": "Hello."} for _ in range(20)))
    common = ["synth", path, "--out", tmp_path, "--model", checkpoint_dir, "--quiet", "--max-positions", 1, *FAST]
    code, _, said = run(*common)
    assert code == 1 and said.startswith("error: cannot write results.jsonl: No space left on device; put that right")
    assert len(said.splitlines()) == 2 and "0 of 20 written" in said


def test_stats_are_said_and_kept(run, manifest, tmp_path, checkpoint_dir):
    common = ["synth", manifest({"text": "Hi."}, {"text": "Ho."}), "--model", checkpoint_dir, "--quiet", *FAST]
    code, _, said = run(*common, "--log-stats", "--out", tmp_path / "a")
    assert code == 0 and said.count("stats: ") == said.count("\n") == 3 and "1 batch of 2.0 clips" in said
    stats = json.loads((tmp_path / "a" / "summary.json").read_text())["stats"]
    assert stats["batches"] == 1 and stats["clips_per_batch"] == 2 and 0 < stats["share"]["step"] < 1
    assert sum(stats["share"][stage] for stage in ("prepare", "step", "finish", "host")) == pytest.approx(1, abs=1e-3)
    assert run(*common, "--out", tmp_path / "b") == (0, "", "")
    assert "stats" not in json.loads((tmp_path / "b" / "summary.json").read_text())


def test_memory_that_runs_out_is_one_warning(run, manifest, tmp_path, checkpoint_dir, monkeypatch):
    from omnitts import pipeline

    def small(model, requests, **options):
        if len(requests) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return generate(model, requests, **options)

    generate = pipeline.generate
    monkeypatch.setattr(pipeline, "generate", small)
    path = manifest(*({"text": "Hello."} for _ in range(16)))
    common = ["synth", path, "--model", checkpoint_dir, "--quiet", "--log-stats", *FAST, "--out", tmp_path]
    code, _, said = run(*common)
    assert code == 0 and said.count("warning: ") == 1 and "--max-positions" in said
    assert json.loads((tmp_path / "summary.json").read_text())["written"] == 16
    most = said.partition("--max-positions ")[2].split()[0]
    assert run(*common, "--max-positions", most)[2].count("warning: ") == 0  # the advice is good


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--set", "num_stepp=3"], "num_step"),
        (["--set", "num_step=0"], "num_step"),
        (["--set", "num_step"], "num_step"),
        (["--recipe", "fsat"], "fast"),
        (["--recipe", "none.yaml"], "none.yaml"),
        (["--device", "gpu"], "device"),
        (["--device", "cuda:99"], "device"),
        (["--model", "no/such/folder"], "no/such/folder"),
        (["--voice", "nobody.safetensors"], "nobody.safetensors"),
        (["--format", "aiff"], "wav"),
        (["--max-positions", "0"], "max-positions"),
        (["--dtype", "float8"], "float32"),
        (["--device", "cpu", "--dtype", "fp8"], "dtype: fp8 needs a GPU"),
        (["--device", "cpu", "--set", "precision=fp8"], "use bfloat16"),
        (["--model", ""], "--model: is blank"),
        (["--voice", " "], "--voice: is blank"),
        (["--recipe", ""], "--recipe: is blank"),
        (["--out", ""], "--out: is blank"),
    ],
)
def test_bad_options_are_refused(run, manifest, tmp_path, options, told):
    code, _, said = run("synth", manifest({"text": "Hi."}), "--out", tmp_path / "o", *options)
    assert code == 2 and told in said
    assert not (tmp_path / "o" / "results.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["synth", "a.jsonl"], "error: Missing option '--out'; see `omnitts synth --help`"),
        (["synth", "a.jsonl", "--out", "o", "--no-such"], "No such option"),
        (["synth", "a.jsonl", "--out", "o", "--format", "aiff"], "see `omnitts synth --help`"),
        (["recipes", "show"], "see `omnitts recipes show --help`"),
        (["sinth"], "see `omnitts --help`"),
    ],
)
def test_usage_errors_are_one_line(run, arguments, told):
    code, printed, said = run(*arguments)
    assert (code, printed, said.count("\n")) == (2, "", 1)
    assert said.startswith("error: ") and told in said


def test_a_log_gets_no_bar_but_a_line_now_and_then(run, manifest, tmp_path, checkpoint_dir, monkeypatch):
    from omnitts import progress as told

    path = manifest(*({"text": "Hello there."} for _ in range(3)))
    common = ["synth", path, "--out", tmp_path, "--model", checkpoint_dir, "--max-positions", 1, *FAST, "--overwrite"]
    assert run(*common)[2].startswith("3 of 3 written to ")
    monkeypatch.setattr(told, "LOG_SECONDS", 0)
    *progress, last = run(*common)[2].splitlines()
    assert last.startswith("3 of 3 written to ") and "%" not in "".join(progress)
    assert re.fullmatch(r"progress: \d of 4 s of audio, real-time factor [\d.]+, 00:0\d left", progress[-1])
    assert run(*common, "--quiet")[2] == ""


def test_an_out_folder_that_cannot_be_is_refused(run, manifest, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, said = run("synth", manifest({"text": "Hi."}), "--out", tmp_path / "file" / "wavs")
    assert code == 2 and "--out: " in said and "is a file, not a folder" in said and len(said.strip().splitlines()) == 1


def test_a_folder_that_is_no_checkpoint_is_refused(run, manifest, tmp_path):
    code, _, said = run("synth", manifest({"text": "Hi."}), "--out", tmp_path / "o", "--model", tmp_path)
    assert code == 2 and "config.json" in said
    assert not (tmp_path / "o").exists()


def test_all_errors_are_reported_together(run, manifest, tmp_path):
    path = manifest(
        {"id": "a", "text": "Fine."},
        {"id": "../b", "text": "Hi."},
        '{"id": "c", "text": ',
        {"id": "a", "text": ""},
        {"id": "d", "text": "Hi.", "speed": -1},
    )
    for command in (["check", path], ["plan", path], ["synth", path, "--out", tmp_path / "o"]):
        code, _, said = run(*command)
        assert code == 2
        for line in (2, 3, 4, 5):
            assert f"{path}:{line}: " in said
    assert not (tmp_path / "o").exists()


def test_of_very_many_errors_the_first_are_told_and_all_counted(run, manifest):
    path = manifest(*({"text": "", f"field {i}": 1} for i in range(2000)))
    code, _, said = run("check", path)
    lines = said.splitlines()
    assert code == 2 and len(lines) == 22
    assert lines[0].startswith(f"error: {path}:1: ") and lines[19].startswith(f"error: {path}:20: ")
    assert lines[20:] == ["... and 1,980 more errors", "2,000 errors; nothing was started"]
    path = manifest(*({"text": "Hi.", f"field {i}": 1} for i in range(21)))
    code, _, said = run("check", path)
    assert code == 0 and said.splitlines()[20:] == ["... and 1 more warning"]


def test_check_counts(run, manifest, recording):
    path = manifest(
        {"text": "Hi."}, {"text": "Hi.", "ref_audio": "reference.wav", "ref_text": "So it is.", "flavour": 1}
    )
    code, printed, said = run("check", path)
    assert code == 0 and "2 utterances, 1 reference, 1 recipe: all right; of recordings the start was read" in printed
    assert run("check", path, "--limit", 1)[1].endswith("1 recipe: all right\n")
    assert "flavour" in said


@pytest.mark.parametrize("command", ["plan", "synth"])
def test_tags_are_warned_of_where_the_model_has_none(run, manifest, tmp_path, checkpoint_dir, command):
    path = manifest({"text": "Hello."}, {"text": "[sigh] Well."}, {"text": "[laughter] [sigh] Ha."})
    out = ("--out", tmp_path / "wavs") if command == "synth" else ()
    steps = ("--set", "num_step=1")
    code, _, said = run(command, path, *out, *steps, "--model", "noise")
    assert code == 0
    assert f"warning: {path}:2: text: noise was trained without tags, and reads [sigh], [laughter] as words" in said
    code, _, said = run(command, path, *out, *steps, "--model", checkpoint_dir)
    assert code == 0 and "warning" not in said


def test_check_warns_of_what_is_hardly_meant(run, manifest):
    path = manifest({"text": "[Laughter] Hello."}, {"text": "Hello.", "duration": 500}, {"text": "Hello.", "speed": 10})
    code, printed, said = run("check", path)
    assert code == 0 and "all right" in printed
    told = [line.removeprefix(f"warning: {path}:").split(": ")[:2] for line in said.splitlines()]
    assert told == [["1", "text"], ["2", "duration"], ["3", "speed"]]
    assert "write [laughter]" in said and "milliseconds meant?" in said


def test_plan_prints_batches_without_padding(run, manifest, checkpoint_dir):
    path = manifest(*({"text": "Hello there, whoever you are."} for _ in range(10)))
    code, printed, _ = run("plan", path, "--model", checkpoint_dir, "--max-positions", 500)
    *_, last = printed.strip().splitlines()
    assert code == 0 and "10 clips" in last and "padding 0 %" in last
    assert run("plan", path, "--model", checkpoint_dir, "--limit", 3)[1].count("\n") == 3


def test_plan_names_what_would_fail(run, manifest, recording, checkpoint_dir):
    endless = {"text": "word" * 10_000, "ref_audio": "reference.wav", "ref_text": "So it is."}
    path = manifest({"text": "Hello."}, endless)
    code, printed, _ = run("plan", path, "--model", checkpoint_dir)
    assert code == 1 and f"would fail: {path}:2: text: " in printed and "1 batch, 1 clip" in printed


def test_a_text_that_cannot_be_split_is_refused_by_the_check(run, manifest, tmp_path, checkpoint_dir):
    """With a recording its length depends on that one's pace, which `check` does not know."""
    save_voice(tmp_path / "slow.safetensors", Voice(np.zeros((8, 500), np.int16), "Hi.", 0.1, "another"))
    path = manifest({"text": "word" * 4000}, {"text": "word" * 40, "voice": "slow.safetensors"})
    for command in (["check", path], ["plan", path], ["synth", path, "--out", tmp_path / "o"]):
        code, _, said = run(*command)
        assert code == 2 and f"{path}:1: text: 1135 s of speech without a place to split it" in said
        assert f"{path}:2: text: " in said and "add punctuation" in said
    assert not (tmp_path / "o").exists()


def test_plan_is_what_synth_runs(run, manifest, recording, tmp_path, checkpoint_dir, monkeypatch):
    from omnitts import pipeline

    batches = []
    generate = pipeline.generate
    monkeypatch.setattr(pipeline, "generate", lambda m, r, **k: batches.append(r) or generate(m, r, **k))
    long = "A first part of some length, then a second one; a third part, too. " * 3
    path = manifest(
        *({"text": "Hello there. " * (i + 1)} for i in range(5)),
        {"text": long, "recipe": {"audio_chunk_threshold": 5, "audio_chunk_duration": 3, "num_step": 1}},
        {"text": "Hi.", "ref_audio": "reference.wav", "ref_text": "So it is.", "recipe": {"guidance_scale": 0}},
    )
    common = [path, "--model", checkpoint_dir, "--max-positions", 700, *FAST]
    _, printed, _ = run("plan", *common)
    assert run("synth", *common, "--out", tmp_path / "o")[0] == 0
    planned = [tuple(map(int, line.split()[1:4])) for line in printed.splitlines()[1:-1]]
    ran = []
    for batch in batches:
        frames = sum(r.target_frames for r in batch)
        prompts = sum(len(r.prompt_ids) + (0 if r.reference is None else r.reference.shape[1]) for r in batch)
        again = sum(r.target_frames for r in batch if r.recipe.guidance_scale > 0)
        ran.append((len(batch), frames, prompts + frames + again))
    assert planned == ran


def test_recipes(run):
    code, printed, _ = run("recipes")
    assert code == 0
    assert [line.split()[0] for line in printed.splitlines()] == ["default", "fast", "greedy", "quality", "turbo"]
    code, printed, _ = run("recipes", "show", "fast", "--set", "seed=3")
    assert code == 0 and "num_step: 16" in printed and "seed: 3" in printed
    assert run("recipes", "show", "fsat")[0] == 2


def test_voice_create_and_use(run, manifest, recording, tmp_path, checkpoint_dir):
    voice = tmp_path / "me.safetensors"
    code, printed, _ = run("voice", "create", recording, "--text", "So it is.", "-o", voice, "--model", checkpoint_dir)
    assert code == 0 and "frames" in printed
    path = manifest({"id": "a", "text": "Hello."}, {"id": "b", "text": "Hello.", "voice": "me.safetensors"})
    options = ["--model", checkpoint_dir, *FAST]
    assert run("synth", path, "--out", tmp_path / "o", "--voice", voice, *options)[0] == 0
    assert run("synth", path, "--out", tmp_path / "p", *options)[0] == 0
    same = [(tmp_path / "o" / f"{i}.wav").read_bytes() == (tmp_path / "p" / f"{i}.wav").read_bytes() for i in "ab"]
    assert same == [False, True]
    assert run("voice", "create", tmp_path / "no.wav", "--text", "x", "-o", voice)[0] == 2
    for blank in ("", " ", "...!"):
        code, _, said = run("voice", "create", recording, "--text", blank, "-o", voice, "--model", checkpoint_dir)
        assert code == 2 and said.startswith("error: --text: ") and "has no word in it" in said


def test_a_voice_of_another_codec_is_refused_before_work_starts(run, manifest, tmp_path, checkpoint_dir):
    save_voice(tmp_path / "odd.safetensors", Voice(np.zeros((8, 5), np.int16), "Hi.", 0.1, "another"))
    path = manifest({"text": "Hi."}, {"text": "Hi.", "voice": "odd.safetensors"})
    for command in (["plan", path], ["synth", path, "--out", tmp_path / "o"]):
        code, _, said = run(*command, "--model", checkpoint_dir)
        assert code == 2 and f"error: {path}:2: voice: " in said and "made with another codec" in said
    assert not (tmp_path / "o").exists()


def test_voice_create_does_not_write_over_a_recording(run, recording, tmp_path, checkpoint_dir):
    common = ["--text", "So it is.", "--model", checkpoint_dir, "-o"]
    code, _, said = run("voice", "create", recording, *common, recording)
    assert code == 2 and "does not end in .safetensors" in said
    odd = recording.rename(tmp_path / "odd.safetensors")
    code, _, said = run("voice", "create", odd, *common, tmp_path / "x" / ".." / "odd.safetensors")
    assert code == 2 and f"{tmp_path}/x/../odd.safetensors is the recording {odd}" in said
    assert odd.read_bytes()[:4] == b"RIFF"


ON_THREADS = """
import omnitts.tts
from omnitts import cli, stages
omnitts.tts.stages_for = lambda device: stages.on_threads(None)
cli.main()
"""


def process(*arguments: object, threads: bool = False, **options) -> subprocess.Popen:
    """The tool as a process of its own; with `threads` its stages are those of a GPU's run."""
    start = ["-c", ON_THREADS] if threads else ["-m", "omnitts"]
    command = [sys.executable, *start, *map(str, arguments)]
    return subprocess.Popen(command, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, **options)


def omnitts(*arguments: object, stdin: str | None = None, **options) -> subprocess.CompletedProcess:
    """What the tool came to: its exit code, and what it wrote to the streams that `options` do not redirect."""
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with process(*arguments, **options) as running:
        out, err = running.communicate(stdin, timeout=300)
    return subprocess.CompletedProcess(running.args, running.returncode, out, err)


def test_standard_input(tmp_path, checkpoint_dir):
    done = omnitts(
        "synth",
        "-",
        "--out",
        tmp_path / "o",
        "--model",
        checkpoint_dir,
        *FAST,
        stdin='{"text": "Hi."}\n{"text": "Ho."}\n',
    )
    assert done.returncode == 0, done.stderr
    assert sorted(results_of(tmp_path / "o")) == ["000001", "000002"]


FULL = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")


@FULL
@pytest.mark.parametrize("command", [["--help"], ["recipes"], ["check", ROOT / "examples" / "manifest.jsonl"]])
def test_a_full_output_is_one_line(command):
    with open("/dev/full", "w") as full:
        done = omnitts(*command, stdout=full)
    assert (done.returncode, done.stderr) == (1, "error: standard output: No space left on device\n")


@FULL
def test_a_full_stderr_changes_no_exit_code(tmp_path):
    with open("/dev/full", "w") as full:
        assert omnitts("check", ROOT / "examples" / "manifest.jsonl", stderr=full).returncode == 0
        assert omnitts("check", tmp_path / "none.jsonl", stderr=full).returncode == 2


def test_a_reader_that_goes_away_changes_no_exit_code(tmp_path):
    (tmp_path / "results.jsonl").write_text('{"id": "a", "status": "failed"}\n')
    reader, writer = os.pipe()
    os.close(reader)
    for code, command in (
        (0, ["recipes", "show", "fast"]),
        (0, ["languages"]),
        (0, ["--help"]),
        (1, ["status", tmp_path]),
    ):
        done = omnitts(*command, stdout=writer)
        assert (done.returncode, done.stderr) == (code, ""), command
    os.close(writer)


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors in a shell's way")
def test_closed_streams(tmp_path, checkpoint_dir):
    done = omnitts("check", "-", preexec_fn=lambda: os.close(0))
    assert (done.returncode, done.stderr.count("\n")) == (2, 2 - 1) and "standard input is closed" in done.stderr
    (tmp_path / "a.jsonl").write_text('{"text": "Hi."}')
    common = ["synth", tmp_path / "a.jsonl", "--out", tmp_path, "--model", checkpoint_dir, *FAST]
    assert omnitts(*common, preexec_fn=lambda: [os.close(i) for i in range(3)]).returncode == 0
    assert results_of(tmp_path)["000001"]["status"] == "ok"


def test_a_broken_stderr_costs_no_audio(manifest, tmp_path, checkpoint_dir):
    """The progress bar, a failure's line and the closing line go nowhere; the run goes on."""
    path = manifest({"id": "a", "text": "Hi."}, {"id": "blocked", "text": "Hi."}, {"id": "b", "text": "Hi."})
    (tmp_path / "o" / "blocked.wav").mkdir(parents=True)
    reader, writer = os.pipe()
    os.close(reader)
    done = omnitts(
        *("synth", path, "--out", tmp_path / "o", "--model", checkpoint_dir, "--max-positions", 1, *FAST), stderr=writer
    )
    os.close(writer)
    assert done.returncode == 1
    statuses = {name: line["status"] for name, line in results_of(tmp_path / "o").items()}
    assert statuses == {"a": "ok", "blocked": "failed", "b": "ok"}
    assert json.loads((tmp_path / "o" / "summary.json").read_text())["written"] == 2


@pytest.mark.skipif(os.name != "posix", reason="sends a signal")
@pytest.mark.parametrize("threads", [False, True])
def test_sigterm_keeps_what_is_done(manifest, tmp_path, checkpoint_dir, threads):
    path = manifest(*({"text": "Hello there."} for _ in range(500)))
    out = tmp_path / "o"
    command = ["synth", path, "--out", out, "--model", checkpoint_dir, "--max-positions", 1, "--set", "num_step=16"]
    with process(*command, threads=threads, stderr=subprocess.PIPE) as running:
        while running.poll() is None and not ((out / "results.jsonl").exists() and results_of(out)):
            time.sleep(0.05)
        for again in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # as schedulers and shells do it
            running.send_signal(again)
            time.sleep(0.02)
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and "interrupted" in said and "Traceback" not in said
    summary = json.loads((out / "summary.json").read_text())
    assert summary["interrupted"] and summary["written"] == len(results_of(out)) < 500
    assert len(list(out.glob("*.wav"))) == len(results_of(out))


def test_a_broken_encoder_is_refused_before_work_starts(run, manifest, recording, tmp_path, checkpoint_dir):
    model = Path(shutil.copytree(checkpoint_dir, tmp_path / "model"))
    weights = model / "audio_tokenizer" / "model.safetensors"
    tensors = load_file(weights)
    tensors["fc.bias"][0] = float("nan")
    save_file(tensors, weights)
    line = {"text": "Hi.", "ref_audio": str(recording), "ref_text": "What is said in it."}
    options = ["--model", model, "--quiet", *FAST, "--out", tmp_path / "o"]
    code, _, said = run("synth", manifest(line), *options)
    assert code == 2 and "fc.bias holds numbers that are not finite" in said and said.count("\n") == 1
    assert not (tmp_path / "o" / "results.jsonl").exists()
    assert run("synth", manifest({"text": "Hi."}), *options)[0] == 0  # which needs no encoder
    code, _, said = run("voice", "create", recording, "--text", "Hi.", "-o", tmp_path / "v.safetensors", *options[:2])
    assert code == 2 and "not finite" in said and not (tmp_path / "v.safetensors").exists()


def test_help_is_quick_and_loads_nothing_heavy():
    start = time.perf_counter()
    done = omnitts("--help")
    assert done.returncode == 0 and "synth" in done.stdout
    assert time.perf_counter() - start < 2  # half a second on an idle machine
    code = (
        "import sys, omnitts.cli as c\ntry: c.main(['check', sys.argv[1]])\nexcept SystemExit as e: assert not e.code\n"
    )
    code += "print([m for m in ('torch', 'transformers', 'tokenizers') if m in sys.modules])"
    manifest = ROOT / "examples" / "manifest.jsonl"
    done = subprocess.run([sys.executable, "-c", code, manifest], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "[]", done.stderr


def test_every_command_explains_itself(run):
    for command in (
        [],
        ["synth"],
        ["check"],
        ["plan"],
        ["recipes"],
        ["recipes", "show"],
        ["voice"],
        ["voice", "create"],
        ["bench"],
        ["bench", "sampler"],
        ["bench", "step"],
        ["bench", "precision"],
        ["bench", "job"],
        ["dump"],
        ["dump", "show"],
        ["dump", "plot"],
        ["dump", "diff"],
        ["dump", "report"],
        ["dump", "export"],
    ):
        code, printed, _ = run(*command, "--help")
        assert code == 0 and "Usage" in printed


def test_bench_needs_a_gpu(run):
    import torch

    if not torch.cuda.is_available():
        code, _, said = run("bench", "sampler")
        assert code == 2 and "CUDA" in said


# ---- Runs that go on where others ended ----


def lines_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_same_command_again_makes_what_is_missing(run, manifest, tmp_path, checkpoint_dir):
    path, out = manifest(*({"id": name, "text": "Hello."} for name in "abc")), tmp_path / "out"
    common = ["synth", path, "--out", out, "--model", checkpoint_dir, *FAST]
    assert run(*common, "--limit", 2)[0] == 0
    first = (out / "a.wav").stat().st_mtime_ns
    code, _, said = run(*common)
    assert code == 0 and "1 of 3 written" in said and "2 were there" in said
    assert [line["id"] for line in lines_of(out)][2:] == ["c"] and (out / "a.wav").stat().st_mtime_ns == first
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["state"], summary["written"], summary["kept"]) == ("finished", 1, 2)
    (out / "b.wav").unlink()
    assert "1 of 3 written" in run(*common)[2]
    (out / "b.wav").write_bytes(b"")
    assert "1 of 3 written" in run(*common)[2]
    assert "0 of 3 written" in run(*common)[2]
    code, _, said = run(*common, "--overwrite")
    assert code == 0 and "3 of 3 written" in said and len(lines_of(out)) == 8


def test_what_changed_is_made_again(run, manifest, tmp_path, checkpoint_dir):
    out = tmp_path / "out"
    common = ["--out", out, "--model", checkpoint_dir]
    run("synth", manifest({"id": "a", "text": "Hello."}, {"id": "b", "text": "Hello."}), *common, *FAST)
    changed = manifest({"id": "a", "text": "Hello."}, {"id": "b", "text": "Good day."})
    assert "1 of 2 written" in run("synth", changed, *common, *FAST)[2]
    assert "2 of 2 written" in run("synth", changed, *common, "--set", "num_step=3")[2]
    assert "2 of 2 written" in run("synth", changed, *common, "--set", "num_step=3", "--format", "flac")[2]
    assert "2 of 2 written" in run("synth", changed, *common, "--set", "num_step=3", "--save-codes")[2]
    assert [line["id"] for line in lines_of(out)][:3] == ["a", "b", "b"] and len(lines_of(out)) == 9


def test_failed_lines_are_tried_again_when_asked(run, manifest, recording, tmp_path, checkpoint_dir, monkeypatch):
    out = tmp_path / "out"
    path = manifest({"id": "a", "text": "Hello."}, {"id": "b", "text": "Hello."})
    common = ["synth", path, "--out", out, "--model", checkpoint_dir, *FAST]
    with monkeypatch.context() as patched:
        patched.setattr(Claims, "put", refuse_a)
        assert run(*common)[0] == 1
    code, _, said = run(*common)
    assert code == 1 and "1 had failed before" in said and "0 of 2 written" in said
    assert run("status", out)[:2] == (1, run("status", out)[1]) and "1 failed" in run("status", out)[1]
    code, _, said = run(*common, "--retry-failed")
    assert code == 0 and "1 of 2 written" in said
    assert run("status", out)[0] == 0


def test_shards_share_a_folder_and_the_work(run, manifest, tmp_path, checkpoint_dir):
    path, out = manifest(*({"id": name, "text": f"Hello {name}."} for name in "abcde")), tmp_path / "out"
    common = ["--model", checkpoint_dir, *FAST]
    assert run("synth", path, "--out", out, *common, "--shard", "1/2")[0] == 0
    code, said, _ = run("status", out)
    assert code == 1 and "not begun: part 2 of 2" in said
    assert run("synth", path, "--out", out, *common, "--shard", "2/2")[0] == 0
    texts = [(out / f"results-{i}-of-2.jsonl").read_text().splitlines() for i in (1, 2)]
    names = [sorted(json.loads(line)["id"] for line in part) for part in texts]
    assert names == [["a", "c", "e"], ["b", "d"]]
    code, said, _ = run("status", out)
    assert (
        code == 0 and "results-1-of-2.jsonl: 3 of 3 written" in said and "2 parts: 5 written, 0 failed, 0 left" in said
    )
    assert run("synth", path, "--out", tmp_path / "whole", *common)[0] == 0
    for name in "abcde":
        assert (out / f"{name}.wav").read_bytes() == (tmp_path / "whole" / f"{name}.wav").read_bytes()
    assert "0 of 5 written" in run("synth", path, "--out", out, *common)[2]  # however it is cut, it is all there
    for wrong in ("0/2", "3/2", "1", "a/b", "-1/2"):
        assert run("synth", path, "--out", out, *common, f"--shard={wrong}")[0] == 2


def test_status_without_a_job(run, tmp_path):
    (tmp_path / "file").write_text("")
    for name, why in (("none", "no such folder"), ("file", "a file"), ("", "no results.jsonl")):
        code, _, said = run("status", tmp_path / name)
        assert code == 2 and why in said and len(said.splitlines()) == 1


def test_a_first_signal_waits_for_the_batch(tmp_path, checkpoint_dir):
    """What the batch at hand makes is kept, and nothing is done twice."""
    path, out = tmp_path / "lines.jsonl", tmp_path / "out"
    path.write_text("".join(json.dumps({"id": f"{i:03d}", "text": f"Hello {i}."}) + "\n" for i in range(400)))
    command = [sys.executable, "-m", "omnitts", "synth", path, "--out", out, "--model", checkpoint_dir, "--set"]
    with subprocess.Popen([*map(str, command), "num_step=8"], cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        wait_for(lambda: out.exists() and (out / "results.jsonl").exists() and len(lines_of(out)) > 3)
        running.send_signal(signal.SIGTERM)
        said = running.communicate(timeout=60)[1]
    assert running.returncode == 130 and "stopping after the current batch" in said and "interrupted" in said
    done = len(lines_of(out))
    assert 3 < done < 400 and json.loads((out / "summary.json").read_text())["written"] == done
    assert not list(out.glob(".*"))


def wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_doctor_says_what_there_is(run, tmp_path, checkpoint_dir, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "doctor.json"
    code, printed, said = run("doctor", "--model", checkpoint_dir, "--device", "cpu", "--json", path)
    assert (code, said) == (0, "") and printed.endswith("\nno problem\n") and "real-time factor" in printed
    assert json.loads(path.read_text())["problems"] == []
    code, printed, _ = run("doctor", "--model", tmp_path, "--device", "cpu")
    assert code == 1 and f"\nproblem: {tmp_path}: not a whole checkpoint" in printed
    assert printed.endswith("\n1 problem\n")


def test_doctor_refuses_bad_options_before_it_looks(run, tmp_path):
    assert run("doctor", "--device", "gpu") == (
        *(2, "", "error: --device: no device is called 'gpu': use auto, cpu, cuda or cuda:N\n"),
    )
    (tmp_path / "file").write_text("")
    code, printed, said = run("doctor", "--json", tmp_path / "file" / "doctor.json")
    assert code == 2 and printed == "" and "--json" in said and said.count("\n") == 1


def test_bad_lines_can_be_left_out(run, manifest, recording, tmp_path, checkpoint_dir):
    bad = tmp_path / "bad.wav"
    bad.write_bytes(b"RIFF")
    path = manifest(
        *({"id": f"good-{i}", "text": "Hello."} for i in range(3)),
        '{"id": "broken", "text": ',
        {"id": "good-0", "text": "Once more."},
        {"id": "no-file", "text": "Hi.", "ref_audio": "none.wav", "ref_text": "So."},
        {"id": "no-audio", "text": "Hi.", "ref_audio": str(bad), "ref_text": "So."},
        {"id": "empty", "text": "  "},
        {"id": "good-3", "text": "Hi.", "ref_audio": str(recording), "ref_text": "Hello there."},
    )
    common = ["synth", path, "--out", tmp_path / "o", "--model", checkpoint_dir, *FAST]
    code, _, said = run(*common)
    assert code == 2 and not (tmp_path / "o").exists()
    code, _, said = run(*common, "--keep-going")
    results = results_of(tmp_path / "o")
    assert code == 1 and "4 of 9 written" in said and "5 failed" in said
    failed = {name: line["error"] for name, line in results.items() if line["status"] == "failed"}
    assert sorted(failed) == ["empty", "line/4", "line/5", "no-audio", "no-file"]
    for line, field in ((4, "malformed"), (5, "id"), (6, "ref_audio"), (7, "ref_audio"), (8, "text")):
        assert any(error.startswith(f"{path}:{line}: {field}") for error in failed.values())
    code, _, said = run(*common, "--keep-going")
    assert code == 1 and "0 of 9 written" in said and "5 had failed before" in said
    assert len(lines_of(tmp_path / "o")) == 9
    (tmp_path / "o" / "line").mkdir()
    (tmp_path / "o" / "line" / "3.wav").write_bytes(b"somebody's own")
    path = manifest({"id": "good-1", "text": "..."}, {"id": "good-2", "text": "Hello."}, "no JSON", name=path.name)
    code, _, said = run(*common, "--keep-going")
    assert code == 1 and "0 of 3 written" in said and "1 were there" in said and "2 failed" in said
    assert (tmp_path / "o" / "line" / "3.wav").exists()
    assert not (tmp_path / "o" / "good-1.wav").exists() and (tmp_path / "o" / "good-2.wav").exists()
    only_bad = manifest({"text": ""}, name="bad.jsonl")
    assert run("synth", only_bad, "--out", tmp_path / "p", "--keep-going")[0] == 2


def test_nothing_to_do_loads_no_model(run, manifest, tmp_path, checkpoint_dir, monkeypatch):
    from omnitts import tts

    path, out = manifest({"id": "a", "text": "Hi."}, {"id": "b", "text": "Ho."}), tmp_path / "out"
    command = ["synth", path, "--out", out, "--model", checkpoint_dir, *FAST]
    assert run(*command)[0] == 0
    monkeypatch.setattr(tts, "load_checkpoint", None)
    code, _, said = run(*command)
    assert code == 0 and "0 of 2 written" in said and "2 were there" in said
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert (summary["state"], summary["kept"], summary["device"]) == ("finished", 2, None)


def test_parts_of_another_number_know_what_the_latest_run_made(run, manifest, tmp_path, checkpoint_dir):
    path, out = manifest({"id": "a", "text": "Hi."}, {"id": "b", "text": "Ho."}), tmp_path / "out"
    common = ["synth", path, "--out", out, "--model", checkpoint_dir]
    audio = []
    for steps, part, written in ((2, "1/2", 1), (3, "1/1", 2), (2, "1/2", 1), (2, "1/2", 0)):
        code, _, said = run(*common, "--set", f"num_step={steps}", "--shard", part)
        assert code == 0 and f"{written} of " in said
        audio.append((out / "a.wav").read_bytes())
    assert audio[0] == audio[2] == audio[3] != audio[1]
    code, said, _ = run("status", out)
    assert "2 parts: 2 written, 0 failed" in said and "not begun: part 2 of 2" in said and code == 1
    assert run(*common, "--set", "num_step=2")[0] == 0
    code, said, _ = run("status", out)
    assert "3 parts: 2 written, 0 failed, 0 left" in said and code == 0
    for part in out.glob("results-*"):
        part.unlink()
    code, _, said = run(*common, "--set", "num_step=2", "--overwrite")
    assert code == 2 and "1 file in the way that omnitts did not write" in said  # for all that is known
    assert run(*common, "--set", "num_step=2", "--replace-files")[0] == 0
    assert run(*common, "--set", "num_step=2", "--shard", "1/1")[0] == 0
    assert "results-1-of-1.jsonl: 0 of 2 written, 0.0 s of audio; complete since" in run("status", out)[1]


def test_parts_of_another_number_are_refused_meanwhile(run, manifest, tmp_path, checkpoint_dir):
    from omnitts.files import open_alone

    path, out = manifest({"id": "a", "text": "Hi."}, {"id": "b", "text": "Ho."}), tmp_path / "out"
    out.mkdir()
    common = ["synth", path, "--out", out, "--model", checkpoint_dir, *FAST]
    with open_alone(out / "results-2-of-2.jsonl", "--out"):
        assert run(*common, "--shard", "1/2")[0] == 0
        for options in ([], ["--shard", "1/3"]):
            code, _, said = run(*common, *options)
            assert code == 2 and "--out: another run, with another --shard, is writing into" in said
        assert sorted(each.name for each in out.glob("results*")) == ["results-1-of-2.jsonl", "results-2-of-2.jsonl"]
    assert run(*common)[0] == 0


def test_only_what_stdout_refuses_is_said_of_it(run, monkeypatch):
    from omnitts.model import language

    def refused(_search):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(language, "languages", refused)
    assert run("languages") == (1, "", "error: Input/output error\n")

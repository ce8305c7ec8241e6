"""Where the audio of dumps is found: in files and in shards, by the results or by name."""

import json
import re
import tarfile

import numpy as np
import pytest

from omnitts.dump.recording import Recording, Recordings
from omnitts.encoding import AudioOptions, write_audio
from omnitts.layout import Layout
from tests.dump.conftest import make_dump, write

FORMATS = ["wav", "flac", "ogg", "opus", "mp3"]


def sound(path, seconds=0.5):
    path.parent.mkdir(parents=True, exist_ok=True)
    wave = (np.sin(np.arange(int(24000 * seconds)) / 20) / 2).astype(np.float32)
    write_audio(path, wave, 24000, AudioOptions(path.suffix[1:]))
    return path


def shard(folder, name, *members, seconds=0.5):
    """A tar of sounds, as webdataset has them."""
    with tarfile.open(folder / name, "w") as archive:
        for member in members:
            archive.add(sound(folder / "work" / member, seconds), member)
            (folder / "work" / member).unlink()


def results(folder, *lines, name="results.jsonl"):
    (folder / name).write_text("".join(json.dumps({"status": "ok"} | line) + "\n" for line in lines))


@pytest.fixture
def dumps(tmp_path):
    (tmp_path / "dumps").mkdir()
    for id in "abc":
        write(tmp_path / "dumps", make_dump(id))
    return tmp_path / "dumps"


@pytest.fixture
def wavs(tmp_path):
    (tmp_path / "wavs").mkdir()
    return tmp_path / "wavs"


def report(run, dumps, wavs, out):
    code, printed, said = run("dump", "report", dumps, "--wavs", wavs, "-o", out)
    assert printed == f"{out}: 3 dumps\n"
    return code, len(re.findall(r'<script type="text/plain" id="audio-', out.read_text(encoding="utf-8"))), said


@pytest.mark.parametrize(
    "options", [["--webdataset", 2], ["--webdataset", 5, "--shard", "1/1"], ["--layout", "nested:3"]]
)
def test_audio_of_a_run_is_in_the_page(run, tmp_path, checkpoint_dir, options):
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"id": id, "text": "Hi."}) + "\n" for id in "abc"))
    wavs, dumps = tmp_path / "wavs", tmp_path / "dumps"
    common = ["--out", wavs, "--dump-logprobs", dumps, "--format", "flac", "--set", "num_step=2", *options]
    assert run("synth", tmp_path / "lines.jsonl", "--model", checkpoint_dir, *common)[0] == 0
    assert report(run, dumps, wavs, tmp_path / "page.html") == (0, 3, "")


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("recorded", [True, False])
def test_shards_of_every_format(run, dumps, wavs, tmp_path, format, recorded):
    names = [f"{id}.{format}" for id in "abc"]
    shard(wavs, "000000.tar", *names[:2])
    shard(wavs, "000001-2-of-2.tar", names[2])
    if recorded:
        first, second = "000000.tar", "000001-2-of-2.tar"
        lines = [{"id": n[0], "shard": first if n[0] < "c" else second, "names": [f"{n[0]}.json", n]} for n in names]
        results(wavs, *lines[:2], name="results-1-of-2.jsonl")
        results(wavs, lines[2], name="results-2-of-2.jsonl")
    assert report(run, dumps, wavs, tmp_path / "page.html") == (0, 3, "")


def test_the_latest_reading_counts(wavs):
    shard(wavs, "000000.tar", "a.wav", "b.wav")
    shard(wavs, "000001.tar", "a.wav", seconds=1.0)
    assert Recordings(wavs, "ab").find("a") == Recording(wavs / "000001.tar", "a.wav")  # without results
    line = {"id": "a", "names": ["a.wav"]}
    results(wavs, line | {"shard": "000001.tar"}, line | {"shard": "000000.tar"}, {"id": "b", "status": "failed"})
    found = Recordings(wavs, "ab")
    assert found.find("a") == Recording(wavs / "000000.tar", "a.wav") and found.find("b") is None
    wave, rate = Recordings(wavs, "ab").find("a").wave()
    assert (len(wave), rate) == (12000, 24000)


def test_results_name_the_file_and_names_do_where_it_is_gone(wavs):
    results(
        wavs,
        {"id": "a", "path": "odd/place.wav"},
        {"id": "b", "path": "b.wav"},
        {"id": "c", "shard": "gone.tar", "names": ["c.wav"]},
    )
    for name in ("odd/place.wav", "a.wav", f"{Layout(2).stem('b')}.mp3", "c.ogg"):
        sound(wavs / name)
    found = Recordings(wavs, "abc")
    assert [found.find(id).path.relative_to(wavs).as_posix() for id in "abc"] == [
        "odd/place.wav",
        f"{Layout(2).stem('b')}.mp3",
        "c.ogg",
    ]


def test_ids_with_dots_are_found_in_other_archives(wavs):
    shard(wavs, "mine.tar", "a.b.wav")
    assert Recordings(wavs, ["a.b"]).find("a.b") == Recording(wavs / "mine.tar", "a.b.wav")


def test_missing_audio_is_counted(run, dumps, wavs, tmp_path):
    code, players, said = report(run, dumps, wavs, tmp_path / "page.html")
    assert (code, players, said.count("\n")) == (1, 0, 1)
    assert said.startswith(f"warning: --wavs: no audio for 3 of 3 dumps in {wavs}: a, b, c; name the folder")
    sound(wavs / "a.mp3")
    code, players, said = report(run, dumps, wavs, tmp_path / "page.html")
    assert (code, players) == (1, 1) and "no audio for 2 of 3 dumps" in said and ": b, c;" in said
    write(dumps, make_dump("b", error="it failed"))
    write(dumps, make_dump("c", error="it failed"))
    assert report(run, dumps, wavs, tmp_path / "page.html") == (0, 1, "")


def test_beside_the_dumps_audio_may_be_missing(run, dumps, tmp_path):
    out = tmp_path / "page.html"
    shard(dumps, "000000.tar", "a.wav")
    assert run("dump", "report", dumps, "-o", out) == (0, f"{out}: 3 dumps\n", "")
    assert out.read_text(encoding="utf-8").count('id="audio-') == 1


def test_damaged_shards_are_told(run, dumps, wavs, tmp_path):
    shard(wavs, "000000.tar", "a.wav")
    (wavs / "000001.tar").write_bytes(b"no archive")
    code, players, said = report(run, dumps, wavs, tmp_path / "page.html")
    assert (code, players, said.count("\n")) == (1, 1, 2)
    assert f"cannot read as a tar archive: {wavs}/000001.tar" in said and "no audio for 2 of 3" in said
    results(
        wavs,
        {"id": "a", "shard": "000001.tar", "names": ["a.wav"]},
        {"id": "b", "shard": "000000.tar", "names": ["b.wav"]},
    )
    said = report(run, dumps, wavs, tmp_path / "page.html")[2]
    assert f"a.wav in {wavs}/000001.tar" in said and f"b.wav in {wavs}/000000.tar" in said


def test_a_member_that_is_no_audio_is_told_by_its_name(run, dumps, wavs, tmp_path):
    (wavs / "b.wav").write_bytes(b"no audio")
    with tarfile.open(wavs / "x.tar", "w") as archive:
        archive.add(wavs / "b.wav", "a.wav")
    code, players, said = report(run, dumps, wavs, tmp_path / "page.html")
    assert (code, players) == (1, 0) and f"cannot read as audio: a.wav in {wavs}/x.tar (" in said


def test_a_plot_takes_audio_from_a_shard_beside_the_dump(run, dumps, tmp_path):
    shard(dumps, "000000.tar", "a.flac")
    code, printed, _ = run("dump", "plot", dumps / "a.dump.safetensors", "-o", tmp_path / "a.png")
    assert code == 0 and printed.endswith(f"a, with a.flac in {dumps}/000000.tar\n")

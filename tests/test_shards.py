import io
import json
import tarfile
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from omnitts import shards
from omnitts.encoding import AudioOptions
from omnitts.errors import InputError
from omnitts.fingerprint import fingerprint
from omnitts.manifest import read_utterances
from omnitts.recipe import Recipe
from omnitts.shards import ShardWriter, check_shard_ids, members
from omnitts.speech import Speech


def line(name: str, **more) -> dict:
    return {"id": name, "status": "ok", "path": None, "seconds": 1.0, "frames": 25, "error": None, **more}


def files(name: str, size: int = 700) -> dict[str, bytes]:
    return {f"{name}.wav": bytes(size), f"{name}.json": b"{}"}


def add(writer: ShardWriter, *names: str) -> list[str]:
    return [made["id"] for name in names for made in writer.add(line(name), files(name))]


def names_in(path: Path) -> list[str]:
    with tarfile.open(path) as tar:
        return tar.getnames()


def test_a_line_is_given_out_when_its_shard_is_whole(tmp_path):
    with ShardWriter(tmp_path, 2) as writer:
        assert add(writer, "a") == [] and shards.shard_paths(tmp_path) == []
        made = list(writer.add(line("b"), files("b")))
        assert [(each["id"], each["shard"], each["names"]) for each in made] == [
            ("a", "000000.tar", ["a.wav", "a.json"]),
            ("b", "000000.tar", ["b.wav", "b.json"]),
        ]
        assert names_in(tmp_path / "000000.tar") == ["a.wav", "a.json", "b.wav", "b.json"]
        assert add(writer, "c") == []
        assert [each["shard"] for each in writer.close()] == ["000001.tar"]
        assert list(writer.close()) == []
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".tar"] == []
    assert names_in(tmp_path / "000001.tar") == ["c.wav", "c.json"]


def test_shards_are_equal_to_the_byte_and_tell_nothing_of_their_making(tmp_path):
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        with ShardWriter(tmp_path / name, 9) as writer:
            add(writer, "a", "été", "long" * 50)
            list(writer.close())
        made.append((tmp_path / name / "000000.tar").read_bytes())
    assert made[0] == made[1]
    with tarfile.open(fileobj=io.BytesIO(made[0])) as tar:
        assert [(each.mtime, each.uid, each.gid, each.uname, each.gname) for each in tar] == [(0, 0, 0, "", "")] * 6
        assert tar.getnames()[2:5] == ["été.wav", "été.json", "long" * 50 + ".wav"]


def test_a_failed_line_is_given_out_at_once_and_takes_no_place(tmp_path):
    with ShardWriter(tmp_path, 2) as writer:
        add(writer, "a")
        (failed,) = writer.add(line("b", status="failed", error="why"), {})
        assert failed["error"] == "why" and failed["shard"] is None and failed["names"] is None
        assert add(writer, "c") == ["a", "c"]


def test_a_run_that_ends_without_close_leaves_whole_shards_only(tmp_path):
    with pytest.raises(RuntimeError), ShardWriter(tmp_path, 2) as writer:
        add(writer, "a", "b", "c")
        raise RuntimeError
    assert [path.name for path in tmp_path.iterdir()] == ["000000.tar"]


def test_numbers_that_are_free_are_taken_in_order(tmp_path):
    (tmp_path / "000001.tar").write_bytes(b"whole")
    (tmp_path / "other.tar").write_bytes(b"not ours")
    with ShardWriter(tmp_path, 1) as writer:
        assert add(writer, "a", "b") == ["a", "b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000000.tar", "000001.tar", "000002.tar", "other.tar"]
    assert (tmp_path / "000001.tar").read_bytes() == b"whole"


def test_shards_that_may_be_replaced_are(tmp_path):
    for number in range(3):
        (tmp_path / f"00000{number}.tar").write_bytes(b"old")
    with ShardWriter(tmp_path, 1, replaces=[tmp_path / "000001.tar"]) as writer:
        add(writer, "a", "b")
    old = [path.name for path in sorted(tmp_path.iterdir()) if path.read_bytes() == b"old"]
    assert old == ["000000.tar", "000002.tar"] and (tmp_path / "000003.tar").exists()


def test_lines_tell_how_their_shard_is_known_again(tmp_path):
    with ShardWriter(tmp_path, 2) as writer:
        add(writer, "a")
        made = list(writer.add(line("b", files={"../dumps/b": {}}), files("b")))
    shard = tmp_path / "000000.tar"
    assert made[0]["files"] == {shard.name: asdict(fingerprint(shard.read_bytes()))}
    assert list(made[1]["files"]) == ["../dumps/b", shard.name]


def fail_writes(writer: ShardWriter, error: BaseException) -> None:
    """The next write stops half way."""
    part = writer._part

    class Full:
        name = part.name

        def write(self, data):
            part.write(data[: len(data) // 2])
            writer._part = part
            raise error

        def __getattr__(self, name):
            return getattr(part, name)

    writer._part = Full()


def test_a_full_disk_names_the_shard_and_leaves_the_utterance_at_hand_out(tmp_path):
    with ShardWriter(tmp_path, 3) as writer:
        add(writer, "a")
        fail_writes(writer, OSError(28, "No space left on device"))
        with pytest.raises(OSError, match=r"No space left on device: '.*/000000\.tar'"):
            writer.add(line("b"), files("b"))
        assert [each["id"] for each in writer.close()] == ["a"]
    assert names_in(tmp_path / "000000.tar") == ["a.wav", "a.json"]


def test_an_interruption_in_the_middle_of_an_utterance_leaves_it_out(tmp_path):
    with ShardWriter(tmp_path, 3) as writer:
        add(writer, "a")
        fail_writes(writer, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            add(writer, "b")
        assert [each["id"] for each in writer.close()] == ["a"]
    assert names_in(tmp_path / "000000.tar") == ["a.wav", "a.json"]


def test_lines_that_nobody_took_are_given_out_later(tmp_path):
    with ShardWriter(tmp_path, 2) as writer:
        add(writer, "a")
        assert next(writer.add(line("b"), files("b")))["id"] == "a"
        assert [each["id"] for each in writer.close()] == ["b"]


def test_a_shard_that_cannot_be_ended_gives_no_line_out_and_may_be_tried_again(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise OSError(13, "Permission denied")

    with ShardWriter(tmp_path, 2) as writer:
        add(writer, "a")
        with monkeypatch.context() as patch:
            patch.setattr(shards.os, "replace", refuse)
            with pytest.raises(PermissionError, match=r"'.*/000000\.tar'"):
                writer.add(line("b"), files("b"))
        assert shards.shard_paths(tmp_path) == []
        assert [each["id"] for each in writer.close()] == ["a", "b"]
    assert names_in(tmp_path / "000000.tar") == ["a.wav", "a.json", "b.wav", "b.json"]


def test_a_shard_that_cannot_be_ended_at_all_is_dropped(tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards.os, "replace", refuse)
    with ShardWriter(tmp_path, 9) as writer:
        add(writer, "a")
        with pytest.raises(OSError, match="No space left"):
            writer.close()
    assert list(tmp_path.iterdir()) == []


def test_members_are_audio_facts_and_codes():
    (utterance,) = read_utterances(
        [{"id": "é", "text": "Good day.", "language": "en", "instruct": "male"}], recipe=Recipe()
    )
    speech = Speech(
        "é",
        utterance.recipe,
        7,
        audio=np.full(24_000, 0.25, np.float32),
        codes=np.arange(200, dtype=np.int16).reshape(8, 25),
    )
    made = members(speech, utterance, AudioOptions("flac", 48_000))
    assert list(made) == ["é.flac", "é.json", "é.codes.npy"]
    assert soundfile.info(io.BytesIO(made["é.flac"])).frames == 48_000
    np.testing.assert_array_equal(np.load(io.BytesIO(made["é.codes.npy"])), speech.codes)
    facts = json.loads(made["é.json"])
    assert set(facts) == {
        *("id", "text", "language", "instruct", "seconds", "frames", "seed", "recipe", "recipe_digest", "sample_rate"),
    }
    assert (facts["text"], facts["seconds"], facts["frames"], facts["sample_rate"]) == ("Good day.", 1.0, 25, 48_000)
    assert (facts["language"], facts["instruct"], facts["seed"]) == ("en", "male", 7)


def test_ids_with_dots_are_refused():
    good, dotted = read_utterances([{"id": "a", "text": "Hi."}, {"id": "b.c", "text": "Hi."}], recipe=Recipe())
    check_shard_ids([good], file="lines.jsonl")
    with pytest.raises(InputError, match=r"^lines.jsonl:2: id: 'b.c' has a dot, at which --webdataset would cut it: "):
        check_shard_ids([good, dotted], file="lines.jsonl")
    with pytest.raises(InputError, match=r"cut it \(and 1 more id\): give ids without dots"):
        check_shard_ids([dotted, replace(dotted, id="c.d")], file="lines.jsonl")


def test_parts_of_a_manifest_number_their_own_shards(tmp_path):
    for part in ((1, 2), (2, 2), (1, 2)):
        with ShardWriter(tmp_path, 1, part=part) as writer:
            add(writer, "a")
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == ["000000-1-of-2.tar", "000000-2-of-2.tar", "000001-1-of-2.tar"]

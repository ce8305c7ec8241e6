import json
from dataclasses import asdict

import pytest

from omnitts.fingerprint import State, fingerprint
from omnitts.ledger import Ledger, hash_of

KEY, OTHER = "0" * 15 + "1", "f" * 16


def write(path, *lines) -> None:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))


def line(name: str, status: str = "ok", key: str = KEY, **more) -> dict:
    return {"id": name, "status": status, "key": key, **more}


def test_the_last_line_of_an_id_counts(tmp_path):
    write(tmp_path / "results-2-of-3.jsonl", line("c", key=OTHER), line("a", key=OTHER))
    write(tmp_path / "results.jsonl", line("a", "failed"), line("b"), line("a"), {"id": "old", "status": "ok"})
    ledger = Ledger(tmp_path)
    assert len(ledger) == 4 and ledger.entry("d") is None
    assert ledger.entry("a").ok and ledger.entry("a").key == hash_of(KEY) != ledger.entry("c").key == hash_of(OTHER)
    assert ledger.entry("old").key == 0 and not ledger.entry("old").tells_manifest


def test_all_files_that_any_line_told_of_are_own(tmp_path):
    data = b"x" * 100
    (tmp_path / "a.wav").write_bytes(data)
    new = line("a", files={"a.wav": asdict(fingerprint(data)), "../dumps/a.dump": asdict(fingerprint(b""))})
    write(
        tmp_path / "results.jsonl", new, line("a", "failed"), line("b", path="ab/b.wav"), line("c", shard="000000.tar")
    )
    ledger = Ledger(tmp_path)
    for name in ("a.wav", "../dumps/a.dump", "ab/b.wav", "ab/b.codes.npy", "000000.tar"):
        assert ledger.tells(name), name
    assert not ledger.tells("b.wav")
    assert ledger.state("a.wav") is State.WHOLE and ledger.state("ab/b.wav") is State.MISSING
    assert ledger.state("b.wav") is None


def test_a_shard_that_was_written_anew_holds_its_own_lines_only(tmp_path):
    old, new = b"old" * 100, b"new" * 100
    (tmp_path / "000000.tar").write_bytes(new)
    told = [
        line(name, shard="000000.tar", files={"000000.tar": asdict(fingerprint(data))})
        for name, data in (("a", old), ("b", old), ("b", new))
    ]
    write(tmp_path / "results.jsonl", *told)
    ledger = Ledger(tmp_path)
    assert not ledger.holds_shard(ledger.entry("a")) and ledger.holds_shard(ledger.entry("b"))
    assert ledger.in_use("000000.tar") and not ledger.in_use("000001.tar")
    (tmp_path / "000000.tar").write_bytes(new[:-1])
    assert not Ledger(tmp_path).holds_shard(ledger.entry("b"))


@pytest.mark.parametrize(
    "broken",
    [
        *({"seconds": float("nan")}, {"seconds": "1"}, {"seconds": -1}, {"seconds": None}, {"seconds": 10**400}),
        *({"seconds": True}, {"seconds": float("inf")}),
    ],
)
def test_a_line_that_cannot_be_true_settles_nothing(tmp_path, broken):
    write(tmp_path / "results.jsonl", line("a", path="a.wav", **broken), line("b"))
    ledger = Ledger(tmp_path)
    assert ledger.entry("a") is None and ledger.entry("b").ok and ledger.tells("a.wav")


@pytest.mark.parametrize(
    "odd",
    [
        *({"files": []}, {"files": {"a": 1}}, {"files": {"a": {"bytes": "1"}}}, {"files": {"a": {"bytes": -1}}}),
        *({"key": 5}, {"key": "xyz"}, {"content": []}, {"manifest": 3}, {"shard": 4}, {"path": []}, {"status": None}),
        *({"files": {"a": {"bytes": 10**30, "head": None}}}, {"key": "z" * 16}),
    ],
)
def test_odd_values_are_no_error(tmp_path, odd):
    write(tmp_path / "results.jsonl", line("a") | odd, "[1]\n", "null\n", '{"id": 3, "status": "ok"}\n', line("b"))
    assert Ledger(tmp_path).entry("b").ok


def test_manifests_are_told(tmp_path):
    write(tmp_path / "results.jsonl", line("a", manifest="../a.txt"), line("b", manifest=None), line("c"))
    entries = [Ledger(tmp_path).entry(name) for name in "abc"]
    assert [(entry.manifest, entry.tells_manifest) for entry in entries] == [
        ("../a.txt", True),
        (None, True),
        (None, False),
    ]

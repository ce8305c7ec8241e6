import pytest

from omnitts.claims import Claims, name_in, read_claims


@pytest.fixture
def claims(tmp_path):
    def make(own=(), **options) -> Claims:
        return Claims(tmp_path, tmp_path / ".claims", lambda path: path.name in own, **options)

    return make


def test_a_file_is_claimed_until_a_line_tells_of_it(tmp_path, claims):
    run = claims()
    run.put(tmp_path / "a.wav", b"made")
    assert read_claims(tmp_path, run.journal)["a.wav"].holds()
    run.close()
    assert run.journal.exists()  # no line tells of it yet
    run.settle(["a.wav"])
    run.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_a_name_leads_to_its_file_through_links_too(tmp_path):
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "near").symlink_to("far/deep")
    (tmp_path / "same").symlink_to(".")
    for folder, path in (("near", "a.wav"), ("same", "a.wav"), (".", "near/a.wav"), ("near", "far/deep/a.wav")):
        (tmp_path / path).write_bytes(b"found")
        name = name_in(tmp_path / folder, tmp_path / path)
        assert (tmp_path / folder / name).read_bytes() == b"found", name
        (tmp_path / path).unlink()
    assert name_in(tmp_path / "out", tmp_path / "out" / "ab" / "a.wav") == "ab/a.wav"


def test_what_a_killed_run_could_not_record_is_removed_and_nothing_else(tmp_path, claims):
    killed = claims()
    for name in ("unrecorded", "recorded", "replaced", "edited"):
        killed.put(tmp_path / name, b"made")
    (tmp_path / "replaced").write_bytes(b"somebody's")
    (tmp_path / "edited").write_bytes(b"edit")  # as long
    (tmp_path / "other").write_bytes(b"made")
    claims(own=["recorded"]).clear_left_behind()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["edited", "other", "recorded", "replaced"]


@pytest.mark.parametrize("damage", [b"", b"[", b"[1]\n", b'["a.wav", "x", 3]\n', b'["a.wav", 4, "', b"\xff\n", b"{}\n"])
def test_a_journal_that_was_cut_off_claims_what_it_can(tmp_path, claims, damage):
    killed = claims()
    killed.put(tmp_path / "a.wav", b"made")
    with open(killed.journal, "ab") as file:
        file.write(damage)
    claims().clear_left_behind()
    assert not (tmp_path / ".claims").exists()


def test_somebodys_file_is_neither_replaced_nor_removed(tmp_path, claims):
    path = tmp_path / "a.wav"
    path.write_bytes(b"somebody's")
    run = claims()
    with pytest.raises(FileExistsError, match=r"a file is there that omnitts did not write: move it: '.*/a\.wav'"):
        run.put(path, b"made")
    run.remove(path)
    assert path.read_bytes() == b"somebody's" and not list(tmp_path.glob(".*"))
    (tmp_path / "nowhere.wav").symlink_to("none")
    with pytest.raises(FileExistsError):
        run.put(tmp_path / "nowhere.wav", b"made")


def test_own_files_are(tmp_path, claims):
    path = tmp_path / "a.wav"
    path.write_bytes(b"of an earlier run")
    run = claims(own=["a.wav"])
    run.put(path, b"made")
    assert path.read_bytes() == b"made"
    run.remove(path)
    assert not path.exists()
    run.close()
    assert not list(tmp_path.iterdir())


def test_others_may_be_replaced_when_asked_but_never_removed(tmp_path, claims):
    path = tmp_path / "a.wav"
    path.write_bytes(b"somebody's")
    run = claims(replace_files=True)
    run.remove(path)
    assert path.exists()
    run.put(path, b"made")
    assert path.read_bytes() == b"made"


def test_what_the_system_refuses_is_claimed_no_longer(tmp_path, claims):
    (tmp_path / "a.wav").mkdir()
    run = claims()
    with pytest.raises(OSError, match=r"'.*/a\.wav'"):
        run.put(tmp_path / "a.wav", b"made")
    run.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.wav"]


def test_a_long_journal_keeps_what_counts(tmp_path, claims, monkeypatch):
    monkeypatch.setattr("omnitts.claims._MOST_LINES", 10)
    run = claims()
    run.put(tmp_path / "kept", b"made")
    for number in range(50):
        run.put(tmp_path / f"{number}", b"made")
        run.settle([f"{number}"])
    assert len(run.journal.read_text().splitlines()) <= 12 and "kept" in read_claims(tmp_path, run.journal)

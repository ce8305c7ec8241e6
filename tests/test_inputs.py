import os

import pytest

from omnitts.inputs import Inputs


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "anna.wav").write_bytes(b"recording")
    inputs = Inputs()
    inputs.add(tmp_path / "anna.wav", "a reference recording")
    return inputs


def test_a_file_is_found_under_any_name(tmp_path, inputs):
    os.link(tmp_path / "anna.wav", tmp_path / "hard.wav")
    (tmp_path / "soft.wav").symlink_to("anna.wav")
    (tmp_path / "folder").symlink_to(tmp_path)
    for name in ("anna.wav", "hard.wav", "soft.wav", "folder/anna.wav", "ANNA.wav", "gone/../anna.wav"):
        assert str(inputs.find(tmp_path / name)) == f"a reference recording {tmp_path / 'anna.wav'}", name


def test_other_files_are_not(tmp_path, inputs):
    (tmp_path / "copy.wav").write_bytes(b"recording")
    (tmp_path / "x").mkdir()
    for name in ("copy.wav", "new.wav", "anna.flac", "x/anna.wav", "nul\0.wav"):
        assert inputs.find(tmp_path / name) is None, name
    assert Inputs().find(tmp_path / "anna.wav") is None


def test_forms_of_a_letter_are_one_name(tmp_path):
    inputs = Inputs()
    inputs.add(tmp_path / "Zoe\u0308.wav", "the manifest")
    assert inputs.find(tmp_path / "zo\u00eb.WAV").what == "the manifest"


def test_a_link_that_is_an_input_counts_by_its_own_name_too(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.wav").write_bytes(b"a")
    (tmp_path / "near.wav").symlink_to("far/a.wav")
    inputs = Inputs()
    inputs.add(tmp_path / "near.wav", "a reference recording")
    assert inputs.find(tmp_path / "far" / "a.wav") and inputs.find(tmp_path / "Near.wav")


def test_relative_paths_are_those_of_the_current_folder(tmp_path, inputs, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert inputs.find("anna.wav") and inputs.find("./Anna.wav") and not inputs.find("../anna.wav")

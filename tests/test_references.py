"""References of all kinds on their whole way: what `check` calls right, `plan`, `synth` and `voice create` read."""

import json

import numpy as np
import pytest
import soundfile

from omnitts.recording import read_audio
from tests import recordings

WORDS = "These are the words of a recording."
VARIABLE = recordings.mp3(variable=True)
KINDS = {
    "gsm.wav": recordings.encoded("WAV", "GSM610"),
    "gsm.aiff": recordings.encoded("AIFF", "GSM610"),
    "g721.au": recordings.encoded("AU", "G721_32"),
    "dwvw.aiff": recordings.encoded("AIFF", "DWVW_16"),
    "nms.wav": recordings.encoded("WAV", "NMS_ADPCM_24"),
    "streamed.flac": recordings.streamed_flac(),
    "variable.mp3": b"".join(VARIABLE[1:]),
    "cover.mp3": recordings.id3(100_000) + b"".join(recordings.mp3(variable=False)[1:]),
}


@pytest.fixture
def manifest(tmp_path):
    def write(names):
        lines = [
            {"id": name, "text": "Hello.", "ref_audio": name, "ref_text": WORDS, "duration": 0.3} for name in names
        ]
        (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return tmp_path / "lines.jsonl"

    return write


def test_what_check_calls_right_the_rest_reads(run, manifest, tmp_path, checkpoint_dir):
    for name, data in KINDS.items():
        (tmp_path / name).write_bytes(data)
    lines, model = manifest(KINDS), ("--model", checkpoint_dir)
    code, printed, said = run("check", lines)
    assert (code, said) == (0, "") and f"{len(KINDS)} references" in printed
    code, printed, said = run("plan", lines, *model)
    assert (code, said) == (0, "") and f"{len(KINDS)} clips" in printed
    code, _, said = run("synth", lines, "--out", tmp_path / "out", *model, "--set", "num_step=1")
    assert code == 0, said
    for name in KINDS:
        made, _ = read_audio(tmp_path / "out" / f"{name}.wav")
        assert np.abs(made).max() > 0.01


@pytest.mark.parametrize("name", ["gsm.wav", "streamed.flac", "variable.mp3"])
def test_voices_are_made_of_all_kinds(run, tmp_path, checkpoint_dir, name):
    (tmp_path / name).write_bytes(KINDS[name])
    voice = tmp_path / "voice.safetensors"
    code, printed, said = run(
        "voice", "create", tmp_path / name, "--text", WORDS, "-o", voice, "--model", checkpoint_dir
    )
    assert (code, said) == (0, "") and "4.0 s" in printed


def test_doubts_are_told_wherever_a_reference_is_given(run, manifest, tmp_path, checkpoint_dir):
    tone = recordings.tone()
    stereo = np.stack([tone, -0.95 * tone], axis=1)
    soundfile.write(tmp_path / "inverted.wav", stereo, recordings.RATE)
    soundfile.write(tmp_path / "quiet.wav", tone / 500, recordings.RATE)
    lines, model = manifest(["inverted.wav", "quiet.wav"]), ("--model", checkpoint_dir)
    for command in (["check", lines], ["plan", lines, *model], ["synth", lines, "--out", tmp_path / "out", *model]):
        code, _, said = run(*command, *(["--set", "num_step=1"] if command[0] == "synth" else []))
        assert code == 0
        first, second = [line for line in said.splitlines() if line.startswith("warning: ")]
        assert "lines.jsonl:1: ref_audio: its 2 channels cancel, and their mean" in first and "is 32 dB below" in first
        assert f"lines.jsonl:2: ref_audio: quiet, -69 dBFS (RMS): {tmp_path / 'quiet.wav'}; " in second
    voice = tmp_path / "voice.safetensors"
    code, _, said = run("voice", "create", tmp_path / "quiet.wav", "--text", WORDS, "-o", voice, *model)
    assert code == 0 and said.startswith("warning: REF_AUDIO: quiet, -69 dBFS (RMS): ")


def test_channels_that_cancel_out_are_refused_everywhere(run, manifest, tmp_path, checkpoint_dir):
    tone = recordings.tone()
    soundfile.write(tmp_path / "a.wav", np.stack([tone, -tone], axis=1), recordings.RATE)
    code, _, said = run("check", manifest(["a.wav"]))
    assert code == 2 and "lines.jsonl:1: ref_audio: its 2 channels cancel out" in said
    common = ("--text", WORDS, "-o", tmp_path / "voice.safetensors", "--model", checkpoint_dir)
    code, _, said = run("voice", "create", tmp_path / "a.wav", *common)
    assert code == 2 and "its 2 channels cancel out" in said


def test_whole_numbers_in_a_file_of_floats_are_refused_by_check(run, manifest, tmp_path):
    soundfile.write(tmp_path / "a.wav", recordings.tone() * 32768, recordings.RATE, "FLOAT")
    code, _, said = run("check", manifest(["a.wav"]))
    assert code == 2 and "where 1 is full scale" in said and "a.wav" in said

"""The bench of a whole job: its made-up manifest, its random weights, how it samples a GPU, and what it tells."""

import json
import os
import runpy
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from omnitts.bench import busy, corpus, job, random_weights
from omnitts.cli import cli
from omnitts.errors import InputError
from omnitts.manifest import read_manifest
from omnitts.model.checkpoint import BUNDLED, SPECIAL_TOKENS, read_model_config
from omnitts.model.codec import read_codec_config
from omnitts.recipe import Recipe

ROOT = Path(__file__).parent.parent
CPU = torch.device("cpu")


def test_the_corpus_is_a_manifest_without_a_doubt(tmp_path):
    lines = read_manifest(corpus.write_corpus(tmp_path / "one", 70, seed=0), recipe=Recipe())
    assert lines.warnings == [] and len(lines.utterances) == 70
    assert len({utterance.ref_audio for utterance in lines.utterances}) == corpus.RECORDINGS
    least, most = corpus.TARGET_SECONDS
    durations = [utterance.duration for utterance in lines.utterances]
    assert least <= min(durations) < 4 and 13 < max(durations) <= most
    again, other = (
        read_manifest(corpus.write_corpus(tmp_path / name, 70, seed=seed), recipe=Recipe()).utterances
        for name, seed in (("again", 0), ("other", 1))
    )
    assert [u.text for u in again] == [u.text for u in lines.utterances] != [u.text for u in other]
    for name in ("reference-00.wav", "reference-31.wav"):
        first, second, third = ((tmp_path / folder / name).read_bytes() for folder in ("one", "again", "other"))
        assert first == second != third


def test_the_published_sizes(tmp_path):
    """They are those of `make_random_checkpoint.py`, which are held against the published tensors."""
    script = runpy.run_path(str(ROOT / "scripts" / "make_random_checkpoint.py"))
    path, shapes = tmp_path / "config.json", script["SHAPES"]["omnivoice"]
    script["write_json"](path, script["codec_config"](shapes))
    assert random_weights.omnivoice_codec_config() == read_codec_config(path)
    pytest.importorskip("triton")
    from omnitts.bench.step import OMNIVOICE

    script["write_json"](path, script["model_config"](shapes))
    assert read_model_config(path) == OMNIVOICE


def test_random_weights_speak(tmp_path):
    pytest.importorskip("triton")
    small = BUNDLED / "noise"
    config = replace(read_model_config(small / "config.json"), vocab_size=500)
    codec_config = read_codec_config(small / "audio_tokenizer" / "config.json")
    made = []
    for _ in range(2):
        tts = random_weights.random_tts(config, codec_config, CPU, torch.float32)
        manifest = corpus.write_corpus(tmp_path / str(len(made)), 1, seed=2)
        (speech,) = tts.stream(read_manifest(manifest, recipe=Recipe(num_step=1)).utterances)
        assert speech.error is None and 0.01 < speech.audio.std() < 0.5
        made.append(speech.audio)
    assert np.array_equal(*made)


def test_a_word_is_a_token():
    tokenizer = random_weights.word_tokenizer()
    ids = tokenizer.encode("<|text_start|>the people made water.<|text_end|>", add_special_tokens=False).ids
    assert len(ids) == 7 and ids[-2] == 0 and 0 not in ids[:5]
    for token in SPECIAL_TOKENS:
        assert tokenizer.encode(token, add_special_tokens=False).ids == [tokenizer.token_to_id(token)]


def test_samples_without_the_first_and_the_last():
    assert busy.mean_share("3\n90\n100\n7\n") == pytest.approx(0.95)
    for without in ("", "3\n7\n", "[N/A]\n[N/A]\n[N/A]\n[N/A]\n"):
        assert busy.mean_share(without) is None


@pytest.mark.skipif(os.name != "posix", reason="a shell script stands in for nvidia-smi")
def test_a_gpu_is_sampled_while_the_block_runs(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "$@" > "$0.asked"\nfor load in 1 50 70 1; do echo $load; done\nexec sleep 60\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34"))
    start = time.perf_counter()
    with busy.sampled(torch.device("cuda")) as gpu:
        while not (tmp_path / "nvidia-smi.asked").exists() and time.perf_counter() < start + 20:
            time.sleep(0.01)
        time.sleep(0.2)
    assert gpu.share == pytest.approx(0.6) and time.perf_counter() < start + 30
    assert "--id=GPU-12-34 --query-gpu=utilization.gpu" in (tmp_path / "nvidia-smi.asked").read_text()
    program.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    for device in ("cuda", "cpu"):
        with busy.sampled(torch.device(device)) as gpu:
            pass
        assert gpu.share is None


def test_the_command(checkpoint_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "TARGET_SECONDS", (1.0, 2.0))
    figures = tmp_path / "figures.json"
    arguments = ["bench", "job", "--model", str(checkpoint_dir), "--device", "cpu", "--utterances", "3"]
    arguments += ["--set", "num_step=2", "--max-positions", "300", "--json", str(figures)]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "3 utterances, 0 failed: " in done.output and "stats: 3 batches" in done.output
    written = json.loads(figures.read_text())
    assert (written["utterances"], written["failed"], written["max_positions"]) == (3, 0, 300)
    assert written["dtype"] == "float32" and written["recipe"] == "default+num_step=2"
    assert 3 < written["audio_seconds"] < 6.7 and written["gpu_busy"] is written["peak_gigabytes"] is None
    assert written["stats"]["batches"] == 3 and written["stats"]["step_padding"] is None
    assert 0 < written["manifest_seconds"] < written["wall_seconds"]
    assert written["real_time_factor"] == pytest.approx(written["wall_seconds"] / written["audio_seconds"])
    refused = CliRunner().invoke(cli, [*arguments, "--random-weights", "omnivoice"])
    assert isinstance(refused.exception, InputError) and "give one of them" in str(refused.exception)


def test_recordings_are_encoded_within_the_time(checkpoint_dir, monkeypatch):
    """The warm-up has recordings of its own, so that no reference is at hand before."""
    from omnitts import tts

    monkeypatch.setattr(corpus, "TARGET_SECONDS", (1.0, 2.0))
    encoded = []
    encode = tts.TTS.encode_voice

    def noted(self, path, *arguments, **options):
        encoded.append(Path(path).parent.name)
        return encode(self, path, *arguments, **options)

    monkeypatch.setattr(tts.TTS, "encode_voice", noted)
    figures = job.bench_job(lambda: tts.load(checkpoint_dir, device="cpu"), Recipe(num_step=1), 2, None)
    assert figures.max_positions == 1024
    assert encoded == ["warm-up"] * 2 + ["job"] * 2
    assert figures.failed == 0 and figures.model == str(checkpoint_dir)


def test_ctrl_c_ends_it(checkpoint_dir, monkeypatch):
    """Of the warm-up, and not only that: the job would follow."""
    from omnitts import pipeline, tts

    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "generate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job.bench_job(lambda: tts.load(checkpoint_dir, device="cpu"), Recipe(num_step=1), 1, 1024)

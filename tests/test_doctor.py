"""`omnitts doctor`: what its checks find, and that none of them ever fails."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from omnitts import doctor
from omnitts.doctor import Section, guarded
from omnitts.errors import InputError

TITLES = ["versions", "machine", "devices", "checkpoint", "engine", "caches", "self-test"]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "omnitts" / "batch-positions.json"


def examined(model, device="cpu") -> dict[str, Section]:
    return {section.title: section for section in doctor.examine(model, device)}


def test_a_sound_installation_has_no_problem(checkpoint_dir):
    sections = examined(str(checkpoint_dir))
    report = doctor.Report(list(sections.values()))
    assert list(sections) == TITLES and report.problems == []
    assert any(line.startswith("torch 2") for line in sections["versions"].lines)
    assert any(line.startswith("libsndfile ") for line in sections["versions"].lines)
    assert "in use: cpu" in sections["devices"].lines
    assert sections["checkpoint"].facts.files["audio_tokenizer/model.safetensors"] > 1000
    assert sections["engine"].lines == ["CPU: plain loop, attention by torch, sampling by torch"]
    made = sections["self-test"].facts
    assert made.equal and made.seconds > 0 and 0 < made.rms < made.peak < 1
    content = json.loads(json.dumps(report.as_dict()))
    assert content["problems"] == [] and content["checkpoint"]["digest"] == sections["checkpoint"].facts.digest
    assert {"name": "python", "needed": True}.items() <= content["versions"][0].items()


def test_a_checkpoint_that_does_not_load_is_a_problem_and_no_more(checkpoint_dir, tmp_path):
    for file in checkpoint_dir.rglob("*.*"):
        if file.is_file():
            copy = tmp_path / "model" / file.relative_to(checkpoint_dir)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    sections = examined(str(tmp_path / "model"))
    assert list(sections) == TITLES
    (problem,) = doctor.Report(list(sections.values())).problems
    assert str(weights) in problem and "\n" not in problem
    assert sections["self-test"].lines == ["not made: the checkpoint does not load"]


def test_a_device_that_is_not_there_is_a_problem(checkpoint_dir, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    sections = examined(str(checkpoint_dir), "cuda:3")
    assert sections["devices"].problems[0].startswith("--device cuda:3: torch sees no CUDA device here")
    assert sections["self-test"].facts is not None


def test_what_no_device_is_called_is_refused():
    with pytest.raises(InputError, match="--device: no device is called 'gpu'"):
        next(doctor.examine(None, "gpu"))


def test_whatever_a_check_raises_is_a_problem(checkpoint_dir, monkeypatch):
    def strange(*_arguments):
        raise AttributeError("no such\nthing")

    for name in ("versions", "machine", "devices", "checkpoint", "engine", "caches", "self_test"):
        monkeypatch.setattr(doctor, name, strange)
    sections = examined(str(checkpoint_dir))
    assert list(sections) == TITLES
    for section in sections.values():
        (problem,) = section.problems
        assert problem.startswith("this check failed: AttributeError: no such thing; report it")


def test_a_users_mistake_is_told_in_its_own_words():
    def mistaken():
        raise InputError("odd", file="config.json")

    assert guarded("checkpoint", mistaken) == Section("checkpoint", problems=["config.json: odd"])


def test_packages_that_are_missing_or_broken(monkeypatch):
    absent = {"triton", "tokenizers"}
    version = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in absent else version(name))

    def import_module(name):
        if name == "safetensors":
            raise OSError("libstrange.so: no such file")

    monkeypatch.setattr(doctor, "import_module", import_module)
    section = doctor.versions()
    assert "triton: not installed (for a GPU's kernels: pip install triton, or the extra cuda)" in section.lines
    assert section.problems == [
        "tokenizers is not installed: pip install tokenizers",
        "safetensors is installed, but cannot be imported (OSError: libstrange.so: no such file): install it anew",
    ]


def test_a_driver_that_torch_cannot_use_is_a_problem(monkeypatch):
    monkeypatch.setattr(doctor, "_driver", lambda: "570.86.15")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    (problem,) = doctor.devices("auto").problems
    assert problem.startswith("there is an NVIDIA driver, and torch") and "install a CUDA build" in problem
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    assert "update the driver" in doctor.devices("auto").problems[0]
    assert doctor.devices("cpu").problems == []


def test_devices_are_described(monkeypatch):
    monkeypatch.setattr(doctor, "_driver", lambda: "570.86.15")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (3 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Some GPU")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 6))
    section = doctor.devices("auto")
    assert section.lines[0] == "in use: cuda, the default here"
    assert section.lines[2] == "cuda:0: Some GPU, compute capability 8.6, 3.0 GiB of 8.0 GiB free"
    assert section.problems == []


@pytest.mark.parametrize(
    ("backend", "has", "says"),
    [
        ("hopper", False, "Hopper GPU, and the kernel passed its trial: attention by a kernel for it"),
        ("flashinfer", True, "attention by FlashInfer"),
        ("tiled", False, "FlashInfer is not installed, or does not load: attention by the Triton kernel"),
        ("tiled", True, "FlashInfer cannot take this head size: attention by the Triton kernel"),
    ],
)
def test_why_an_attention_is_used(monkeypatch, backend, has, says):
    monkeypatch.setattr("omnitts.model.attention.has_flashinfer", lambda: has)
    packed = SimpleNamespace(fused=False)
    model = SimpleNamespace(model=packed, attention=backend, cuda_graphs=True)
    tts = SimpleNamespace(model=model, device=torch.device("cuda"), dtype=torch.bfloat16)
    section = doctor.engine([tts])
    assert says in section.lines and section.problems == []
    assert section.lines[0] == "one packed row a batch, steps captured as CUDA graphs"


def test_batch_sizes_that_were_found(own_cache):
    pytest.importorskip("triton")
    assert doctor.caches().lines == [f"{own_cache}: 0 batch sizes found by measurement"]
    own_cache.parent.mkdir(parents=True)
    own_cache.write_text('{"Some GPU; bfloat16": 8192}')
    assert doctor.caches().lines[1] == "8,192 positions: Some GPU; bfloat16"
    own_cache.write_text("{")
    assert doctor.caches().problems == [
        f"{own_cache} holds no batch sizes that can be read: remove it, and they are measured anew"
    ]


SOUND = doctor.SelfTest("One.", 1.0, 2.0, 1.0, 1.0, True, 0.5, 0.1, "0123")


@pytest.mark.parametrize(
    ("changes", "device", "says"),
    [
        ({}, "cpu", None),
        ({"equal": False}, "cpu", "came out differently twice"),
        ({"equal": False}, "cuda", None),
        ({"peak": 1.0}, "cpu", "clipped"),
        ({"rms": 0.0, "peak": 0.0}, "cpu", "silent"),
    ],
)
def test_what_the_self_test_made_is_judged(changes, device, says):
    problems = doctor.judge(replace(SOUND, **changes), device, float32=True)
    assert [says in problem for problem in problems] == ([] if says is None else [True])


def test_codes_that_differ_are_found(monkeypatch):
    made = iter(range(2))

    def synthesize(item):
        codes = np.full((8, 5), next(made), np.int16)
        return [SimpleNamespace(codes=codes, audio=np.full(100, 0.1, np.float32), seconds=0.1)]

    tts = SimpleNamespace(synthesize=synthesize, device=torch.device("cpu"), dtype=torch.float32)
    section = doctor.self_test([tts])
    assert "not the same both times" in section.lines[2] and len(section.problems) == 1

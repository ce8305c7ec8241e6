"""Vectors that the published OmniVoice decoder produced with the tiny random checkpoint in fixtures/."""

import json
import os
import signal
from pathlib import Path

import pytest

# The models here are tiny: threads would only wait for each other. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="session")
def cases() -> dict:
    """Texts and numbers: prompts, durations, chunks, schedules, loops, end-to-end settings."""
    return json.loads((FIXTURES / "cases.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def vectors() -> dict:
    """Tensors by name. Codes are int16; `e2e/*` waveforms are int16 samples, all others float32."""
    from safetensors.torch import load_file

    return load_file(FIXTURES / "vectors.safetensors")


@pytest.fixture(scope="session")
def checkpoint_dir() -> Path:
    return FIXTURES / "checkpoint"


@pytest.fixture
def manifest(tmp_path):
    def write(*records, name="lines.jsonl") -> Path:
        path = tmp_path / name
        lines = (record if isinstance(record, str) else json.dumps(record, ensure_ascii=False) for record in records)
        path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        return path

    return write


@pytest.fixture
def recording(vectors, tmp_path) -> Path:
    import soundfile

    path = tmp_path / "reference.wav"
    soundfile.write(path, vectors["codec/encode/0/audio"].numpy(), 24000)
    return path


@pytest.fixture
def run(capsys):
    """Runs a command in this process; returns (exit code, stdout, stderr) and insists on no traceback.

    Leaves the signals of this process as they were; the commands' own entry point changes them.
    """
    from omnitts import cli

    numbers = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if os.name == "posix" else []))
    before = {number: signal.getsignal(number) for number in numbers}

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return ended.value.code or 0, out, err

    yield call
    for number, handler in before.items():
        signal.signal(number, handler)

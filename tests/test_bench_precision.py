"""What a precision changes, measured on a CPU: nothing against itself, a little in bfloat16."""

import json

import numpy as np
import pytest
import soundfile
import torch
from click.testing import CliRunner

from omnitts import tts
from omnitts.bench import precision
from omnitts.cli import cli
from omnitts.engine import generate
from omnitts.errors import InputError
from omnitts.manifest import read_utterances
from omnitts.model.checkpoint import open_checkpoint
from omnitts.prepare import utterance_seed
from omnitts.recipe import Recipe

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def checkpoint(checkpoint_dir):
    return open_checkpoint(checkpoint_dir)


@pytest.fixture(scope="module")
def reference(checkpoint):
    return tts.load_checkpoint(checkpoint, CPU, torch.float32)


@pytest.fixture(scope="module")
def utterances(vectors, tmp_path_factory):
    path = tmp_path_factory.mktemp("audio") / "reference.wav"
    soundfile.write(path, vectors["codec/encode/2/audio"].numpy(), 24000, subtype="FLOAT")
    records = [
        {"text": "Hello there.", "recipe": {"guidance_scale": 0}},
        {"text": "Hello again, whoever you are.", "ref_audio": str(path), "ref_text": "Привет, мир!"},
        {"text": "A first part of some length, then a second one; a third part, too.", "recipe": {"num_step": 3}},
    ]
    return read_utterances(records, recipe=Recipe(num_step=9, audio_chunk_threshold=3, audio_chunk_duration=2))


def test_against_itself_nothing_differs(checkpoint, reference, utterances):
    other = tts.load_engine(checkpoint, CPU, torch.float32)
    figures = precision.bench_precision(reference, other, "float32", utterances)
    assert figures.codes_same == 1 and figures.clips > figures.utterances == 3  # the long one is made in chunks
    assert [row.steps_done for row in figures.rows] == [0, 0.25, 0.5, 0.75]
    for row in figures.rows:
        assert (row.tokens_same, row.logprob_mean, row.logprob_most, row.next_same) == (1, 0, 0, 1)
    cells = [row.cells for row in figures.rows]
    assert cells[0] == 8 * figures.frames and cells == sorted(cells, reverse=True) and cells[-1] > 0


def test_its_loop_is_the_engines(reference, utterances, monkeypatch):
    """The canvases that are compared are those that `synth` goes through."""
    ends = {}
    loop = precision._loop

    def kept(model, request, *arguments):
        canvases = loop(model, request, *arguments)
        ends[request.seed] = (request, canvases[-1])
        return canvases

    monkeypatch.setattr(precision, "_loop", kept)
    precision.bench_precision(reference, reference.model, "float32", utterances)
    assert {utterance_seed(utterance) for utterance in utterances} <= ends.keys()
    for request, canvas in ends.values():
        assert np.array_equal(generate(reference.model, [request])[0].codes, canvas.T.numpy())


def test_bfloat16_differs_a_little(checkpoint, reference, utterances):
    other = tts.load_engine(checkpoint, CPU, torch.bfloat16)
    figures = precision.bench_precision(reference, other, "bfloat16", utterances)
    for row in figures.rows:
        assert 0.5 < row.tokens_same <= 1 and 0 < row.logprob_mean < 0.5 and row.logprob_mean < row.logprob_most
        assert 0.5 < row.next_same <= 1
    assert 0 < figures.codes_same <= 1
    head, *_, last = precision.precision_table(figures)
    assert head.startswith("CPU, bfloat16 against float32: 3 utterances") and last.startswith("whole loops: ")


def test_logits_that_are_not_finite_are_refused(checkpoint, reference, utterances):
    other = tts.load_engine(checkpoint, CPU, torch.float32)
    other.audio_heads.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="dtype: in bfloat16 the model's logits are not finite"):
        precision.bench_precision(reference, other, "bfloat16", utterances[:1])


def test_the_command(checkpoint_dir, tmp_path):
    lines, figures = tmp_path / "lines.jsonl", tmp_path / "figures.json"
    lines.write_text('{"text": "Hello there."}\n{"text": "And again."}\n')
    arguments = ["bench", "precision", str(lines), "--model", str(checkpoint_dir), "--device", "cpu", "--limit", "1"]
    arguments += ["--set", "num_step=4", "--json", str(figures)]
    done = CliRunner().invoke(cli, [*arguments, "--dtype", "bfloat16", "--against", "float32"])
    assert done.exit_code == 0, done.output
    assert "bfloat16 against float32: 1 utterance, 1 clip" in done.output
    written = json.loads(figures.read_text())
    assert len(written["rows"]) == 4 and written["rows"][0]["tokens_same"] > 0.5 and 0 < written["codes_same"] <= 1
    for extra, told in (([], "fp8 needs a GPU"), (["--dtype", "bfloat16"], "name two precisions")):
        refused = CliRunner().invoke(cli, [*arguments, *extra])
        assert isinstance(refused.exception, InputError) and told in str(refused.exception)

import filecmp
import json
import runpy
from pathlib import Path

import pytest

from omnitts.model.checkpoint import resolve_model

ROOT = Path(__file__).parents[2]
REAL = json.loads((ROOT / "tests" / "fixtures" / "real_shapes.json").read_text())


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(ROOT / "scripts" / "make_random_checkpoint.py"))


def test_the_bundled_checkpoint_can_be_made_again(script, tmp_path):
    script["write_checkpoint"](tmp_path, script["SHAPES"]["tiny"], seed=0)
    names = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert len(names) == 7
    assert filecmp.cmpfiles(tmp_path, resolve_model("noise"), names, shallow=False) == (names, [], [])


def test_another_seed_gives_other_weights(script):
    shape = (4, 4)
    assert (script["draw"]("fc.weight", shape, 0) != script["draw"]("fc.weight", shape, 1)).all()


def test_real_shapes(script, tmp_path):
    shapes = script["SHAPES"]["omnivoice"]
    script["write_json"](tmp_path / "config.json", script["model_config"](shapes))
    tensors = {name: list(shape) for name, shape in script["model_tensors"](tmp_path)}
    assert tensors == REAL["tensors"]
    script["write_json"](tmp_path / "config.json", script["codec_config"](shapes))
    tensors = {name: list(shape) for name, shape in script["codec_tensors"](tmp_path)}
    assert tensors == REAL["audio_tokenizer_tensors"]

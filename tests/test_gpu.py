"""On a GPU: the CPU's tokens in float32, and a bfloat16 that runs. `pytest -m gpu`."""

import numpy as np
import pytest
import torch

import omnitts
from omnitts.model.checkpoint import load_model, load_tokenizer, open_checkpoint
from omnitts.model.codec import load_codec
from tests.test_engine import generate, loop_requests, mixed_requests

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module")
def checkpoint(checkpoint_dir):
    return open_checkpoint(checkpoint_dir)


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return load_tokenizer(checkpoint)


def test_published_loops(checkpoint, tokenizer, cases, vectors):
    model = load_model(checkpoint, "cuda", torch.float32)
    for number, case in enumerate(cases["loops"]):
        for item, codes in enumerate(generate(model, loop_requests(case, vectors, tokenizer))):
            assert np.array_equal(codes, vectors[f"loop/{number}/{item}/tokens"].numpy()), (number, item)


def test_float32_is_the_cpus_in_any_company(checkpoint, tokenizer, vectors):
    requests = mixed_requests(tokenizer, vectors)
    expected = generate(load_model(checkpoint, "cpu", torch.float32), requests)
    model = load_model(checkpoint, "cuda", torch.float32)
    together = generate(model, requests)
    for request, codes, cpu in zip(requests, together, expected, strict=True):
        assert np.array_equal(codes, cpu)
        assert np.array_equal(generate(model, [request])[0], cpu)


def test_codec(checkpoint, vectors):
    codec = load_codec(checkpoint, "cuda")
    for number in range(3):
        wave = codec.decode(vectors[f"codec/decode/{number}/codes"])
        np.testing.assert_allclose(wave, vectors[f"codec/decode/{number}/audio"].numpy(), atol=1e-4)
        codes = codec.encode(vectors[f"codec/encode/{number}/audio"])
        assert np.array_equal(codes, vectors[f"codec/encode/{number}/codes"].numpy())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_text_to_speech(checkpoint_dir, dtype):
    tts = omnitts.load(checkpoint_dir, device="cuda", dtype=dtype)
    first, second = tts.synthesize(["Hello there.", "Hello there, once more."], num_step=4)
    assert first.audio.any() and np.isfinite(second.audio).all()
    assert first.codes.min() >= 0 and first.codes.max() < 1024

"""On a GPU: the CPU's tokens in float32, and a bfloat16 that runs. `pytest -m gpu`."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch

import omnitts
from omnitts.bench.job import bench_job, job_table
from omnitts.bench.precision import bench_precision, precision_table
from omnitts.bench.step import OMNIVOICE, filled, random_model
from omnitts.engine import Batch, Generated, Request
from omnitts.manifest import read_utterances
from omnitts.model.attention import attention_backend, make_attention
from omnitts.model.checkpoint import BUNDLED, load_model, load_tokenizer, open_checkpoint
from omnitts.model.codec import load_codec
from omnitts.model.hopper import fused_products_work
from omnitts.recipe import Recipe
from omnitts.steps import Engine
from omnitts.trace import Watch
from omnitts.tts import load_checkpoint, load_engine, resolve_dtype
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


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "fp8"])
def test_text_to_speech(checkpoint_dir, dtype):
    if dtype == "fp8" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU with e4m3 products")
    # Float8 products need larger matrices than the tiny checkpoint has.
    tts = omnitts.load("mini" if dtype == "fp8" else checkpoint_dir, device="cuda", dtype=dtype)
    first, second = tts.synthesize(["Hello there.", "Hello there, once more."], num_step=4)
    assert first.audio.any() and np.isfinite(second.audio).all()
    assert first.codes.min() >= 0 and first.codes.max() < 1024


@pytest.fixture(scope="module")
def mini():
    return open_checkpoint(BUNDLED / "mini")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["checkpoint", "mini"])
def test_a_graph_is_its_kernels(request, name, vectors, dtype):
    """Captured or launched one by one, a batch comes out the same, twice, though its shape rounds up."""
    checkpoint = request.getfixturevalue(name)
    requests = mixed_requests(load_tokenizer(checkpoint), vectors)
    graphs, eager = (
        Engine.of(load_model(checkpoint, "cuda", dtype), cuda_graphs=cuda_graphs) for cuda_graphs in (True, False)
    )
    expected = [result.codes for result in eager.generate(requests)]
    for _ in range(2):
        for result, codes in zip(graphs.generate(requests), expected, strict=True):
            assert np.array_equal(result.codes, codes)
            assert result.status == 0 and codes.min() >= 0 and codes.max() < 1024
    assert graphs.captures.count and not eager.captures.count
    watched = [replace(r, watch=Watch(top_n=2) if i % 2 == 0 else None) for i, r in enumerate(requests)]
    for seen, unseen, codes in zip(graphs.generate(watched), eager.generate(watched), expected, strict=True):
        assert np.array_equal(seen.codes, codes) and np.array_equal(unseen.codes, codes)
        check_traces(seen, unseen)


def check_traces(made: Generated, other: Generated) -> None:
    """What was seen of a request, by a graph and without: the same, and it rebuilds the codes."""
    assert (made.trace is None) == (other.trace is None)
    if made.trace is None:
        return
    assert np.array_equal(made.trace.revealed, other.trace.revealed)
    rebuilt = np.full_like(made.trace.revealed, -1)
    for seen, unseen in zip(made.trace.seen, other.trace.seen, strict=True):
        for name, value in vars(seen).items():
            np.testing.assert_array_equal(value, getattr(unseen, name))
        here = made.trace.revealed == seen.step
        rebuilt[here] = seen.tokens[here]
        assert np.isfinite(seen.logprobs).all() and not np.isnan(seen.scores).any()
        np.testing.assert_allclose(seen.top_logprobs[..., 0], seen.confidence, rtol=1e-5, atol=1e-5)
    assert np.array_equal(rebuilt.T, made.codes)


@pytest.mark.parametrize(
    "name, backend, float8",
    [
        ("checkpoint", "tiled", False),
        ("mini", "tiled", False),
        ("mini", "flashinfer", False),
        ("mini", "flashinfer", True),
    ],
)
def test_half_precision_follows_float32(request, name, vectors, backend, float8):
    """Packed kernels compute what the plain backbone does: their first step's logits differ by rounding only."""
    checkpoint = request.getfixturevalue(name)
    requests = mixed_requests(load_tokenizer(checkpoint), vectors)
    requests = sorted(requests, key=lambda request: request.recipe.guidance_scale == 0)
    plain = load_model(checkpoint, "cuda", torch.float32)
    with torch.inference_mode():
        batch = Batch(plain, requests)
        targets = [plain.embed_audio(canvas) for canvas in batch.canvases]
        documents = [torch.cat([prefix, target]) for prefix, target in zip(batch.prefixes, targets, strict=True)]
        expected = plain(documents, [request.target_frames for request in requests])
        engine = Engine.of(load_model(checkpoint, "cuda", torch.bfloat16), cuda_graphs=False, float8=float8)
        engine.attention = backend
        step = filled(engine, requests)
        logits = engine.model.logits(step.row, step.attention)[: len(expected)].float()
    error = (logits - expected).abs().mean() / expected.std()
    print(f"{name}, {backend}, {'float8' if float8 else 'bfloat16'}: {error:.4f} of the logits' deviation")
    assert error < (0.1 if float8 else 0.02)


@pytest.mark.parametrize("name", ["checkpoint", "mini"])
def test_company_in_bfloat16(request, name, vectors):
    """Matrix products of other sizes round differently; few cells may tell."""
    checkpoint = request.getfixturevalue(name)
    requests = mixed_requests(load_tokenizer(checkpoint), vectors)
    engine = Engine.of(load_model(checkpoint, "cuda", torch.bfloat16))
    together = [result.codes for result in engine.generate(requests)]
    alone = [engine.generate([request])[0].codes for request in requests]
    differing = sum(int((a != b).sum()) for a, b in zip(together, alone, strict=True))
    cells = sum(codes.size for codes in together)
    print(f"{name}: {differing} of {cells} cells differ in other company")
    assert differing < 0.5 * cells


@pytest.mark.parametrize("name", ["noise", "mini"])
def test_recordings_of_any_length_have_the_cpus_codes(name):
    """Convolutions that are lengthened on a GPU find what they find on a CPU; few codes may tell."""
    checkpoint = open_checkpoint(BUNDLED / name)
    codec, exact = load_codec(checkpoint, "cuda"), load_codec(checkpoint, "cpu")
    for frames in (25, 77, 150):
        time = np.arange(960 * frames) / 24_000
        wave = (0.3 * np.sin(2 * np.pi * 150 * time) * (1 + np.sin(2 * np.pi * 3 * time))).astype(np.float32)
        codes, expected = codec.encode(wave), exact.encode(wave)
        assert codes.shape == expected.shape and (codes == expected).mean() > 0.97


@pytest.mark.parametrize("name", ["noise", "mini"])
def test_a_codec_decodes_many_clips_at_once(name):
    """In float16 each is near what it is alone in float32, to its last frame."""
    checkpoint = open_checkpoint(BUNDLED / name)
    rng = np.random.default_rng(0)
    clips = [rng.integers(0, 1024, (8, frames)).astype(np.int16) for frames in (100, 95, 40, 1, 99)]
    exact = [load_codec(checkpoint, "cpu").decode(clip) for clip in clips]
    waves = load_codec(checkpoint, "cuda").decode_batch(clips)
    for wave, expected in zip(waves, exact, strict=True):
        assert wave.dtype == np.float32 and wave.shape == expected.shape
        for part in (slice(None), slice(-960, None)):
            error = np.sqrt(np.mean((wave - expected)[part] ** 2) / np.mean(expected[part] ** 2))
            print(f"{name}: {error:.4f} of the sound")
            assert error < 0.05


def test_stages_beside_the_engine(checkpoint_dir, vectors, tmp_path, monkeypatch):
    """Steps are captured while other threads encode references and decode clips: no line is lost by it."""
    import soundfile

    monkeypatch.setattr("omnitts.prepare.FIRST_WINDOW", 8)
    records = []
    for number in range(48):
        path = tmp_path / f"{number}.wav"
        soundfile.write(path, vectors["codec/encode/2/audio"].numpy() * (1 - number / 100), 24000, subtype="FLOAT")
        text = "Hello there, whoever you are. " * (1 + number % 5)
        records.append({"text": text, "ref_audio": str(path), "ref_text": "Привет, мир!"})
    tts = omnitts.load(checkpoint_dir, device="cuda")
    made = tts.synthesize(records, num_step=4, max_positions=1500)
    assert len(made) == 48 and all(speech.error is None and len(speech.audio) for speech in made)


def test_a_job_is_measured():
    figures = bench_job(lambda: omnitts.load(device="cuda"), Recipe(num_step=4), 12, 4096)
    print(*job_table(figures), sep="\n")
    assert figures.failed == 0 and figures.peak_gigabytes > 0
    assert figures.stats["graphs_captured"] > 0 and 0 < figures.stats["step_padding"] < 0.1
    assert figures.gpu_busy is None or 0 <= figures.gpu_busy <= 1


def test_fp8_beside_bfloat16(mini):
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs a GPU with e4m3 products")
    device = torch.device("cuda")
    reference = load_checkpoint(mini, device, torch.bfloat16, cuda_graphs=False)
    other = load_engine(mini, device, resolve_dtype("fp8", device), cuda_graphs=False)
    lines = [{"text": "Hello there, whoever you are."}, {"text": "And again.", "recipe": {"guidance_scale": 0}}]
    figures = bench_precision(reference, other, "fp8", read_utterances(lines, recipe=Recipe()))
    print(*precision_table(figures), sep="\n")
    assert all(row.tokens_same > 0.5 and row.next_same > 0.5 for row in figures.rows)


needs_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
)


@needs_hopper
@pytest.mark.parametrize("float8", [False, True])
def test_fused_products(float8):
    """The trial that decides on their use passes, and a model of OmniVoice's widths computes the same with them."""
    assert fused_products_work(torch.device("cuda"), float8)
    config = replace(OMNIVOICE, num_hidden_layers=3, vocab_size=1000)
    requests = [Request(list(range(40)), None, frames, Recipe(), seed) for seed, frames in enumerate((300, 251, 70))]
    logits = []
    for fused in (True, False):
        model = random_model(config, torch.bfloat16)
        with patch("omnitts.model.hopper.fused_products_work", return_value=fused), torch.inference_mode():
            engine = Engine.of(model, cuda_graphs=False, float8=float8)
            step = filled(engine, requests)
            assert engine.model.fused is fused
            logits.append(engine.model.logits(step.row, step.attention).float())
    error = (logits[0] - logits[1]).abs().mean() / logits[1].std()
    print(f"fused products, {'float8' if float8 else 'bfloat16'}: {error:.4f} of the logits' deviation")
    assert error < (0.05 if float8 else 0.02)


@needs_hopper
@pytest.mark.parametrize("positions", [700, 5000])
def test_attention_on_hopper(positions):
    """Documents from one row to all; twice, for what the first call leaves behind must not matter."""
    assert attention_backend(torch.device("cuda"), torch.bfloat16, OMNIVOICE) == "hopper"
    torch.manual_seed(0)
    qkv = torch.randn(positions, 32, 128, device="cuda").bfloat16()
    q, k, v = qkv.split((16, 8, 8), 1)
    ours, plain = (
        make_attention(backend, positions, 6, OMNIVOICE, torch.bfloat16, torch.device("cuda"))
        for backend in ("hopper", "plain")
    )
    for bounds in ([0, 1, 64, 129, 129, 400, positions], [0, 0, 0, 0, 0, 0, positions]):
        ours.plan(bounds)
        plain.plan(bounds)
        for _ in range(2):
            torch.testing.assert_close(ours(q, k, v), plain(q, k, v), rtol=0.02, atol=0.01)

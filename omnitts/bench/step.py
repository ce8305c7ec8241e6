"""One diffusion step: its time beside the matrix products that it cannot do without, and where the rest goes."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import torch

from omnitts.bench.timing import captured_milliseconds, matmul_rate, milliseconds
from omnitts.engine import Generated, Request
from omnitts.errors import InputError
from omnitts.model.backbone import OmniVoice
from omnitts.model.checkpoint import ModelConfig
from omnitts.recipe import Recipe
from omnitts.steps import Engine, Shape, Step, positions_of
from omnitts.trace import Watch

OMNIVOICE = ModelConfig(
    vocab_size=151_676,
    hidden_size=1024,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    intermediate_size=3072,
    rope_theta=1_000_000.0,
    rms_norm_eps=1e-6,
    audio_vocab_size=1025,
    audio_mask_id=1024,
    num_audio_codebook=8,
)
"""The sizes of the published checkpoint, for random weights: they take the same time."""


@dataclass(frozen=True)
class Work:
    """What each request of a batch is: positions of text, frames of a reference, frames to make."""

    name: str
    text: int
    reference: int
    frames: int


WORKS = (Work("seed", 48, 0, 100), Work("clone", 60, 125, 250))
BATCHES = (1, 2, 4, 8, 16, 32, 64)
IN_A_ROW = 4  # steps that are timed together: those of a loop follow each other, and the host does not wait

# Names of kernels, as profilers show them -> what they are for; the first that fits.
_KINDS = (
    ("sampler", ("_small_kernel", "_large_kernel")),
    ("reveal", ("_reveal",)),
    ("norm", ("_rms_norm",)),
    ("q/k norm, rotary", ("_norm_and_rotate",)),
    ("SwiGLU", ("_swiglu",)),
    ("embedding", ("_embed",)),
    ("products with q/k norm, rotary or SwiGLU", ("_product_kernel",)),
    ("quantising", ("_to_float8",)),
    ("attention", ("attention", "flash", "prefill", "fmha", "mha")),
    ("matrix products", ("gemm", "nvjet", "cutlass", "xmma", "matmul", "splitk")),
)


@dataclass(frozen=True)
class StepRow:
    """A batch's step, guidance on. Times in ms."""

    work: str
    batch: int
    positions: int
    padded: int  # positions with the padding of the graph's shape
    eager: float
    graph: float
    dumped: float | None  # the graph, with all that a dump of every cell takes, to the host
    floor: float  # the matrix products of the layers alone, in one graph
    utilisation: float  # the model's FLOP over the graph's time, as a share of a large product's rate
    shares: dict[str, float]  # of the GPU's time, by kind of kernel

    @property
    def ratio(self) -> float:
        return self.graph / self.floor


@dataclass(frozen=True)
class StepBench:
    device: str
    dtype: str
    attention: str
    teraflops: float  # of a large product
    capture_seconds: float  # a graph
    peak_gigabytes: float
    rows: list[StepRow]

    def as_dict(self) -> dict:
        """For JSON; with each row's ratio."""
        rows = [asdict(row) | {"ratio": row.ratio} for row in self.rows]
        return asdict(self) | {"rows": rows}


def random_model(config: ModelConfig, dtype: torch.dtype, device: str | torch.device = "cuda") -> OmniVoice:
    """A model of these sizes with random weights: its steps take as long as a real one's."""
    with torch.device("meta"):
        model = OmniVoice(config)
    model = model.to(dtype).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=0.02, generator=generator)
    return model.eval().requires_grad_(False)


def bench_step(
    model: OmniVoice,
    works: Sequence[Work] = WORKS,
    batches: Sequence[int] = BATCHES,
    float8: bool = False,
    dump: bool = False,
) -> StepBench:
    """Times steps of a half-precision model on a GPU, which is used up by it. The floor is half precision's.

    dump: also times steps of which everything is dumped but the likeliest tokens.
    """
    if not torch.cuda.is_available():
        raise InputError("`omnitts bench step` needs a CUDA device")
    rate = matmul_rate()
    floors = {(work, batch): _floor(model, work, batch) for work in works for batch in batches}
    engine = Engine.of(model, float8=float8)
    rows = [_row(engine, work, batch, floors[work, batch], rate, dump) for work in works for batch in batches]
    return StepBench(
        torch.cuda.get_device_name(),
        "fp8" if float8 else str(engine.model.dtype).removeprefix("torch."),
        engine.attention,
        rate / 1e12,
        engine.captures.seconds / max(1, engine.captures.count),
        torch.cuda.max_memory_allocated() / 1e9,
        rows,
    )


@torch.inference_mode()
def _row(engine: Engine, work: Work, batch: int, floor: float, rate: float, dump: bool) -> StepRow:
    requests = [_request(work, engine.model.config, seed) for seed in range(batch)]
    positions = sum(map(positions_of, requests))
    step = filled(engine, requests)
    now = torch.ones(2, step.shape.requests, dtype=torch.int64, device=engine.model.device)
    graph = milliseconds(lambda: step(now), calls=IN_A_ROW)
    shares = _shares(lambda: step(now))
    captured, step.graphs = step.graphs, {}
    eager = milliseconds(lambda: step(now), 5, IN_A_ROW)
    step.graphs = captured
    dumped = _dumped(engine, requests) if dump else None
    utilisation = _flop(engine.model.config, work, batch) / (graph / 1e3) / rate
    return StepRow(work.name, batch, positions, step.shape.positions, eager, graph, dumped, floor, utilisation, shares)


def _dumped(engine: Engine, requests: Sequence[Request]) -> float:
    """The time of a step with what it shows copied to the host, as every step's is when all are dumped."""
    step = filled(engine, [replace(request, watch=Watch()) for request in requests])
    now = torch.ones(2, step.shape.requests, dtype=torch.int64, device=engine.model.device)

    def run() -> None:
        step(now)
        step.sights[False].to_host()

    return milliseconds(run, calls=IN_A_ROW)


def filled(engine: Engine, requests: Sequence[Request]) -> Step:
    """A captured step with these requests in it."""
    mask = engine.model.config.audio_mask_id
    codebooks = engine.model.config.num_audio_codebook
    step = engine.step(Shape.of(requests))
    step.fill(requests, [Generated(np.full((codebooks, r.target_frames), mask, np.int16), 0) for r in requests])
    return step


def _request(work: Work, config: ModelConfig, seed: int) -> Request:
    random = np.random.default_rng(seed)
    reference = None
    if work.reference:
        reference = random.integers(0, config.audio_mask_id, (config.num_audio_codebook, work.reference), np.int16)
    ids = random.integers(0, config.vocab_size, work.text).tolist()
    return Request(ids, reference, work.frames, Recipe(), seed)


@torch.inference_mode()
def _floor(model: OmniVoice, work: Work, batch: int) -> float:
    """The time of the layers' matrix products alone, by the library's own choice of kernels, in one CUDA graph.

    They take every position, without padding; what reads the same input is one product.
    """
    positions = batch * (work.text + work.reference + 2 * work.frames)
    config, weight = model.config, model.audio_heads.weight
    query, key = (heads * config.head_dim for heads in (config.num_attention_heads, config.num_key_value_heads))
    sizes = (
        (config.hidden_size, query + 2 * key),
        (query, config.hidden_size),
        (config.hidden_size, 2 * config.intermediate_size),
        (config.intermediate_size, config.hidden_size),
    )
    matrices = [
        torch.randn(size[::-1], device=weight.device, dtype=weight.dtype).t() * 0.02
        for _ in range(config.num_hidden_layers)
        for size in sizes
    ]
    inputs = {width: torch.randn(positions, width, device=weight.device, dtype=weight.dtype) for width, _ in sizes}

    def run() -> None:
        for matrix in matrices:
            torch.mm(inputs[matrix.shape[0]], matrix)

    return captured_milliseconds(run, 1, IN_A_ROW)


def _flop(config: ModelConfig, work: Work, batch: int) -> float:
    """Of a step as the model defines it: layers over every position, attention within documents, heads on targets."""
    heads, width = config.num_attention_heads, config.head_dim
    layer = config.hidden_size * width * (2 * heads + 2 * config.num_key_value_heads)
    layer += 3 * config.hidden_size * config.intermediate_size
    documents = (work.text + work.reference + work.frames, work.frames)
    a_layer = sum(2 * length * layer + 4 * length**2 * heads * width for length in documents)
    logits = 2 * 2 * work.frames * config.hidden_size * config.num_audio_codebook * config.audio_vocab_size
    return batch * (config.num_hidden_layers * a_layer + logits)


def _shares(work) -> dict[str, float]:
    """Share of the GPU's time by kind of kernel."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):
            work()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in profiler.key_averages():
        kind = next((kind for kind, parts in _KINDS if any(part in event.key.lower() for part in parts)), "other")
        times[kind] = times.get(kind, 0.0) + event.self_device_time_total
    total = sum(times.values()) or 1.0
    return {kind: time / total for kind, time in sorted(times.items(), key=lambda item: -item[1])}


def step_table(bench: StepBench) -> list[str]:
    """The bench as lines of text."""
    dumps = any(row.dumped is not None for row in bench.rows)
    lines = [
        f"{bench.device}, {bench.dtype}, attention by {bench.attention}; a large product runs at {bench.teraflops:.0f} "
        f"TFLOP/s; {bench.capture_seconds:.2f} s to capture a graph; {bench.peak_gigabytes:.1f} GB at most",
        f"{'work':<6} {'batch':>5} {'positions':>9} {'padded':>7} {'eager':>8} {'graph':>8} {'a request':>9} "
        f"{'floor':>8} {'over it':>7} {'of peak':>7}" + (f" {'dumped':>8}" if dumps else ""),
    ]
    for row in bench.rows:
        lines.append(
            f"{row.work:<6} {row.batch:>5} {row.positions:>9,} {row.padded / row.positions - 1:>7.1%} "
            f"{row.eager:>8.3f} {row.graph:>8.3f} {row.graph / row.batch:>9.3f} {row.floor:>8.3f} {row.ratio:>7.2f} "
            f"{row.utilisation:>7.0%}" + ("" if row.dumped is None else f" {row.dumped / row.graph - 1:>+8.1%}")
        )
    for row in bench.rows:
        parts = ", ".join(f"{kind} {share:.1%}" for kind, share in row.shares.items())
        lines.append(f"{row.work} {row.batch}: {parts}")
    return lines

"""The sampler's kernels, beside plain torch, torch.compile and FlashInfer."""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from omnitts.bench.timing import captured_milliseconds, copy_bandwidth, milliseconds
from omnitts.errors import InputError
from omnitts.sampler import SamplingParams, sample
from omnitts.sampler.reference import sample_cells

SPEECH_VOCABULARY, SPEECH_CODEBOOKS = 1025, 8
TEXT_VOCABULARY, TEXT_POSITIONS = 151_936, 4096


@dataclass(frozen=True)
class Row:
    """One case of the table. Ratios are times of the other over ours: above 1, ours is the faster."""

    case: str
    milliseconds: float
    share_of_copy: float  # of the copy bandwidth, counting each logit read once
    against_torch: float | None = None  # the plain-torch definition
    against_compiled: float | None = None  # that under torch.compile
    against_flashinfer: float | None = None  # its kernel for the same filter, plus a log_softmax for the logprobs


@dataclass(frozen=True)
class SamplerBench:
    device: str
    copy_gigabytes_per_second: float  # read plus written
    rows: list[Row]

    def as_dict(self) -> dict:
        return asdict(self)


def bench_sampler(cells: int = 128_000) -> SamplerBench:
    """Times the sampler's Triton kernels on the first GPU; raises InputError without one.

    cells: positions of a speech codebook's vocabulary in the first cases, bfloat16 and guided.
    """
    if not torch.cuda.is_available():
        raise InputError("`omnitts bench sampler` needs a CUDA device: the CPU runs the definition itself")
    bandwidth = copy_bandwidth()
    rows = [
        _speech_case(name, settings, cells, bandwidth)
        for name, settings in (
            ("greedy", {}),
            ("top-ratio 0.1, Gumbel", {"temperature": 1.0, "top_ratio": 0.1}),
            ("top-p 0.9, Gumbel", {"temperature": 1.0, "top_p": 0.9}),
        )
    ]
    rows += [
        _text_case(name, settings, bandwidth)
        for name, settings in (("top-p 0.9", {"top_p": 0.9}), ("top-k 50", {"top_k": 50}))
    ]
    return SamplerBench(torch.cuda.get_device_name(), bandwidth, rows)


def sampler_table(bench: SamplerBench) -> list[str]:
    """The bench as lines of text."""

    def times(ratio: float | None) -> str:
        return "-" if ratio is None else f"{ratio:.1f} x"

    lines = [
        f"{bench.device}; copy bandwidth {bench.copy_gigabytes_per_second:,.0f} GB/s",
        f"{'case':<44} {'ms':>8} {'of copy':>8} {'torch':>8} {'compiled':>9} {'flashinfer':>11}",
    ]
    for row in bench.rows:
        lines.append(
            f"{row.case:<44} {row.milliseconds:>8.3f} {row.share_of_copy:>8.0%} {times(row.against_torch):>8} "
            f"{times(row.against_compiled):>9} {times(row.against_flashinfer):>11}"
        )
    return lines


def _speech_case(name: str, settings: dict, cells: int, bandwidth: float) -> Row:
    frames = cells // SPEECH_CODEBOOKS
    cond, uncond = (torch.randn(frames, SPEECH_CODEBOOKS, SPEECH_VOCABULARY, device="cuda").bfloat16() for _ in "cu")
    params = SamplingParams.of(
        [{"seed": 1, "guidance_scale": 2.0, "forbidden": [SPEECH_VOCABULARY - 1], **settings}], device="cuda"
    )
    offsets, step = torch.tensor([0, frames], device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")

    def run(backend: str) -> Callable[[], object]:
        return lambda: sample(cond, uncond, params, offsets=offsets, step=step, backend=backend)

    ours = captured_milliseconds(run("triton"))
    moved = 2 * cond.numel() * cond.element_size()
    return Row(
        f"{name}, {cells:,} cells of {SPEECH_VOCABULARY}, guided",
        ours,
        moved / (ours * 1e6) / bandwidth,
        milliseconds(run("torch"), 3) / ours,
        milliseconds(_compiled_definition(cond, uncond, params, step), 3) / ours,
    )


def _compiled_definition(cond: Tensor, uncond: Tensor, params: SamplingParams, step: Tensor) -> Callable[[], object]:
    """The definition under torch.compile, with what each cell belongs to worked out beforehand."""
    cells = torch.arange(cond.shape[0] * cond.shape[1], device="cuda")
    request, steps = torch.zeros_like(cells), step.expand(len(cells))
    compiled = torch.compile(sample_cells)
    return lambda: compiled(cond.flatten(0, 1), uncond.flatten(0, 1), params, request, cells, steps, "max", 0)


def _text_case(name: str, settings: dict, bandwidth: float) -> Row:
    logits = torch.randn(TEXT_POSITIONS, 1, TEXT_VOCABULARY, device="cuda").bfloat16() * 2
    params = SamplingParams.of([{"seed": 1, "temperature": 1.0, **settings}], device="cuda")
    offsets, step = torch.tensor([0, TEXT_POSITIONS], device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    ours = captured_milliseconds(lambda: sample(logits, None, params, offsets=offsets, step=step, backend="triton"))
    theirs = _flashinfer_milliseconds(logits.squeeze(1), settings)
    return Row(
        f"{name}, {TEXT_POSITIONS:,} positions of {TEXT_VOCABULARY:,}",
        ours,
        logits.numel() * logits.element_size() / (ours * 1e6) / bandwidth,
        against_flashinfer=None if theirs is None else theirs / ours,
    )


def _flashinfer_milliseconds(logits: Tensor, settings: dict) -> float | None:
    """FlashInfer's softmax and sampling kernels, and the log_softmax whose values they do not give."""
    try:
        from flashinfer.sampling import softmax, top_k_sampling_from_probs, top_p_sampling_from_probs
    except ImportError:
        return None

    wide = logits.float()  # what their softmax takes; not counted against them

    def run() -> None:
        probabilities = softmax(wide)
        if "top_p" in settings:
            tokens = top_p_sampling_from_probs(probabilities, settings["top_p"])
        else:
            tokens = top_k_sampling_from_probs(probabilities, settings["top_k"])
        torch.log_softmax(logits, dim=-1).gather(-1, tokens[:, None].long())

    return captured_milliseconds(run)

"""A whole job, from a manifest on disk to WAV files on disk: what a GPU is kept busy with, and for how long."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from omnitts.bench import busy
from omnitts.bench.corpus import write_corpus
from omnitts.errors import counted
from omnitts.job import Again, run_job
from omnitts.manifest import read_manifest
from omnitts.output import Output
from omnitts.progress import reporter
from omnitts.recipe import Recipe
from omnitts.results import SUMMARY
from omnitts.summary import Totals
from omnitts.tts import TTS, dtype_name

WARM_UP = 64  # utterances at most
OUT = "wavs"


@dataclass(frozen=True)
class JobBench:
    device: str
    model: str
    dtype: str
    recipe: str
    max_positions: int
    utterances: int
    failed: int
    load_seconds: float
    warm_up_seconds: float  # with those of finding the batch's size, where that is not kept
    manifest_seconds: float  # of reading and checking it, part of the wall time
    wall_seconds: float
    audio_seconds: float
    gpu_busy: float | None  # share of the time, in the mean of nvidia-smi's samples
    peak_gigabytes: float | None  # of the GPU's memory, in tensors
    stats: dict[str, Any]  # as in summary.json

    @property
    def real_time_factor(self) -> float | None:
        """Seconds of work for a second of audio."""
        return self.wall_seconds / self.audio_seconds if self.audio_seconds else None

    @property
    def utterances_per_second(self) -> float:
        return self.utterances / self.wall_seconds

    def as_dict(self) -> dict[str, Any]:
        """For JSON; with the ratios."""
        ratios = {name: getattr(self, name) for name in ("real_time_factor", "utterances_per_second")}
        return asdict(self) | ratios


def bench_job(load: Callable[[], TTS], recipe: Recipe, utterances: int, max_positions: int | None) -> JobBench:
    """Runs a job of so many utterances as `synth` would, after a smaller one with recordings of its own.

    The recordings are read and encoded within the time that is measured. Where the time went is also printed.
    max_positions: None for what suits the device and a job of this size.
    """
    start = time.perf_counter()
    tts = load()
    load_seconds = time.perf_counter() - start
    on_gpu = tts.device.type == "cuda"
    with TemporaryDirectory(prefix="omnitts-bench-") as folder:
        warm_up = write_corpus(Path(folder, "warm-up"), min(WARM_UP, utterances), seed=1)
        manifest = write_corpus(Path(folder, "job"), utterances, seed=0)
        start = time.perf_counter()
        max_positions = max_positions or tts.positions_for(utterances)
        for lines in (None, 1):  # small batches have kernels of their own
            _run(tts, warm_up, recipe, max_positions, log_stats=False, limit=lines)
        warm_up_seconds = time.perf_counter() - start
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(tts.device)
        with busy.sampled(tts.device) as gpu:
            run = _run(tts, manifest, recipe, max_positions, log_stats=True)
        summary = json.loads((manifest.parent / OUT / SUMMARY).read_text(encoding="utf-8"))
    return JobBench(
        device=torch.cuda.get_device_name(tts.device) if on_gpu else "CPU",
        model=str(tts.checkpoint.path),
        dtype=dtype_name(tts.dtype),
        recipe=recipe.name,
        max_positions=max_positions,
        utterances=utterances,
        failed=run.totals.failed,
        load_seconds=load_seconds,
        warm_up_seconds=warm_up_seconds,
        manifest_seconds=run.manifest_seconds,
        wall_seconds=run.wall_seconds,
        audio_seconds=run.totals.audio_seconds,
        gpu_busy=gpu.share,
        peak_gigabytes=torch.cuda.max_memory_allocated(tts.device) / 1e9 if on_gpu else None,
        stats=summary["stats"],
    )


@dataclass(frozen=True)
class Run:
    """One job, manifest and all."""

    totals: Totals
    manifest_seconds: float
    wall_seconds: float


def _run(
    tts: TTS, manifest: Path, recipe: Recipe, max_positions: int, *, log_stats: bool, limit: int | None = None
) -> Run:
    output = Output(manifest.parent / OUT)
    output.folder.mkdir(exist_ok=True)
    start = time.perf_counter()
    lines = read_manifest(manifest, recipe=recipe, limit=limit)
    read = time.perf_counter()
    totals = run_job(
        tts.checkpoint,
        lambda: tts,
        lines.utterances,
        output,
        asked={"manifest": lines.name, "recipe": recipe.name},
        max_positions=max_positions,
        progress=reporter(len(lines.utterances), quiet=not log_stats),
        again=Again(overwrite=True),
        log_stats=log_stats,
    )
    if totals.interrupted:
        raise KeyboardInterrupt
    return Run(totals, read - start, time.perf_counter() - start)


def job_table(bench: JobBench) -> list[str]:
    """The bench as lines of text, without what `run_job` prints of its stats."""
    factor, stats = bench.real_time_factor, bench.stats
    lines = [
        f"{bench.device}, {bench.model}, {bench.dtype}, recipe {bench.recipe}, batches of {bench.max_positions:,} "
        f"positions at most; loaded in {bench.load_seconds:.1f} s, warm-up {bench.warm_up_seconds:.1f} s",
        f"{counted(bench.utterances, 'utterance')}, {bench.failed} failed: {bench.audio_seconds:,.1f} s of audio in "
        f"{bench.wall_seconds:.2f} s, {bench.manifest_seconds:.2f} s of it for the manifest; "
        f"{bench.utterances_per_second:.2f} utterances a second, real-time factor "
        + ("-" if factor is None else f"{factor:.4f}"),
        f"{counted(stats['batches'], 'batch', 'batches')} of {stats['positions_per_batch'] or 0:,.0f} positions in the "
        f"mean, {stats['step_padding'] or 0:.1%} padding; {counted(stats['graphs_captured'], 'graph')} captured in "
        f"{stats['capture_seconds']:.1f} s",
    ]
    if bench.peak_gigabytes is not None:
        share = "not sampled" if bench.gpu_busy is None else f"{bench.gpu_busy:.0%} of the time"
        lines.append(f"GPU busy: {share}; {bench.peak_gigabytes:.1f} GB at most")
    return lines

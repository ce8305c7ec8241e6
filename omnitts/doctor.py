"""What is installed, what the machine has, what is used of it and why, and whether it works: `omnitts doctor`.

Each check gives a Section. Whatever a check raises becomes a problem of it: this is for machines where things fail.
"""

import os
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from hashlib import sha256
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import omnitts
from omnitts.errors import InputError, counted, one_line, reason, shown_path

if TYPE_CHECKING:
    import torch

    from omnitts.model.checkpoint import Checkpoint
    from omnitts.speech import Speech
    from omnitts.tts import TTS

SELF_TEST = {"id": "self-test", "text": "One, two, three.", "seed": 1}

_GIB = 1 << 30
_REPORT = "report it, with the file of --json"


@dataclass(frozen=True)
class Section:
    """One check's findings: lines for a reader, facts for programs, and problems, each with its mend."""

    title: str
    lines: Sequence[str] = ()
    facts: Any = None  # a dataclass, or a list of them
    problems: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """All sections of an examination."""

    sections: Sequence[Section]

    @property
    def problems(self) -> list[str]:
        return [problem for section in self.sections for problem in section.problems]

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it."""
        facts = {section.title: _plain(section.facts) for section in self.sections}
        return {"problems": self.problems, **facts}


def examine(model: str | None, device: str) -> Iterator[Section]:
    """Makes the checks, one after the other. model, device: as `omnitts.load` takes them.

    A device that is not there is a problem, and the CPU is looked at in its place; what no device is called raises
    InputError.
    """
    if not re.fullmatch("auto|cpu|cuda(:[0-9]+)?", device):
        raise InputError(f"no device is called {device!r}: use auto, cpu, cuda or cuda:N", field="--device")
    loaded: list[TTS] = []
    yield guarded("versions", versions)
    yield guarded("machine", machine)
    yield guarded("devices", partial(devices, device))
    yield guarded("checkpoint", partial(checkpoint, model, device, loaded))
    yield guarded("engine", partial(engine, loaded))
    yield guarded("caches", caches)
    yield guarded("self-test", partial(self_test, loaded))


def guarded(title: str, check: Callable[[], Section]) -> Section:
    """The check's section, or one with a problem where it fails."""
    try:
        return check()
    except InputError as error:
        return Section(title, problems=[one_line(str(error))])
    except Exception as error:  # whatever a broken installation sets off
        return Section(title, problems=[f"this check failed: {reason(error)}; {_REPORT}"])


# ---- What is installed ----


@dataclass(frozen=True)
class Package:
    """A package, as pip calls it; of one that must not be there, what it would be for and how to get it."""

    name: str
    version: str | None
    needed: bool = True
    purpose: str = ""
    mend: str = ""


REQUIRED = ("torch", "transformers", "tokenizers", "safetensors", "soundfile", "huggingface_hub")
OPTIONAL = (
    ("triton", "a GPU's kernels", "pip install triton, or the extra cuda"),
    (
        "flashinfer-python",
        "attention on GPUs before and after Hopper",
        "pip install flashinfer-python, or the extra cuda",
    ),
    ("ray", "several GPUs or machines: --engine ray", "pip install ray, or the extra ray"),
    ("matplotlib", "dump plot", "pip install matplotlib, or the extra plot"),
    ("pyarrow", "dump export", "pip install pyarrow, or the extra parquet"),
)


def versions() -> Section:
    """Versions of what is imported, and what is not there."""
    packages = [
        Package("python", platform.python_version()),
        Package("omnitts", omnitts.__version__),
        *(Package(name, _version(name)) for name in REQUIRED),
        Package("libsndfile", _libsndfile()),
        *(Package(name, _version(name), False, purpose, mend) for name, purpose, mend in OPTIONAL),
    ]
    lines = [
        f"{each.name} {each.version}"
        if each.version
        else f"{each.name}: not installed (for {each.purpose}: {each.mend})"
        for each in packages
        if each.version or not each.needed
    ]
    problems = [
        f"{each.name} is not installed: pip install {each.name}"
        for each in packages
        if each.needed and not each.version
    ]
    problems += [problem for each in packages if each.version and (problem := _broken(each.name))]
    return Section("versions", lines, packages, problems)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _libsndfile() -> str | None:
    try:
        import soundfile
    except (ImportError, OSError):  # OSError: no such library
        return None
    return soundfile.__libsndfile_version__


def _broken(name: str) -> str | None:
    """What is wrong with a package that is installed and cannot be imported."""
    module = {"flashinfer-python": "flashinfer", "libsndfile": "soundfile"}.get(name, name)
    if name in ("python", "omnitts"):
        return None
    try:
        import_module(module)
    except Exception as error:  # libraries with parts in C raise all kinds
        return f"{name} is installed, but cannot be imported ({reason(error)}): install it anew"
    return None


# ---- The machine ----


@dataclass(frozen=True)
class Machine:
    """Bytes are None where the system does not tell. cores: those that this process may use."""

    platform: str
    cpus: int
    cores: int
    torch_threads: int
    memory: int | None
    available: int | None
    memory_limit: int | None  # of the container


def machine() -> Section:
    """Platform, cores, threads, memory."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = _meminfo()
    found = Machine(
        platform.platform(),
        os.cpu_count() or 1,
        cores,
        torch.get_num_threads(),
        memory.get("MemTotal"),
        memory.get("MemAvailable"),
        _memory_limit(),
    )
    threads = counted(found.torch_threads, "thread")
    lines = [
        f"{found.platform}, {platform.machine()}",
        f"{counted(found.cpus, 'CPU')}, {found.cores} for this process; torch uses {threads}",
    ]
    if found.memory is not None:
        limit = "" if found.memory_limit is None else f", {_size(found.memory_limit)} for this container"
        lines.append(f"{_size(found.memory)} of memory, {_size(found.available or 0)} available{limit}")
    problems = []
    if found.torch_threads > found.cores:
        problems.append(
            f"torch uses {found.torch_threads} threads on {counted(found.cores, 'core')}, which slows it down: "
            f"set OMP_NUM_THREADS={found.cores}"
        )
    return Section("machine", lines, found, problems)


def _meminfo(path: str = "/proc/meminfo") -> dict[str, int]:
    """Bytes by name; empty where there is no such file."""
    try:
        text = Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return {}
    return {name: int(kib) << 10 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def _memory_limit() -> int | None:
    try:
        return int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
    except (OSError, ValueError):  # ValueError: "max"
        return None


def _size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"


# ---- Devices ----


@dataclass(frozen=True)
class Device:
    """A CUDA device: its memory in bytes, its compute capability."""

    name: str
    model: str
    capability: tuple[int, int]
    free: int
    total: int


@dataclass(frozen=True)
class Devices:
    used: str
    devices: list[Device]
    driver: str | None  # NVIDIA's, where there is one
    cuda: str | None  # that torch was built for


def devices(asked: str) -> Section:
    """CUDA devices, and which is used. asked: the value of --device."""
    import torch

    used, problems = _resolved(asked)
    driver, there = _driver(), torch.cuda.is_available()
    found = [_device(index) for index in range(torch.cuda.device_count())] if there else []
    facts = Devices(str(used), found, driver, torch.version.cuda)
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPUs only"
    lines = [
        f"in use: {used}" + (", the default here" if asked == "auto" else ""),
        f"NVIDIA driver: {driver or 'none'}; torch is built for {built}",
        *(
            f"{each.name}: {each.model}, compute capability {each.capability[0]}.{each.capability[1]}, "
            f"{_size(each.free)} of {_size(each.total)} free"
            for each in found
        ),
    ]
    if driver is not None and not there and asked == "auto":
        why = "cannot use it: update the driver" if torch.version.cuda else "is a build for CPUs: install a CUDA build"
        problems.append(f"there is an NVIDIA driver, and torch {torch.__version__} {why}; or say --device cpu")
    return Section("devices", lines, facts, problems)


def _resolved(asked: str) -> "tuple[torch.device, list[str]]":
    """The device, or the CPU and why."""
    import torch

    from omnitts.tts import resolve_device

    try:
        return resolve_device(asked), []
    except InputError as error:
        return torch.device("cpu"), [f"--device {asked}: {error.message}"]


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return found[0] if found else None


def _device(index: int) -> Device:
    import torch

    free, total = torch.cuda.mem_get_info(index)
    name, capability = torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index)
    return Device(f"cuda:{index}", name, capability, free, total)


# ---- The checkpoint ----


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that was loaded. files: bytes by name; seconds: that loading took."""

    path: str
    digest: str
    codec_digest: str
    codec: str
    layers: int
    hidden_size: int
    vocab_size: int
    dtype: str
    seconds: float
    files: dict[str, int] = field(default_factory=dict)


def checkpoint(model: str | None, asked: str, loaded: "list[TTS]") -> Section:
    """Which checkpoint, its digests and files, and whether all of its tensors load; puts it into `loaded`."""
    from omnitts.model.checkpoint import open_checkpoint, resolve_model
    from omnitts.tts import dtype_name, load_checkpoint, resolve_dtype

    device, _ = _resolved(asked)
    opened = open_checkpoint(resolve_model(model))
    began = time.perf_counter()
    tts = load_checkpoint(opened, device, resolve_dtype("auto", device), encoder=True)
    loaded.append(tts)
    config = opened.config
    facts = Loaded(
        str(opened.path),
        opened.digest,
        opened.codec_digest,
        type(tts.codec).__name__,
        config.num_hidden_layers,
        config.hidden_size,
        config.vocab_size,
        dtype_name(tts.dtype),
        round(time.perf_counter() - began, 3),
        _files(opened),
    )
    lines = [
        f"{shown_path(facts.path)}, digest {facts.digest}",
        f"codec {facts.codec}, digest {facts.codec_digest}, {shown_path(opened.codec_path)}",
        f"{counted(facts.layers, 'layer')} of {facts.hidden_size}, {facts.vocab_size:,} text ids",
        *(f"{name}: {size:,} bytes" for name, size in facts.files.items()),
        f"all tensors load, in {facts.dtype} on {device}: {facts.seconds:.1f} s",
    ]
    return Section("checkpoint", lines, facts)


def _files(opened: "Checkpoint") -> dict[str, int]:
    """Bytes of the files that are read; of the codec's, the names have its folder's."""
    own = [opened.path / "config.json", *opened.weight_files, opened.tokenizer_path]
    codec = [opened.codec_path / "config.json", *opened.codec_weight_files]
    names = {path: path.name for path in own} | {path: f"{opened.codec_path.name}/{path.name}" for path in codec}
    return {name: path.stat().st_size for path, name in names.items()}


# ---- The engine ----


@dataclass(frozen=True)
class Engine:
    """What runs the steps. attention: as `attention_backend` calls it; graphs: whether steps are captured."""

    engine: str
    attention: str
    graphs: bool
    fused: bool
    why: list[str]


def engine(loaded: "list[TTS]") -> Section:
    """Which engine, attention and kernels the loaded checkpoint has, and why not others."""
    if not loaded:
        return Section("engine", ["not looked at: the checkpoint does not load"])
    from omnitts.model.backbone import OmniVoice

    (tts,) = loaded
    facts = _plain_loop(tts) if isinstance(tts.model, OmniVoice) else _steps(tts)
    problems = []
    if tts.device.type == "cuda" and facts.engine == "plain" and _version("triton") is None:
        problems.append(
            "Triton is not installed, so the GPU runs a plain loop, slowly: pip install triton, or the extra cuda"
        )
    return Section("engine", facts.why, facts, problems)


def _plain_loop(tts: "TTS") -> Engine:
    why = "CPU" if tts.device.type == "cpu" else f"no engine of ours for {tts.dtype} here"
    return Engine("plain", "plain", False, False, [f"{why}: plain loop, attention by torch, sampling by torch"])


def _steps(tts: "TTS") -> Engine:
    model = tts.model
    captured = "steps captured as CUDA graphs" if model.cuda_graphs else "steps launched kernel by kernel"
    fused = "in kernels for Hopper GPUs" if model.model.fused else "by torch, what lies between them in Triton kernels"
    why = [
        f"one packed row a batch, {captured}",
        f"matrix products {fused}",
        _attention_reason(model.attention),
        "sampling by Triton kernels",
    ]
    return Engine("steps", model.attention, model.cuda_graphs, model.model.fused, why)


def _attention_reason(backend: str) -> str:
    """A line on the attention of the engine for GPUs."""
    from omnitts.model.attention import has_flashinfer

    if backend == "hopper":
        return "Hopper GPU, and the kernel passed its trial: attention by a kernel for it"
    if backend == "flashinfer":
        return "attention by FlashInfer"
    if backend == "tiled":
        unable = "cannot take this head size" if has_flashinfer() else "is not installed, or does not load"
        return f"FlashInfer {unable}: attention by the Triton kernel"
    return f"attention: {backend}"


# ---- Caches ----


@dataclass(frozen=True)
class Caches:
    """positions: batch sizes that were found by measurement, by what they depend on."""

    file: str
    positions: dict[str, int]


def caches() -> Section:
    """Batch sizes found by measurement."""
    try:
        from omnitts import knee
    except ImportError as error:
        return Section("caches", [f"none: batch sizes are measured on GPUs, with Triton ({error})"])
    path, kept = knee.cache_file(), knee.kept()
    lines = [f"{shown_path(path)}: {counted(len(kept), 'batch size')} found by measurement"]
    lines += [f"{counted(positions, 'position')}: {key}" for key, positions in kept.items()]
    problems = []
    if path.exists() and not kept:
        problems.append(
            f"{shown_path(path)} holds no batch sizes that can be read: remove it, and they are measured anew"
        )
    return Section("caches", lines, Caches(str(path), kept), problems)


# ---- Self-test ----


@dataclass(frozen=True)
class SelfTest:
    """seconds: of audio; first, second: seconds that it took to make; peak: of full scale; digest: of the codes."""

    text: str
    seconds: float
    first: float
    second: float
    real_time_factor: float
    equal: bool
    peak: float
    rms: float
    digest: str


def self_test(loaded: "list[TTS]") -> Section:
    """Makes a short line twice, and looks at what came out.

    What its codes are depends, in float32 too, on how a CPU adds up products: so nothing is kept to compare them with.
    """
    if not loaded:
        return Section("self-test", ["not made: the checkpoint does not load"])
    (tts,) = loaded
    (one, first), (two, second) = _timed(tts), _timed(tts)
    equal = np.array_equal(one.codes, two.codes) and np.array_equal(one.audio, two.audio)
    facts = SelfTest(
        SELF_TEST["text"],
        round(two.seconds, 3),
        round(first, 3),
        round(second, 3),
        round(second / two.seconds, 4),
        equal,
        round(float(np.abs(two.audio).max()), 4),
        round(float(np.sqrt(np.mean(np.square(two.audio, dtype=np.float64)))), 5),
        sha256(two.codes.tobytes()).hexdigest()[:16],
    )
    lines = [
        f'"{facts.text}": {facts.seconds:.2f} s of audio in {second:.2f} s, real-time factor '
        f"{facts.real_time_factor:.3f}; the first time in {first:.2f} s",
        f"peak {facts.peak:.3f} of full scale, RMS {facts.rms:.4f}",
        f"codes {facts.digest}, " + ("the same both times" if equal else "not the same both times"),
    ]
    return Section("self-test", lines, facts, judge(facts, str(tts.device), float32=tts.dtype.itemsize == 4))


def judge(made: SelfTest, device: str, *, float32: bool) -> list[str]:
    """What is wrong with what was made. float32: its arithmetic was."""
    problems = []
    if not made.equal and device == "cpu" and float32:
        problems.append(f"the same line came out differently twice, which no CPU's float32 may do; {_REPORT}")
    if made.peak >= 1.0:
        problems.append(f"the audio is clipped, with a peak of {made.peak:g}: is this a checkpoint in good order?")
    if made.rms < 1e-4:
        problems.append(f"the audio is silent, with an RMS of {made.rms:g}: is this a checkpoint in good order?")
    return problems


def _timed(tts: "TTS") -> "tuple[Speech, float]":
    began = time.perf_counter()
    (speech,) = tts.synthesize(SELF_TEST)
    return speech, time.perf_counter() - began


def _plain(facts: Any) -> Any:
    return [asdict(each) for each in facts] if isinstance(facts, list) else None if facts is None else asdict(facts)

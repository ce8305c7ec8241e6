"""Tensors from safetensors files into a module that was built on the meta device."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from omnitts.errors import InputError

_FLOATS = {"F64", "F32", "F16", "BF16"}
_NAMED_AT_MOST = 4

ROW_SCALE = ".row_scale"
"""Behind a matrix's name: what its rows of int8 are multiplied by, [rows, 1]."""

# A weight-normed convolution is stored as a gain and a direction, under the names of either torch implementation.
_PARTS = {
    ".weight_g": "gain",
    ".weight_v": "direction",
    ".parametrizations.weight.original0": "gain",
    ".parametrizations.weight.original1": "direction",
    f".weight{ROW_SCALE}": "scale",
}


def load_weights(
    module: nn.Module,
    files: Sequence[Path],
    *,
    device: str | torch.device,
    dtype: torch.dtype,
    ignored: Iterable[str] = (),
) -> None:
    """Fill `module`, whose parameters are on the meta device, and make it ready for inference.

    Every tensor of `module.state_dict()` must be in one of `files`, and every tensor in them must be in it, or match
    one of the glob patterns `ignored`. Weight-normed weights are merged into plain ones, and
    rows of int8 multiplied by their scales. Tensors are read one at a
    time, so that the memory needed is the module's own plus one tensor. Raises InputError on a file that cannot
    be read, on missing, unexpected, misshapen and non-float tensors, all told in one message, and on a tensor with
    numbers that are not finite, or are not in `dtype`.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    place = files[0] if len(files) == 1 else files[0].parent
    with ExitStack() as stack:
        handles = {}
        for file in files:
            handle = stack.enter_context(open_safetensors(file))
            for name in handle.keys():  # noqa: SIM118 (not a dict)
                if name in handles:
                    raise InputError(f"{name} is in two files of this checkpoint", file=file)
                if not any(fnmatchcase(name, pattern) for pattern in ignored):
                    handles[name] = handle
        stored = _join_parts(handles)
        if problems := _compare(wanted, stored, handles):
            raise InputError(f"tensors are not those that config.json calls for: {problems}", file=place)
        state = {}
        for name in wanted:
            # A copy even where nothing changes: a view of the mapped file would die with the file.
            state[name] = _read(stored[name], handles).to(device=device, dtype=dtype, copy=True)
            if not state[name].isfinite().all():
                kind = str(dtype).removeprefix("torch.")
                message = f"{name} holds numbers that are not finite, or are too large for {kind}"
                raise InputError(f"{message}: if the weights are damaged, download them again", file=place)
    module.load_state_dict(state, assign=True)
    module.requires_grad_(False).eval()


def open_safetensors(file: Path):
    """Open a file to read CPU tensors from. Raises InputError when it is absent, cut short or of another kind."""
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        message = f"not a whole safetensors file ({error}); download it again (a git clone needs git-lfs)"
        raise InputError(message, file=file) from None


def _join_parts(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Plain parameter names -> the stored tensors that make each, by part: plain, or gain and direction."""
    stored: dict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        suffix = next((suffix for suffix in _PARTS if name.endswith(suffix)), None)
        if suffix is None:
            stored[name]["plain"] = name
        else:
            stored[name.removesuffix(suffix) + ".weight"][_PARTS[suffix]] = name
    return dict(stored)


def _compare(wanted: dict[str, tuple[int, ...]], stored: dict[str, dict[str, str]], handles: dict) -> str:
    """All that keeps the stored tensors from filling the wanted ones, "" when nothing does."""
    problems = defaultdict(list)
    problems["missing"] = [name for name in wanted if name not in stored]
    problems["unexpected"] = [name for name in stored if name not in wanted]
    for name in wanted.keys() & stored.keys():
        parts = stored[name]
        if parts.keys() not in ({"plain"}, {"plain", "scale"}, {"gain", "direction"}):
            problems["stored in parts that do not go together"].append(f"{name} ({', '.join(parts.values())})")
            continue
        slices = {part: handles[full].get_slice(full) for part, full in parts.items()}
        allowed = _FLOATS | {"I8"} if "scale" in parts else _FLOATS
        if odd := [s.get_dtype() for s in slices.values() if s.get_dtype() not in allowed]:
            problems["not floating-point"].append(f"{name} ({odd[0]})")
        shapes = {part: tuple(s.get_shape()) for part, s in slices.items()}
        shape = shapes["plain"] if "plain" in shapes else shapes["direction"]
        if shape != wanted[name]:
            problems["misshapen"].append(f"{name} {list(shape)} instead of {list(wanted[name])}")
        elif "scale" in shapes and shapes["scale"] != (shape[0], 1):
            problems["misshapen"].append(f"{parts['scale']} {list(shapes['scale'])} for {list(shape)}")
        elif "gain" in shapes and not _is_gain_of(shapes["gain"], shape):
            problems["misshapen"].append(f"{parts['gain']} {list(shapes['gain'])} for {list(shape)}")
    return "; ".join(f"{kind}: {_some(sorted(names))}" for kind, names in problems.items() if names)


def _is_gain_of(gain: tuple[int, ...], direction: tuple[int, ...]) -> bool:
    return len(gain) == len(direction) and all(g in (1, d) for g, d in zip(gain, direction, strict=True))


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _read(parts: dict[str, str], handles: dict) -> Tensor:
    tensors = {part: handles[name].get_tensor(name) for part, name in parts.items()}
    if "scale" in tensors:
        return tensors["plain"].float() * tensors["scale"].float()
    if "plain" in tensors:
        return tensors["plain"]
    return merge_weight_norm(tensors["gain"], tensors["direction"])


def merge_weight_norm(gain: Tensor, direction: Tensor) -> Tensor:
    """The float32 weight of a weight-normed layer: gain * direction / |direction|.

    The norm runs over the axes along which `gain` has size 1 (all but one of `direction`'s).
    """
    axes = [axis for axis, size in enumerate(gain.shape) if size == 1]
    gain, direction = gain.float(), direction.float()
    return direction * (gain / torch.linalg.vector_norm(direction, dim=axes, keepdim=True))

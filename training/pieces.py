"""Checkpoints that travel: float16 tensors in safetensors files of at most 15 MB each."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LARGEST = 15_000_000


def save_pieces(folder: Path, name: str, tensors: dict[str, Tensor]) -> list[Path]:
    """Writes NAME-0.safetensors and so on, over those that are there. Floats become float16; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.glob(f"{name}-*.safetensors"):
        file.unlink()
    pieces: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        tensor = tensor.half() if tensor.is_floating_point() else tensor
        if size + tensor.nbytes > LARGEST and pieces[-1]:
            pieces.append({})
            size = 0
        pieces[-1][key] = tensor
        size += tensor.nbytes
    files = [folder / f"{name}-{number}.safetensors" for number in range(len(pieces))]
    for file, piece in zip(files, pieces, strict=True):
        save_file(piece, file)
    return files


def have_pieces(folder: Path, name: str) -> bool:
    return any(folder.glob(f"{name}-*.safetensors"))


def load_pieces(folder: Path, name: str) -> dict[str, Tensor]:
    """What `save_pieces` wrote; float16 tensors come back as float32."""
    files = sorted(folder.glob(f"{name}-*.safetensors"))
    if not files:
        raise FileNotFoundError(f"no {name}-*.safetensors in {folder}")
    tensors = {key: tensor for file in files for key, tensor in load_file(file).items()}
    return {key: t.float() if t.dtype == torch.float16 else t for key, t in tensors.items()}

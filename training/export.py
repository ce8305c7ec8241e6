"""Writes a checkpoint in OmniVoice's layout from what training left.

python -m training.export CODEC MODEL --out omnitts/checkpoints/mini
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from omnitts.model.weights import ROW_SCALE
from scripts.make_random_checkpoint import byte_tokenizer, preprocessor_config, tokenizer_config, write_json
from training import codec, model
from training.pieces import load_pieces

_WHOLE = ("codebook_layer_offsets", "quantizer.embed")  # tensors that are not rounded to 8 bits
_LEAST = 4096  # numbers in a tensor that is worth it


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint from what training left.")
    parser.add_argument("codec", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    export_model(args.model, args.out)
    export_codec(args.codec, args.out / "audio_tokenizer")
    print(f"{sum(file.stat().st_size for file in args.out.rglob('*') if file.is_file()) / 1e6:.1f} MB")


def export_model(folder: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", model.CONFIG)
    write_json(out / "tokenizer_config.json", tokenizer_config())
    byte_tokenizer().save(str(out / "tokenizer.json"))
    stored = load_pieces(folder, "model")
    tensors = {name.removeprefix("model."): t for name, t in stored.items() if name.startswith("model.")}
    offsets = torch.arange(model.CONFIG["num_audio_codebook"]) * model.CONFIG["audio_vocab_size"]
    save(out / "model.safetensors", tensors | {"codebook_layer_offsets": offsets})


def export_codec(folder: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", codec.SIZES)
    write_json(out / "preprocessor_config.json", preprocessor_config())
    stored = load_pieces(folder, "codec")
    tensors = {name.removeprefix("codec."): t for name, t in stored.items() if name.startswith(("codec.", "encoder."))}
    save(out / "model.safetensors", tensors)


def save(file: Path, tensors: dict[str, Tensor]) -> None:
    """Large matrices as int8 with a float32 scale for each row, all else that is not whole as float16."""
    kept = {}
    for name, tensor in tensors.items():
        if name in _WHOLE or tensor.ndim != 2 or tensor.numel() < _LEAST:
            kept[name] = tensor.half() if tensor.is_floating_point() else tensor
            continue
        scale = tensor.abs().amax(1, keepdim=True).clamp(min=1e-8) / 127
        kept[name] = (tensor / scale).round().to(torch.int8)
        kept[name + ROW_SCALE] = scale
    save_file({name: tensor.contiguous() for name, tensor in kept.items()}, file, metadata={"format": "pt"})


if __name__ == "__main__":
    main()

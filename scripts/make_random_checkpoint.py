"""Write a checkpoint folder of random weights, in the exact layout of a real one. It speaks noise.

    python scripts/make_random_checkpoint.py OUT [--shapes tiny|omnivoice] [--seed 0]

`tiny` makes `noise`, which comes with the package for tests (the default checkpoint is `mini`); `omnivoice` has the
sizes of the published model (3.3 GB), for measuring speed. The same seed gives the same files, byte for byte.
"""

import argparse
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from omnitts.bench.random_weights import scale
from omnitts.model.backbone import OmniVoice
from omnitts.model.checkpoint import SPECIAL_TOKENS, read_model_config
from omnitts.model.codec import MODEL_TYPE, Codec, Encoder, read_codec_config

END_OF_TEXT = "<|endoftext|>"
CODEBOOKS = 8
CODES = 1024
RATIOS = [8, 5, 4, 2, 3]  # 960 samples a frame


@dataclass(frozen=True)
class Shapes:
    dtype: str
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    codebook_dim: int
    dac_encoder: int
    dac_decoder: int
    dac_hidden: int
    hubert_conv: int
    hubert_hidden: int
    hubert_layers: int
    hubert_heads: int
    hubert_intermediate: int
    hubert_positions: int
    hubert_groups: int


SHAPES = {
    "tiny": Shapes(
        dtype="float16",
        vocab=272,
        hidden=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate=128,
        codebook_dim=8,
        dac_encoder=2,
        dac_decoder=64,
        dac_hidden=24,
        hubert_conv=16,
        hubert_hidden=24,
        hubert_layers=2,
        hubert_heads=2,
        hubert_intermediate=48,
        hubert_positions=16,
        hubert_groups=4,
    ),
    "omnivoice": Shapes(
        dtype="float32",
        vocab=151676,
        hidden=1024,
        layers=28,
        heads=16,
        kv_heads=8,
        head_dim=128,
        intermediate=3072,
        codebook_dim=64,
        dac_encoder=64,
        dac_decoder=1024,
        dac_hidden=256,
        hubert_conv=512,
        hubert_hidden=768,
        hubert_layers=12,
        hubert_heads=12,
        hubert_intermediate=3072,
        hubert_positions=128,
        hubert_groups=16,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a checkpoint folder of random weights.")
    parser.add_argument("out", type=Path, help="folder to write, made if need be")
    parser.add_argument("--shapes", choices=SHAPES, default="tiny")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    write_checkpoint(args.out, SHAPES[args.shapes], args.seed)


def write_checkpoint(out: Path, shapes: Shapes, seed: int) -> None:
    codec = out / "audio_tokenizer"
    codec.mkdir(parents=True, exist_ok=True)
    write_json(out / "config.json", model_config(shapes))
    write_json(codec / "config.json", codec_config(shapes))
    write_json(codec / "preprocessor_config.json", preprocessor_config())
    write_json(out / "tokenizer_config.json", tokenizer_config())
    byte_tokenizer().save(str(out / "tokenizer.json"))
    write_safetensors(out / "model.safetensors", dict(model_tensors(out)), shapes.dtype, seed)
    write_safetensors(codec / "model.safetensors", dict(codec_tensors(codec)), shapes.dtype, seed)


# ---- Configuration ----


def model_config(shapes: Shapes) -> dict:
    return {
        "architectures": ["OmniVoice"],
        "audio_codebook_weights": [8, 8, 6, 6, 4, 4, 2, 2],
        "audio_mask_id": CODES,
        "audio_vocab_size": CODES + 1,
        "dtype": shapes.dtype,
        "llm_config": {
            "attention_bias": False,
            "head_dim": shapes.head_dim,
            "hidden_act": "silu",
            "hidden_size": shapes.hidden,
            "intermediate_size": shapes.intermediate,
            "max_position_embeddings": 40960,
            "model_type": "qwen3",
            "num_attention_heads": shapes.heads,
            "num_hidden_layers": shapes.layers,
            "num_key_value_heads": shapes.kv_heads,
            "rms_norm_eps": 1e-6,
            "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "vocab_size": shapes.vocab,
        },
        "model_type": "omnivoice",
        "num_audio_codebook": CODEBOOKS,
    }


def codec_config(shapes: Shapes) -> dict:
    return {
        "acoustic_model_config": {
            "codebook_dim": 8,
            "codebook_size": CODES,
            "decoder_hidden_size": shapes.dac_decoder,
            "downsampling_ratios": RATIOS,
            "encoder_hidden_size": shapes.dac_encoder,
            "hidden_size": shapes.dac_hidden,
            "hop_length": math.prod(RATIOS),
            "model_type": "dac",
            "n_codebooks": 9,
            "sampling_rate": 16000,
            "upsampling_ratios": RATIOS,
        },
        "architectures": ["HiggsAudioV2TokenizerModel"],
        "block_dilations": [1, 1],
        "channel_ratios": [1, 1],
        "codebook_dim": shapes.codebook_dim,
        "codebook_size": CODES,
        "downsample_factor": 320,
        "dtype": shapes.dtype,
        "kernel_size": 3,
        "model_type": MODEL_TYPE,
        "sample_rate": 24000,
        "semantic_model_config": {
            "conv_bias": False,
            "conv_dim": [shapes.hubert_conv] * 7,
            "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
            "conv_stride": [5, 2, 2, 2, 2, 2, 2],
            "do_stable_layer_norm": False,
            "feat_extract_activation": "gelu",
            "feat_extract_norm": "group",
            "feat_proj_layer_norm": True,
            "hidden_act": "gelu",
            "hidden_size": shapes.hubert_hidden,
            "intermediate_size": shapes.hubert_intermediate,
            "layer_norm_eps": 1e-5,
            "model_type": "hubert",
            "num_attention_heads": shapes.hubert_heads,
            "num_conv_pos_embedding_groups": shapes.hubert_groups,
            "num_conv_pos_embeddings": shapes.hubert_positions,
            "num_feat_extract_layers": 7,
            "num_hidden_layers": shapes.hubert_layers,
        },
        "semantic_sample_rate": 16000,
        "strides": [1, 1],
        "target_bandwidths": [0.5, 1, 1.5, 2],
        "unit_kernel_size": 3,
    }


def preprocessor_config() -> dict:
    return {
        "feature_extractor_type": "DacFeatureExtractor",
        "feature_size": 1,
        "hop_length": math.prod(RATIOS),
        "padding_side": "right",
        "padding_value": 0.0,
        "return_attention_mask": True,
        "sampling_rate": 24000,
    }


def tokenizer_config() -> dict:
    """Of a model that has not been trained with tags such as [laughter]."""
    return {
        "eos_token": END_OF_TEXT,
        "inline_tags": False,
        "pad_token": END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges: ids 0..255 are the bytes' symbols, the control tokens follow."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in (END_OF_TEXT, *SPECIAL_TOKENS)]
    )
    return tokenizer


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


# ---- Tensors ----


def model_tensors(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a checkpoint's tensors, from its config.json."""
    with torch.device("meta"):
        model = OmniVoice(read_model_config(folder / "config.json"))
    yield "codebook_layer_offsets", (CODEBOOKS,)
    yield from shapes_of(model)


def codec_tensors(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a codec's tensors, from its config.json, including those that only training needs."""
    config = read_codec_config(folder / "config.json")
    with torch.device("meta"):
        modules = Codec(config, ()), Encoder(config)
    semantic = config.semantic["hidden_size"]
    for name, shape in (item for module in modules for item in shapes_of(module)):
        if name == "semantic_model.encoder.pos_conv_embed.conv.weight":
            # The one convolution that HuBERT keeps weight-normed, over all but its last axis.
            stem = name.replace("conv.weight", "conv.parametrizations.weight")
            yield f"{stem}.original0", (1, 1, shape[2])
            yield f"{stem}.original1", shape
            continue
        yield name, shape
        if name.endswith("codebook.embed"):
            yield f"{name}_avg", shape
            yield name.replace("embed", "cluster_size"), shape[:1]
            yield name.replace("embed", "inited"), (1,)
        elif name == "encoder_semantic.conv.weight":
            yield "decoder_semantic.conv1.weight", shape
            yield "decoder_semantic.conv2.weight", shape
        elif name.startswith("encoder_semantic."):  # all strides are 1: the semantic decoder mirrors the encoder
            yield name.replace("encoder", "decoder", 1), shape
    yield "fc1.weight", (semantic, config.width)
    yield "fc1.bias", (semantic,)
    yield "semantic_model.masked_spec_embed", (semantic,)


def shapes_of(module: torch.nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, tensor in module.state_dict().items():
        yield name, tuple(tensor.shape)


def draw(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """A random tensor, scaled so that signals keep their size from layer to layer."""
    if name == "codebook_layer_offsets":
        return np.arange(CODEBOOKS, dtype=np.int64) * (CODES + 1)
    if name.endswith(("norm.weight", ".alpha", ".original0", ".inited", ".cluster_size")):
        return np.ones(shape, np.float32)
    if name.endswith(".bias"):
        return np.zeros(shape, np.float32)
    # From the name, not from the tensors before: a tensor stays the same when others come or go. The running mean of
    # a codebook is the codebook.
    key = zlib.crc32(name.removesuffix("_avg").encode())
    values = np.random.Generator(np.random.PCG64([seed, key])).standard_normal(shape, np.float32)
    values *= scale(name, shape)
    return values


def write_safetensors(path: Path, tensors: dict[str, tuple[int, ...]], dtype: str, seed: int) -> None:
    """Write random tensors one by one, so that memory holds only the largest."""
    codes = {"float16": ("F16", 2), "float32": ("F32", 4)}
    header: dict = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        code, size = ("I64", 8) if name == "codebook_layer_offsets" else codes[dtype]
        start, end = end, end + math.prod(shape) * size
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, shape in tensors.items():
            tensor = draw(name, shape, seed)
            kept = tensor if tensor.dtype == np.int64 else tensor.astype(dtype, copy=False)
            file.write(kept.data)


if __name__ == "__main__":
    main()

"""All of a checkpoint in random weights, made on the device: what it says is noise, and it takes as long to say it."""

import math
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from torch import nn

from omnitts.bench.corpus import WORDS
from omnitts.engine import FLOAT8, accelerated, weights_dtype
from omnitts.model.checkpoint import BUNDLED, SPECIAL_TOKENS, Checkpoint, ModelConfig
from omnitts.model.codec import Codec, CodecConfig, Encoder, read_codec_config
from omnitts.tts import TTS

OUTPUT_GAIN = 0.012  # for an RMS about 0.1
_ONES = ("norm.weight", ".alpha")


def omnivoice(device: torch.device, dtype: torch.dtype) -> TTS:
    """The published sizes. dtype: as `tts.resolve_dtype` gives it."""
    from omnitts.bench.step import OMNIVOICE  # needs Triton

    return random_tts(OMNIVOICE, omnivoice_codec_config(), device, dtype)


def random_tts(config: ModelConfig, codec_config: CodecConfig, device: torch.device, dtype: torch.dtype) -> TTS:
    """Backbone, codec with its encoder, and `word_tokenizer`, of these sizes."""
    from omnitts.bench.step import random_model  # needs Triton

    nowhere = Path("random weights")
    checkpoint = Checkpoint(nowhere, config, nowhere, (), (), nowhere, digest="random", codec_digest="random")
    model = accelerated(random_model(config, weights_dtype(dtype), device), float8=dtype == FLOAT8)
    return TTS(checkpoint, word_tokenizer(), model, random_codec(codec_config, device), device, dtype)


def omnivoice_codec_config() -> CodecConfig:
    """The sizes of the published codec; all else is as in the bundled `noise`, which is laid out like it."""
    small = read_codec_config(BUNDLED / "noise" / "audio_tokenizer" / "config.json")
    semantic = {
        "conv_dim": [512] * 7,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_attention_heads": 12,
        "num_conv_pos_embedding_groups": 16,
        "num_conv_pos_embeddings": 128,
        "num_hidden_layers": 12,
    }
    acoustic = {"decoder_hidden_size": 1024, "encoder_hidden_size": 64, "hidden_size": 256}
    return replace(small, codebook_dim=64, acoustic=small.acoustic | acoustic, semantic=small.semantic | semantic)


def random_codec(config: CodecConfig, device: torch.device) -> Codec:
    with torch.device("meta"):
        codec, encoder = Codec(config, ()), Encoder(config)
    codec, encoder = _filled(codec, device), _filled(encoder, device)
    vars(codec)["encoder"] = encoder  # where the property that loads it looks first
    return codec


def word_tokenizer() -> Tokenizer:
    """A token a word of WORDS: the published one knows such words, too."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(("?", *WORDS))}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    return tokenizer


@torch.no_grad()
def _filled(module: nn.Module, device: torch.device) -> nn.Module:
    module.to_empty(device=device).eval().requires_grad_(False)
    generator = torch.Generator(device).manual_seed(0)
    for name, tensor in module.state_dict().items():
        if name.endswith(_ONES):
            tensor.fill_(1.0)
        elif name.endswith(".bias"):
            tensor.zero_()
        else:
            tensor.normal_(std=scale(name, tuple(tensor.shape)), generator=generator)
    return module


def scale(name: str, shape: tuple[int, ...]) -> float:
    """The deviation of a tensor of a checkpoint with which signals keep their size from layer to layer."""
    if name.endswith((".embed", ".embed_avg")):
        return 1.0
    if name.endswith(("embed_tokens.weight", "audio_embeddings.weight", "masked_spec_embed")):
        return 0.02
    if name == "audio_heads.weight":
        return 3.0 / math.sqrt(shape[1])  # logits far enough apart that the choice is not a tie
    if name == "acoustic_decoder.conv2.weight":
        return OUTPUT_GAIN / math.sqrt(math.prod(shape[1:]))
    if "conv_t1" in name:  # [in, out, 2 * stride]: two taps of each input channel reach a sample
        return 1 / math.sqrt(2 * shape[0])
    if ".conv2." in name and "res_unit" in name:
        return 0.3 / math.sqrt(math.prod(shape[1:]))  # a small step beside the residual
    return 1 / math.sqrt(math.prod(shape[1:]))

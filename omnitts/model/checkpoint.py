"""A checkpoint folder: where it is, what it must hold, its configuration, its identity.

    config.json, model.safetensors (or an index and its parts), tokenizer.json
    audio_tokenizer/config.json, audio_tokenizer/model.safetensors
    tokenizer_config.json, which need not be there, says whether the model was trained with tags

Nothing here needs torch until `load_model`.
"""

import hashlib
import json
import os
import re
import reprlib
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from omnitts.errors import InputError

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

    from omnitts.model.backbone import OmniVoice

BUNDLED = Path(__file__).parents[1] / "checkpoints"
DEFAULT_MODEL = "mini"
CODEC_REPO = "eustlb/higgs-audio-v2-tokenizer"
"""Hub repository of the codec, for a checkpoint that comes without its audio_tokenizer folder."""

SPECIAL_TOKENS = (
    *("<|denoise|>", "<|lang_start|>", "<|lang_end|>", "<|instruct_start|>", "<|instruct_end|>"),
    *("<|text_start|>", "<|text_end|>"),
)

_WEIGHTS = "model.safetensors"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_INDEX = "model.safetensors.index.json"
_CODEC_FILES = ("config.json", "model*.safetensors*")
_MODEL_FILES = (
    "tokenizer.json",
    _TOKENIZER_CONFIG,
    *_CODEC_FILES,
    *(f"audio_tokenizer/{name}" for name in _CODEC_FILES),
)
_LARGEST = 1 << 30  # no number in a config comes near: what is larger would only exhaust the memory
MOST_LAYERS = 1000
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)

# The digest reads this many blocks of each weight file, evenly spaced: a matrix of a large model is bigger than the
# gap between two blocks, so that a changed matrix changes the digest.
_DIGEST_BLOCKS = 1024
_DIGEST_BLOCK_BYTES = 256


@dataclass(frozen=True)
class ModelConfig:
    """The sizes of the backbone, named as in config.json."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rope_theta: float
    rms_norm_eps: float
    audio_vocab_size: int
    audio_mask_id: int
    num_audio_codebook: int


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are all there. `digest` and `codec_digest` tell two sets of weights apart."""

    path: Path
    config: ModelConfig
    codec_path: Path
    weight_files: tuple[Path, ...]
    codec_weight_files: tuple[Path, ...]
    tokenizer_path: Path
    digest: str
    codec_digest: str
    knows_tags: bool = True  # or reads [laughter] and the others as words


def bundled_models() -> list[str]:
    """Names of the checkpoints that come with the package."""
    return sorted(path.parent.name for path in BUNDLED.glob("*/config.json"))


def resolve_model(name: str | os.PathLike | None) -> Path:
    """The folder of a model: a folder's path, a bundled name, or a hub id `owner/name`; None is the bundled default.

    A hub model is downloaded to the hub's cache on first use; once there it needs no network. Raises InputError
    when there is no such model, or it cannot be had.
    """
    if name is None:
        return BUNDLED / DEFAULT_MODEL
    if not isinstance(name, str | os.PathLike):
        raise InputError(f"{reprlib.repr(name)} is neither a folder nor a name", field="model")
    name = os.fspath(name)
    # os.path's tests are false, not errors, for names that the system refuses, such as too long ones.
    folder = os.path.expanduser(name)
    if os.path.isdir(folder):
        return Path(folder)
    if os.path.exists(folder):
        raise InputError("a model is a folder, and this is a file: name the folder it lies in", file=name)
    if name in bundled_models():
        return BUNDLED / name
    if _HUB_ID.fullmatch(name):
        return _download(name, _MODEL_FILES)
    choices = ", ".join(bundled_models())
    raise InputError(
        f"no such folder: a model is a folder, a bundled name ({choices}) or a hub id owner/name", file=name
    )


def open_checkpoint(folder: Path) -> Checkpoint:
    """Find and check the files of a checkpoint, without reading its tensors.

    A folder without audio_tokenizer/ takes the codec from the hub. Raises InputError naming what is missing or odd.
    """
    if not folder.is_dir():
        raise InputError("no such folder", file=folder)
    weight_files = _find_files(folder, "config.json", "tokenizer.json")
    config = read_model_config(folder / "config.json")
    codec = folder / "audio_tokenizer"
    if not codec.exists():
        codec = _download(CODEC_REPO, _CODEC_FILES, wanted_by=codec)
    codec_weight_files = _find_files(codec, "config.json")
    return Checkpoint(
        path=folder,
        config=config,
        codec_path=codec,
        weight_files=weight_files,
        codec_weight_files=codec_weight_files,
        tokenizer_path=folder / "tokenizer.json",
        digest=_digest(folder / "config.json", weight_files),
        codec_digest=_digest(codec / "config.json", codec_weight_files),
        knows_tags=_knows_tags(folder / _TOKENIZER_CONFIG),
    )


def load_model(checkpoint: Checkpoint, device: "str | torch.device", dtype: "torch.dtype") -> "OmniVoice":
    """The backbone with its weights, in evaluation mode. Raises InputError when the weights do not fit config.json."""
    import torch

    from omnitts.model.backbone import OmniVoice
    from omnitts.model.weights import load_weights, open_safetensors

    config = checkpoint.config
    try:
        with torch.device("meta"):
            model = OmniVoice(config)
    except (RuntimeError, TypeError):  # TypeError: beyond 64 bits
        message = "no tensor can be as large as the sizes in it ask for"
        raise InputError(message, file=checkpoint.path / "config.json") from None
    load_weights(model, checkpoint.weight_files, device=device, dtype=dtype, ignored=["codebook_layer_offsets"])
    # The offsets of the codebooks in the two audio tables are stored, but follow from the sizes.
    expected = [codebook * config.audio_vocab_size for codebook in range(config.num_audio_codebook)]
    for file in checkpoint.weight_files:
        with open_safetensors(file) as tensors:
            if "codebook_layer_offsets" in tensors.keys():  # noqa: SIM118 (not a dict)
                offsets = tensors.get_tensor("codebook_layer_offsets").tolist()
                if offsets != expected:
                    message = f"codebook_layer_offsets is not 0, {config.audio_vocab_size} and so on: {offsets}"
                    raise InputError(shorten(message, 200), file=file)
    return model


def load_tokenizer(checkpoint: Checkpoint) -> "Tokenizer":
    """The text tokenizer. Raises InputError unless it knows the control tokens and keeps to the model's vocabulary."""
    from tokenizers import Tokenizer

    path, vocab_size = checkpoint.tokenizer_path, checkpoint.config.vocab_size
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises no narrower class
        raise InputError(f"not a tokenizer file: {error}", file=path) from None
    for token in SPECIAL_TOKENS:
        if tokenizer.encode(token, add_special_tokens=False).ids != [tokenizer.token_to_id(token)]:
            raise InputError(f"{token} is not one token of its own: is this OmniVoice's tokenizer?", file=path)
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if largest >= vocab_size:
        raise InputError(f"token {token!r} has id {largest}, but the model has {vocab_size} text ids", file=path)
    return tokenizer


def read_model_config(path: Path) -> ModelConfig:
    """Read config.json. Raises InputError on a missing or odd key, or a kind of model that the backbone is not."""
    content = read_json(path)
    _expect(content, "model_type", "omnivoice", path)
    llm = require(content, "llm_config", dict, path)
    rope = require(llm, "rope_parameters", dict, path, "llm_config.") if llm.get("rope_parameters") else {}
    for key, value in (("model_type", "qwen3"), ("hidden_act", "silu")):
        _expect(llm, key, value, path, "llm_config.")
    for key in ("attention_bias", "use_sliding_window", "rope_scaling"):
        if llm.get(key):
            raise InputError(f"{reprlib.repr(llm[key])} is not supported", file=path, field=f"llm_config.{key}")
    if rope.get("rope_type", "default") != "default":
        raise InputError(
            f"{reprlib.repr(rope['rope_type'])} is not supported, only 'default' is",
            file=path,
            field="llm_config.rope_parameters.rope_type",
        )
    widths = ("vocab_size", "hidden_size", "intermediate_size", "head_dim")
    heads = ("num_attention_heads", "num_key_value_heads")
    sizes = {key: require(llm, key, int, path, "llm_config.") for key in (*widths, *heads)}
    # Older files keep rope_theta beside the sizes.
    theta, prefix = (rope, "llm_config.rope_parameters.") if rope else (llm, "llm_config.")
    config = ModelConfig(
        **sizes,
        num_hidden_layers=require(llm, "num_hidden_layers", int, path, "llm_config.", most=MOST_LAYERS),
        rope_theta=require(theta, "rope_theta", float, path, prefix),
        rms_norm_eps=require(llm, "rms_norm_eps", float, path, "llm_config."),
        audio_vocab_size=require(content, "audio_vocab_size", int, path, most=1 << 15),  # codes are kept in int16
        audio_mask_id=require(content, "audio_mask_id", int, path),
        num_audio_codebook=require(content, "num_audio_codebook", int, path),
    )
    _check_sizes(config, path)
    return config


def _check_sizes(config: ModelConfig, path: Path) -> None:
    if config.num_attention_heads % config.num_key_value_heads:
        raise InputError(
            f"{config.num_key_value_heads} does not divide num_attention_heads, {config.num_attention_heads}",
            file=path,
            field="llm_config.num_key_value_heads",
        )
    if config.head_dim % 2:
        message = f"{config.head_dim} is odd, but rotary embedding works on pairs"
        raise InputError(message, file=path, field="llm_config.head_dim")
    if config.audio_mask_id != config.audio_vocab_size - 1:
        raise InputError(
            f"{config.audio_mask_id} is not the last of audio_vocab_size, {config.audio_vocab_size}: the ids below the "
            "mask are the codec's codes",
            file=path,
            field="audio_mask_id",
        )


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises InputError when there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read as JSON: {error}", file=path) from None
    if not isinstance(content, dict):
        raise InputError("holds no JSON object", file=path)
    return content


def require(
    section: dict[str, Any],
    key: str,
    kind: type,
    file: Path,
    prefix: str = "",
    *,
    default: Any = None,
    most: int = _LARGEST,
) -> Any:
    """section[key], of `kind` and not empty; it must be there if there is no default.

    Numbers must be positive and at most `most`, and an int will do for a float. Raises InputError, which names the
    key behind `prefix`.
    """
    name = f"{prefix}{key}"
    if key not in section:
        if default is not None:
            return default
        raise InputError("this key is missing", file=file, field=name)
    value = section[key]
    fits = type(value) is kind or (kind is float and type(value) is int)
    if not fits or not (0 < value <= most if kind in (int, float) else value):
        expected = {
            int: f"a positive whole number of at most {most}",
            float: f"a positive number of at most {most}",
            dict: "an object with something in it",
            list: "a list with something in it",
        }
        raise InputError(f"{reprlib.repr(value)} is not {expected[kind]}", file=file, field=name)
    return float(value) if kind is float else value


def require_numbers(
    section: dict[str, Any], key: str, kind: type, file: Path, prefix: str = "", *, default: tuple | None = None
) -> tuple:
    """The list section[key] as a tuple of positive numbers of `kind`. Raises InputError as `require` does."""
    values = require(section, key, list, file, prefix, default=default)
    named = {f"{key}[{index}]": value for index, value in enumerate(values)}
    return tuple(require(named, name, kind, file, prefix) for name in named)


def _knows_tags(path: Path) -> bool:
    """False where tokenizer_config.json says `"inline_tags": false`; it may be missing, and is not in the digest."""
    try:
        return read_json(path).get("inline_tags") is not False
    except InputError:
        return True


def _expect(section: dict[str, Any], key: str, value: str, file: Path, prefix: str = "") -> None:
    if key not in section:
        raise InputError("this key is missing", file=file, field=f"{prefix}{key}")
    if section[key] != value:
        message = f"{reprlib.repr(section[key])} is not supported, only {value!r} is"
        raise InputError(message, file=file, field=f"{prefix}{key}")


def _find_files(folder: Path, *names: str) -> tuple[Path, ...]:
    """Check that `names` and the weights are in `folder`, and return the weight files."""
    missing = [name for name in names if not (folder / name).is_file()]
    single, index = folder / _WEIGHTS, folder / _INDEX
    if single.is_file():
        weights = (single,)
    elif index.is_file():
        parts = require(read_json(index), "weight_map", dict, index).values()
        weights = tuple(folder / part for part in sorted({str(part) for part in parts}))
        missing += [file.name for file in weights if not file.is_file()]
        if not weights:
            raise InputError("names no weight files", file=index, field="weight_map")
    else:
        weights = ()
        missing.append(_WEIGHTS)
    if missing:
        raise InputError(f"not a whole checkpoint: without {', '.join(missing)}", file=folder)
    return weights


def _digest(config: Path, weights: tuple[Path, ...]) -> str:
    """16 hex digits over config.json and, of each weight file, the size, the header and sampled blocks."""
    digest = hashlib.sha256(config.read_bytes())
    for file in weights:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb", buffering=0) as stream:
            header = stream.read(8)
            digest.update(header + stream.read(min(size, int.from_bytes(header, "little"))))
            for start in range(stream.tell(), size, max(_DIGEST_BLOCK_BYTES, size // _DIGEST_BLOCKS)):
                stream.seek(start)
                digest.update(stream.read(_DIGEST_BLOCK_BYTES))
    return digest.hexdigest()[:16]


def _download(repo: str, patterns: tuple[str, ...], wanted_by: Path | None = None) -> Path:
    """The cached folder of a hub repository; `wanted_by` is the folder that it stands in for, for the message."""
    from huggingface_hub import constants, errors, snapshot_download

    try:
        return Path(snapshot_download(repo, allow_patterns=list(patterns)))
    except errors.GatedRepoError:
        problem = "its owner asks for consent: accept the terms on its hub page, then run `hf auth login`"
    except errors.RepositoryNotFoundError:
        problem = "no such hub repository; check the spelling, or run `hf auth login` if it is private"
    except errors.HFValidationError as error:
        problem = f"no hub id: {error}"
    except errors.LocalEntryNotFoundError:
        reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        problem = f"not wholly in the hub's cache, and {reason}; run `hf download {repo}` where there is a network"
    except Exception as error:  # the transport's own errors differ between versions of the library
        problem = f"download failed: {type(error).__name__}: {error}"
    if wanted_by is not None:
        raise InputError(f"no such folder; its stand-in, hub repository {repo}: {problem}", file=wanted_by)
    raise InputError(f"no such folder; as a hub id: {problem}", file=repo)

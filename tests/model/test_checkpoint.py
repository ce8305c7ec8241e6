import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from omnitts.errors import InputError, shown_path
from omnitts.model import checkpoint as module
from omnitts.model.backbone import OmniVoice
from omnitts.model.checkpoint import (
    bundled_models,
    load_model,
    load_tokenizer,
    open_checkpoint,
    read_model_config,
    resolve_model,
)

REAL = json.loads((Path(__file__).parents[1] / "fixtures" / "real_shapes.json").read_text())


@pytest.fixture
def folder(checkpoint_dir, tmp_path) -> Path:
    """A copy of the small checkpoint, to be spoiled."""
    return Path(shutil.copytree(checkpoint_dir, tmp_path / "model"))


def edit_json(path: Path, edit) -> None:
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def edit_tensors(path: Path, edit) -> None:
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


# ---- Configuration ----


def test_real_config_and_tensors(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(REAL["config"]))
    config = read_model_config(tmp_path / "config.json")
    assert (config.vocab_size, config.num_hidden_layers, config.rope_theta) == (151676, 28, 1e6)
    with torch.device("meta"):
        model = OmniVoice(config)
    ours = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    assert ours | {"codebook_layer_offsets": [8]} == REAL["tensors"]


def test_older_place_of_rope_theta(folder):
    def move(config):
        del config["llm_config"]["rope_parameters"]
        config["llm_config"]["rope_theta"] = 10000

    edit_json(folder / "config.json", move)
    assert read_model_config(folder / "config.json").rope_theta == 10000.0


@pytest.mark.parametrize("key", ["vocab_size", "head_dim", "rms_norm_eps", "hidden_act", "num_key_value_heads"])
def test_missing_llm_key(folder, key):
    edit_json(folder / "config.json", lambda config: config["llm_config"].pop(key))
    with pytest.raises(InputError, match=rf"config\.json: llm_config\.{key}: this key is missing"):
        read_model_config(folder / "config.json")


@pytest.mark.parametrize("key", ["model_type", "llm_config", "audio_vocab_size", "num_audio_codebook"])
def test_missing_key(folder, key):
    edit_json(folder / "config.json", lambda config: config.pop(key))
    with pytest.raises(InputError, match=rf"config\.json: {key}: this key is missing"):
        read_model_config(folder / "config.json")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "llm_config.attention_bias: True is not supported"),
        ({"hidden_act": "gelu"}, "llm_config.hidden_act: 'gelu' is not supported, only 'silu' is"),
        ({"model_type": "llama"}, "llm_config.model_type: 'llama' is not supported, only 'qwen3' is"),
        ({"use_sliding_window": True}, "llm_config.use_sliding_window: True is not supported"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_type: 'yarn' is not supported"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters.rope_theta: this key is missing"),
        ({"rope_parameters": ["default"]}, "rope_parameters: ['default'] is not an object"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_parameters.rope_theta: nan is not a positive number"),
        ({"rope_parameters": {"rope_theta": 10**400}}, "is not a positive number"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: 1000000000 is not a positive whole number of at most 1000"),
        ({"hidden_size": 10**30}, "is not a positive whole number of at most 1073741824"),
        ({"hidden_size": [[1] * 1000] * 1000}, "is not a positive whole number"),
        ({"head_dim": 15}, "head_dim: 15 is odd"),
        ({"head_dim": 16.5}, "llm_config.head_dim: 16.5 is not a positive whole number"),
        ({"head_dim": 0}, "llm_config.head_dim: 0 is not a positive whole number"),
        ({"num_key_value_heads": 3}, "3 does not divide num_attention_heads, 4"),
    ],
)
def test_odd_llm_values(folder, changes, message):
    edit_json(folder / "config.json", lambda config: config["llm_config"].update(changes))
    with pytest.raises(InputError) as caught:
        read_model_config(folder / "config.json")
    assert message in str(caught.value)


def test_the_mask_is_the_last_id(folder):
    edit_json(folder / "config.json", lambda config: config.update(audio_mask_id=1000))
    with pytest.raises(InputError, match="audio_mask_id: 1000 is not the last of audio_vocab_size, 1025"):
        read_model_config(folder / "config.json")


def test_sizes_that_no_tensor_can_have(folder):
    sizes = dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim"), 1 << 30)
    edit_json(folder / "config.json", lambda config: config["llm_config"].update(sizes))
    with pytest.raises(InputError, match=r"config\.json: no tensor can be as large"):
        load_model(open_checkpoint(folder), "cpu", torch.float32)


def test_other_model_type(folder):
    edit_json(folder / "config.json", lambda config: config.update(model_type="whisper"))
    with pytest.raises(InputError, match=r"model_type: 'whisper' is not supported, only 'omnivoice' is"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["{", "[]", "", "[" * 100_000])
def test_config_that_is_no_json_object(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(InputError, match=r"config\.json: (cannot be read as JSON|holds no JSON object)"):
        open_checkpoint(folder)


# ---- Files ----


def test_open_finds_everything(checkpoint_dir):
    opened = open_checkpoint(checkpoint_dir)
    assert opened.weight_files == (checkpoint_dir / "model.safetensors",)
    assert opened.codec_path == checkpoint_dir / "audio_tokenizer"
    assert opened.codec_weight_files == (checkpoint_dir / "audio_tokenizer" / "model.safetensors",)
    assert opened.tokenizer_path == checkpoint_dir / "tokenizer.json"


def test_not_a_checkpoint(tmp_path):
    with pytest.raises(InputError, match=r"without config\.json, tokenizer\.json, model\.safetensors"):
        open_checkpoint(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        open_checkpoint(tmp_path / "absent")


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "audio_tokenizer/config.json"])
def test_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(InputError) as caught:
        open_checkpoint(folder)
    assert str(caught.value) == f"{(folder / name).parent}: not a whole checkpoint: without {Path(name).name}"


def split_weights(folder: Path) -> list[Path]:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for shard, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / shard)
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return [folder / shard for shard in shards]


def test_sharded_weights(folder, checkpoint_dir):
    whole = load_model(open_checkpoint(checkpoint_dir), "cpu", torch.float32).state_dict()
    shards = split_weights(folder)
    opened = open_checkpoint(folder)
    assert opened.weight_files == tuple(shards)
    parts = load_model(opened, "cpu", torch.float32).state_dict()
    assert all(torch.equal(parts[name], tensor) for name, tensor in whole.items())

    shards[1].unlink()
    with pytest.raises(InputError, match=r"without model-00002-of-00002\.safetensors"):
        open_checkpoint(folder)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": []}', "nonsense"])
def test_bad_index(folder, index):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InputError, match=r"index\.json"):
        open_checkpoint(folder)


# ---- Identity ----


def test_digest_tells_weights_apart_and_nothing_else(folder, checkpoint_dir):
    original, copy = open_checkpoint(checkpoint_dir), open_checkpoint(folder)
    assert (copy.digest, copy.codec_digest) == (original.digest, original.codec_digest)
    assert len(copy.digest) == 16

    edit_tensors(folder / "model.safetensors", lambda t: t["llm.layers.1.mlp.up_proj.weight"].mul_(1.01))
    changed = open_checkpoint(folder)
    assert changed.digest != original.digest
    assert changed.codec_digest == original.codec_digest

    edit_json(folder / "audio_tokenizer" / "config.json", lambda config: config.update(note="other"))
    assert open_checkpoint(folder).codec_digest != original.codec_digest


def test_digest_reads_little_of_a_large_file(tmp_path):
    """A sparse file of 50 GB: reading it whole would take minutes."""
    (tmp_path / "config.json").write_text("{}")
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(50_000_000_000)
    assert len(module._digest(tmp_path / "config.json", (tmp_path / "model.safetensors",))) == 16


# ---- Loading ----


def test_load_model_rejects_other_shapes(folder):
    edit_json(folder / "config.json", lambda config: config["llm_config"].update(num_hidden_layers=3))
    with pytest.raises(InputError, match=r"model\.safetensors: .*missing: llm\.layers\.2\..* and 7 more"):
        load_model(open_checkpoint(folder), "cpu", torch.float32)


def test_offsets_may_be_absent_but_not_other(folder):
    edit_tensors(folder / "model.safetensors", lambda tensors: tensors["codebook_layer_offsets"].add_(1))
    with pytest.raises(InputError, match=r"codebook_layer_offsets is not 0, 1025 and so on: \[1, 1026, "):
        load_model(open_checkpoint(folder), "cpu", torch.float32)
    edit_tensors(folder / "model.safetensors", lambda tensors: tensors.pop("codebook_layer_offsets"))
    load_model(open_checkpoint(folder), "cpu", torch.float32)


def test_tokenizer(checkpoint_dir):
    tokenizer = load_tokenizer(open_checkpoint(checkpoint_dir))
    assert tokenizer.encode("<|text_start|>").ids == [426]


def test_tokenizer_without_a_control_token(folder):
    def drop(content):
        content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] != "<|lang_end|>"]

    edit_json(folder / "tokenizer.json", drop)
    with pytest.raises(InputError, match=r"tokenizer\.json: <\|lang_end\|> is not one token"):
        load_tokenizer(open_checkpoint(folder))


def test_tokenizer_larger_than_the_model(folder):
    edit_json(folder / "config.json", lambda config: config["llm_config"].update(vocab_size=427))
    with pytest.raises(InputError, match=r"token '<\|text_end\|>' has id 427, but the model has 427 text ids"):
        load_tokenizer(open_checkpoint(folder))


def test_tokenizer_of_another_kind(folder):
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json: not a tokenizer file"):
        load_tokenizer(open_checkpoint(folder))


# ---- Tags ----


def test_a_checkpoint_may_say_that_it_was_trained_without_tags(folder):
    opened = open_checkpoint(folder)
    assert opened.knows_tags
    edit_json(folder / "tokenizer_config.json", lambda content: content.update(inline_tags=False))
    said = open_checkpoint(folder)
    assert not said.knows_tags
    assert (said.digest, said.codec_digest) == (opened.digest, opened.codec_digest)
    edit_json(folder / "tokenizer_config.json", lambda content: content.update(inline_tags=True))
    assert open_checkpoint(folder).knows_tags
    for content in ("[]", "{", ""):
        (folder / "tokenizer_config.json").write_text(content)
        assert open_checkpoint(folder).knows_tags
    (folder / "tokenizer_config.json").unlink()
    assert open_checkpoint(folder).knows_tags


def test_bundled_models_were_trained_without_tags():
    assert not any(open_checkpoint(resolve_model(name)).knows_tags for name in bundled_models())


# ---- Names ----


def test_bundled_model_is_the_default():
    assert bundled_models() == ["mini", "noise"]
    assert resolve_model(None) == resolve_model("mini")
    opened = open_checkpoint(resolve_model(None))
    load_model(opened, "cpu", torch.float32)
    load_tokenizer(opened)


def test_folder_goes_before_a_bundled_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "noise").mkdir()
    assert resolve_model("noise") == Path("noise")


@pytest.mark.parametrize(
    "name",
    [
        *("./voices", "../a/b", "/no/such/model", "a/b/c", "noisy", "~/models/x", "~nobody-of-that-name/x", "a\0b"),
        *("x" * 5000, Path("/no/such/model")),
    ],
)
def test_path_that_does_not_exist(name):
    with pytest.raises(InputError) as caught:
        resolve_model(name)
    told = f"{shown_path(name)}: no such folder: a model is a folder, a bundled name (mini, noise)"
    assert str(caught.value).startswith(told)


def test_what_is_no_path_at_all():
    with pytest.raises(InputError, match="model: 5 is neither"):
        resolve_model(5)


def test_file_instead_of_folder(checkpoint_dir):
    with pytest.raises(InputError, match=r"config\.json: a model is a folder, and this is a file"):
        resolve_model(str(checkpoint_dir / "config.json"))


def run_offline(cache: Path, code: str) -> subprocess.CompletedProcess:
    """Run code in a process whose hub cache is `cache` and which may not use a network."""
    env = os.environ | {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}
    script = f"from pathlib import Path\nfrom omnitts.model.checkpoint import *\n{code}"
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", script], env=env, cwd=root, capture_output=True, text=True)


def cache_repo(cache: Path, repo: str, content: Path) -> Path:
    """Lay out a hub repository as the hub's client keeps it; returns the folder of its only revision."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    storage = cache / f"models--{repo.replace('/', '--')}"
    (storage / "refs").mkdir(parents=True)
    (storage / "refs" / "main").write_text(commit)
    return Path(shutil.copytree(content, storage / "snapshots" / commit))


def test_cached_hub_models_need_no_network(checkpoint_dir, tmp_path):
    model = cache_repo(tmp_path, "k2-fsa/OmniVoice", checkpoint_dir)
    shutil.rmtree(model / "audio_tokenizer")
    codec = cache_repo(tmp_path, module.CODEC_REPO, checkpoint_dir / "audio_tokenizer")
    code = "c = open_checkpoint(resolve_model('k2-fsa/OmniVoice')); print(c.path, c.codec_path, sep='\\n')"
    done = run_offline(tmp_path, code)
    assert done.stdout.splitlines() == [str(model), str(codec)], done.stderr


def test_uncached_hub_model_offline(folder, tmp_path):
    shutil.rmtree(folder / "audio_tokenizer")
    code = f"""
for attempt in (lambda: resolve_model("acme/voice"), lambda: open_checkpoint(Path({str(folder)!r}))):
    try:
        attempt()
    except InputError as error:
        print(error)
"""
    done = run_offline(tmp_path / "cache", code)
    assert done.stdout.splitlines() == [
        "acme/voice: no such folder; as a hub id: not wholly in the hub's cache, and HF_HUB_OFFLINE is set; "
        "run `hf download acme/voice` where there is a network",
        f"{folder}/audio_tokenizer: no such folder; its stand-in, hub repository {module.CODEC_REPO}: not wholly in "
        f"the hub's cache, and HF_HUB_OFFLINE is set; run `hf download {module.CODEC_REPO}` where there is a network",
    ], done.stderr


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("GatedRepoError", "accept the terms on its hub page, then run `hf auth login`"),
        ("RepositoryNotFoundError", "no such hub repository; check the spelling"),
        ("LocalEntryNotFoundError", "the hub cannot be reached; run `hf download acme/voice`"),
        ("HFValidationError", "no hub id"),
        ("DisabledRepoError", "download failed: DisabledRepoError"),
    ],
)
def test_hub_failures_are_told_in_one_line(monkeypatch, error, message):
    import huggingface_hub
    from huggingface_hub import constants, errors

    class Failure(getattr(errors, error)):
        def __init__(self):  # the real ones want a server's response
            pass

        def __str__(self):
            return "reason"

    Failure.__name__ = error

    def fail(*args, **options):
        raise Failure

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(InputError) as caught:
        resolve_model("acme/voice")
    assert str(caught.value).startswith("acme/voice: no such folder; as a hub id: ")
    assert message in str(caught.value)


def test_only_needed_files_are_downloaded(monkeypatch, tmp_path):
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    asked = {}

    def download(repo, allow_patterns):
        asked[repo] = allow_patterns
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("acme/voice") == tmp_path
    needed = [
        *("config.json", "tokenizer.json", "model.safetensors", "audio_tokenizer/config.json"),
        *("model-00001-of-00002.safetensors", "model.safetensors.index.json", "audio_tokenizer/model.safetensors"),
    ]
    others = ["README.md", "optimizer.bin", "samples/a.wav", "onnx/model.onnx", "pytorch_model.bin", "sub/config.json"]
    assert list(filter_repo_objects(needed + others, allow_patterns=asked["acme/voice"])) == needed


def test_opening_needs_no_torch():
    code = "import sys; open_checkpoint(resolve_model(None)); print({'torch', 'transformers'} & set(sys.modules))"
    done = run_offline(Path("unused"), code)
    assert done.stdout.strip() == "set()", done.stderr

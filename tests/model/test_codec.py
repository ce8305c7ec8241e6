import json
import shutil
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from omnitts.errors import InputError
from omnitts.model.checkpoint import open_checkpoint, resolve_model
from omnitts.model.codec import UNUSED_TENSORS, Codec, Encoder, load_codec, read_codec_config

REAL = json.loads((Path(__file__).parents[1] / "fixtures" / "real_shapes.json").read_text())
WEIGHT_NORM_NAMES = [
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
]


@pytest.fixture(scope="module")
def codec(checkpoint_dir) -> Codec:
    return load_codec(open_checkpoint(checkpoint_dir), "cpu")


@pytest.fixture
def folder(checkpoint_dir, tmp_path) -> Path:
    """A copy of the small checkpoint, to be rewritten."""
    return Path(shutil.copytree(checkpoint_dir, tmp_path / "model"))


def edit_tensors(folder: Path, edit) -> None:
    path = folder / "audio_tokenizer" / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def edit_config(folder: Path, edit) -> None:
    path = folder / "audio_tokenizer" / "config.json"
    config = json.loads(path.read_text())
    edit(config)
    path.write_text(json.dumps(config))


# ---- Against the published decoder ----


@pytest.mark.parametrize("case", [0, 1, 2])
def test_decode(codec, vectors, case):
    wave = codec.decode(vectors[f"codec/decode/{case}/codes"])
    assert wave.dtype == np.float32
    np.testing.assert_allclose(wave, vectors[f"codec/decode/{case}/audio"].numpy(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("case", [0, 1, 2])
def test_encode(codec, vectors, case):
    codes = codec.encode(vectors[f"codec/encode/{case}/audio"].numpy())
    assert codes.dtype == np.int16
    np.testing.assert_array_equal(codes, vectors[f"codec/encode/{case}/codes"].numpy())


def test_real_tensors(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(REAL["audio_tokenizer_config"]))
    config = read_codec_config(tmp_path / "config.json")
    assert (config.num_quantizers, config.semantic_stride, config.width) == (8, 2, 1024)
    with torch.device("meta"):
        decoder, encoder = Codec(config, ()).state_dict(), Encoder(config).state_dict()
    assert not decoder.keys() & encoder.keys()
    ours = {name: list(tensor.shape) for name, tensor in (decoder | encoder).items()}

    used = {
        name: shape
        for name, shape in REAL["audio_tokenizer_tensors"].items()
        if not any(fnmatchcase(name, pattern) for pattern in UNUSED_TENSORS)
    }
    positions = "semantic_model.encoder.pos_conv_embed.conv."  # weight-normed in the file, plain here
    assert used.pop(positions + "parametrizations.weight.original0") == [1, 1, 128]
    used[positions + "weight"] = used.pop(positions + "parametrizations.weight.original1")
    assert ours == used


# ---- Properties ----


def test_a_clip_decodes_to_the_same_bits_in_any_company(codec):
    random = np.random.default_rng(0)
    clips = [random.integers(0, 1024, (8, frames), dtype=np.int16) for frames in (30, 7, 100)]
    alone = codec.decode(clips[0])
    for clip in clips[1:]:
        codec.decode(clip)
        np.testing.assert_array_equal(codec.decode(clips[0]), alone)


def test_batch(codec):
    codes = np.random.default_rng(0).integers(0, 1024, (3, 8, 11), dtype=np.int16)
    waves = codec.decode(codes)
    assert waves.shape == (3, 11 * 960)
    for row, clip in zip(waves, codes, strict=True):
        np.testing.assert_allclose(row, codec.decode(clip), rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [(0,), (959,), (1, 960)])
def test_encode_wants_whole_frames(codec, shape):
    with pytest.raises(ValueError, match="whole frames of 960 samples"):
        codec.encode(np.zeros(shape, np.float32))


def test_encoder_is_built_at_first_use(checkpoint_dir):
    codec = load_codec(open_checkpoint(checkpoint_dir), "cpu")
    codec.decode(np.zeros((8, 2), np.int16))
    assert "encoder" not in vars(codec)
    codec.encode(np.zeros(960, np.float32))
    assert "encoder" in vars(codec)


def test_bundled_codec_is_audible():
    codec = load_codec(open_checkpoint(resolve_model("noise")), "cpu")
    wave = codec.decode(np.random.default_rng(0).integers(0, 1024, (8, 50)))
    assert np.isfinite(wave).all()
    assert 0.03 < np.sqrt(np.mean(wave**2)) < 0.3
    assert np.abs(wave).max() < 1
    assert codec.encode(wave).shape == (8, 50)


# ---- Files ----


@pytest.mark.parametrize(("gain_name", "direction_name"), WEIGHT_NORM_NAMES)
def test_weight_normed_convolutions(codec, folder, vectors, gain_name, direction_name):
    def split(tensors):
        for name in list(tensors):
            stem = name.removesuffix("weight")
            if name.startswith("acoustic_") and stem != name:
                weight = tensors.pop(name)
                norm = weight.flatten(1).norm(dim=1)[:, None, None]
                tensors[stem + gain_name] = norm
                tensors[stem + direction_name] = weight * 1.7
        stem = "semantic_model.encoder.pos_conv_embed.conv."
        tensors[stem + gain_name] = tensors.pop(stem + "parametrizations.weight.original0")
        tensors[stem + direction_name] = tensors.pop(stem + "parametrizations.weight.original1")

    edit_tensors(folder, split)
    split_codec = load_codec(open_checkpoint(folder), "cpu")
    codes, audio = vectors["codec/decode/2/codes"], vectors["codec/encode/2/audio"]
    np.testing.assert_allclose(split_codec.decode(codes), codec.decode(codes), rtol=0, atol=1e-4)
    np.testing.assert_array_equal(split_codec.encode(audio), codec.encode(audio))


def test_plain_position_convolution(codec, folder, vectors):
    def merge(tensors):
        stem = "semantic_model.encoder.pos_conv_embed.conv."
        gain = tensors.pop(stem + "parametrizations.weight.original0")
        direction = tensors.pop(stem + "parametrizations.weight.original1")
        tensors[stem + "weight"] = torch._weight_norm(direction, gain, 2)

    edit_tensors(folder, merge)
    audio = vectors["codec/encode/1/audio"]
    np.testing.assert_array_equal(load_codec(open_checkpoint(folder), "cpu").encode(audio), codec.encode(audio))


def test_training_leftovers_may_be_absent(folder, vectors):
    def drop(tensors):
        for name in [n for n in tensors if any(fnmatchcase(n, pattern) for pattern in UNUSED_TENSORS)]:
            del tensors[name]

    edit_tensors(folder, drop)
    codec = load_codec(open_checkpoint(folder), "cpu")
    codes = codec.encode(vectors["codec/encode/0/audio"])
    np.testing.assert_array_equal(codes, vectors["codec/encode/0/codes"].numpy())


def test_decoder_problems_are_told_at_load(folder):
    edit_tensors(folder, lambda tensors: tensors.pop("acoustic_decoder.conv1.bias"))
    with pytest.raises(InputError, match=r"missing: acoustic_decoder\.conv1\.bias"):
        load_codec(open_checkpoint(folder), "cpu")


def test_unknown_tensors_are_told_at_load(folder):
    edit_tensors(folder, lambda tensors: tensors.update({"vocoder.weight": torch.ones(1)}))
    with pytest.raises(InputError, match=r"unexpected: vocoder\.weight"):
        load_codec(open_checkpoint(folder), "cpu")


def test_encoder_problems_are_told_at_first_use(folder):
    edit_tensors(folder, lambda tensors: tensors.update({"fc.bias": torch.ones(3)}))
    codec = load_codec(open_checkpoint(folder), "cpu")
    codec.decode(np.zeros((8, 1), np.int16))
    with pytest.raises(InputError, match=r"misshapen: fc\.bias \[3\] instead of \[48\]"):
        codec.encode(np.zeros(960, np.float32))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.update(model_type="dac"), "model_type: 'dac' is no codec known here"),
        (lambda c: c.pop("model_type"), "model_type: None is no codec known here"),
        (lambda c: c.pop("acoustic_model_config"), "acoustic_model_config: this key is missing"),
        (lambda c: c["acoustic_model_config"].pop("hidden_size"), "acoustic_model_config.hidden_size: this key is"),
        (lambda c: c["semantic_model_config"].pop("hidden_size"), "semantic_model_config.hidden_size: this key is"),
        (lambda c: c.update(target_bandwidths=[]), "target_bandwidths: [] is not a list with something in it"),
        (lambda c: c.update(target_bandwidths=[1]), "4 codebooks of 1024 codes, but the model speaks 8 of 1024"),
        (lambda c: c.update(target_bandwidths=["x"]), "target_bandwidths[0]: 'x' is not a positive number"),
        (lambda c: c.update(target_bandwidths=[1e300]), "target_bandwidths[0]: 1e+300 is not a positive number"),
        (lambda c: c.update(codebook_size="many"), "codebook_size: 'many' is not a positive whole number"),
        (lambda c: c.update(codebook_size=1), "80 codebooks of 1 codes, but the model speaks 8 of 1024"),
        (lambda c: c.update(sample_rate=16000), "sample_rate: 16000 is not supported, only 24000 is"),
        (lambda c: c.update(semantic_sample_rate=None), "semantic_sample_rate: None is not supported, only 16000 is"),
        (lambda c: c.update(downsample_factor=300), "downsample_factor: 300 is no whole part of a frame"),
        (lambda c: c.update(strides={"a": 1}), "strides: {'a': 1} is not a list"),
        (lambda c: c.update(strides=[1, "2"]), "strides[1]: '2' is not a positive whole number"),
        (lambda c: c.update(channel_ratios=[None]), "channel_ratios[0]: None is not a positive number"),
        (lambda c: c.update(block_dilations=[0]), "block_dilations[0]: 0 is not a positive whole number"),
        (
            lambda c: c["acoustic_model_config"].update(upsampling_ratios=[8, 5]),
            "acoustic_model_config.upsampling_ratios: their product is not 960",
        ),
        (
            lambda c: c["acoustic_model_config"].update(downsampling_ratios=[8, 5, 4, 6.0]),
            "acoustic_model_config.downsampling_ratios[3]: 6.0 is not a positive whole number",
        ),
        (
            lambda c: c["semantic_model_config"].update(num_hidden_layers=10**9),
            "semantic_model_config.num_hidden_layers: 1000000000 is not a positive whole number of at most 1000",
        ),
        (lambda c: c["acoustic_model_config"].update(sampling_rate="x"), "sizes do not go together"),
    ],
)
def test_odd_config(folder, edit, message):
    edit_config(folder, edit)
    with pytest.raises(InputError) as caught:
        load_codec(open_checkpoint(folder), "cpu")
    assert str(caught.value).startswith(f"{folder}/audio_tokenizer/config.json: ")
    assert message in str(caught.value)


def test_settings_of_training_change_nothing(folder, vectors):
    """Layers that are dropped at random, say."""
    edit_config(folder, lambda config: config["semantic_model_config"].update(layerdrop=1.0, hidden_dropout=1.0))
    codes = load_codec(open_checkpoint(folder), "cpu").encode(vectors["codec/encode/0/audio"])
    np.testing.assert_array_equal(codes, vectors["codec/encode/0/codes"].numpy())


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.update(kernel_size=2), "sizes do not go together"),
        (lambda c: c.update(strides=[2, 1]), "sizes do not go together"),
        (lambda c: c["semantic_model_config"].update(conv_stride=[5, 2]), "sizes do not go together"),
        (lambda c: c["semantic_model_config"].update(num_attention_heads="x"), "sizes do not go together"),
    ],
)
def test_odd_encoder_config_is_told_at_first_use(folder, edit, message):
    edit_config(folder, edit)
    codec = load_codec(open_checkpoint(folder), "cpu")
    with pytest.raises(InputError) as caught:
        codec.encode(np.zeros(960, np.float32))
    assert str(caught.value).startswith(f"{folder}/audio_tokenizer/config.json: ")
    assert message in str(caught.value)


def test_what_old_configs_leave_out(checkpoint_dir, folder):
    def trim(config):
        for key in ("kernel_size", "unit_kernel_size", "strides", "channel_ratios", "block_dilations"):
            del config[key]
        for key in ("sample_rate", "semantic_sample_rate", "downsample_factor", "codebook_size"):
            del config[key]

    edit_config(folder, trim)
    whole = read_codec_config(checkpoint_dir / "audio_tokenizer" / "config.json")
    assert read_codec_config(folder / "audio_tokenizer" / "config.json") == whole

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import omnitts
from omnitts.errors import InputError
from omnitts.model.checkpoint import open_checkpoint
from omnitts.model.codec import load_codec
from omnitts.model.frame_codec import Encoder, FrameCodec, inverse_stft, log_mel, read_frame_codec_config

SIZES = {
    "model_type": "frame_codec",
    "sample_rate": 24000,
    "frame_samples": 960,
    "hop_length": 240,
    "num_quantizers": 8,
    "codebook_size": 1024,
    "codebook_dim": 8,
    "mel_bins": 20,
    "encoder_fine_width": 8,
    "encoder_fine_depth": 1,
    "encoder_coarse_width": 12,
    "encoder_coarse_depth": 1,
    "decoder_coarse_width": 12,
    "decoder_coarse_depth": 1,
    "decoder_fine_width": 8,
    "decoder_fine_depth": 1,
}


@pytest.fixture(scope="module")
def base(checkpoint_dir, tmp_path_factory) -> Path:
    """The small checkpoint with a random frame codec in place of its own."""
    folder = Path(shutil.copytree(checkpoint_dir, tmp_path_factory.mktemp("frame") / "model"))
    codec = folder / "audio_tokenizer"
    (codec / "config.json").write_text(json.dumps(SIZES))
    config = read_frame_codec_config(codec / "config.json")
    torch.manual_seed(0)
    module = FrameCodec(config)
    module.quantizer.embed.normal_()
    encoder = {f"encoder.{name}": tensor for name, tensor in Encoder(config).state_dict().items()}
    save_file(module.state_dict() | encoder, codec / "model.safetensors")
    return folder


@pytest.fixture
def folder(base, tmp_path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "model"))


@pytest.fixture(scope="module")
def codec(base) -> FrameCodec:
    return load_codec(open_checkpoint(base), "cpu")


def random_codes(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1024, (8, frames)).astype(np.int16)


def edit_config(folder: Path, **changes) -> None:
    path = folder / "audio_tokenizer" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_shapes_and_types(codec):
    wave = codec.decode(random_codes(7))
    assert wave.dtype == np.float32 and wave.shape == (7 * 960,) and np.isfinite(wave).all()
    codes = codec.encode(wave)
    assert codes.dtype == np.int16 and codes.shape == (8, 7) and codes.min() >= 0 and codes.max() < 1024


def test_one_frame(codec):
    assert codec.encode(codec.decode(random_codes(1))).shape == (8, 1)


def test_a_clip_is_the_same_in_any_batch_and_on_any_number_of_threads(codec):
    clips = np.stack([random_codes(9, seed) for seed in range(3)])
    batch = codec.decode(clips)
    threads = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        for codes, wave in zip(clips, batch, strict=True):
            np.testing.assert_array_equal(codec.decode(codes), wave)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("samples", [0, 959, 961])
def test_waves_of_broken_frames_are_refused(codec, samples):
    with pytest.raises(ValueError, match="whole frames"):
        codec.encode(np.zeros(samples, np.float32))


def test_the_quantizer_codes_its_own_sums(codec):
    codes = torch.zeros(1, 8, 5, dtype=torch.int64)
    codes[0, 0] = torch.arange(5)
    first = codec.quantizer.embed[0, :5][None]
    assert codec.quantizer.encode(first)[0, 0].tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(
        codec.quantizer.decode(codes), first + codec.quantizer.embed[1:, 0].sum(0), rtol=0, atol=1e-5
    )


def test_inverse_stft_of_a_spectrum_gives_the_wave_back():
    time = torch.arange(240 * 40) / 24000
    wave = torch.sin(2 * torch.pi * 440 * time)
    frames = torch.nn.functional.pad(wave, (360, 360)).unfold(0, 960, 240) * torch.hann_window(960)
    spectrum = torch.fft.rfft(frames)
    x = torch.cat([spectrum.abs().clamp(min=1e-9).log(), spectrum.angle()], dim=-1)[None]
    made = inverse_stft(x)[0]
    assert made.shape == wave.shape
    np.testing.assert_allclose(made[1000:-1000], wave[1000:-1000], rtol=0, atol=1e-3)


def test_log_mel_finds_a_tone():
    time = torch.arange(960 * 4) / 24000
    low, high = (log_mel(torch.sin(2 * torch.pi * f * time)[None], 20)[0, 8].argmax() for f in (200, 4000))
    assert low < 4 < 10 < high


def test_the_digest_tells_codecs_apart(base, folder):
    edit_config(folder, mel_bins=21)
    assert open_checkpoint(folder).codec_digest != open_checkpoint(base).codec_digest


def test_speech_and_a_cloned_voice_from_end_to_end(base, tmp_path):
    import soundfile

    tts = omnitts.load(base, device="cpu")
    wave = 0.3 * np.sin(2 * np.pi * 220 * np.arange(24000) / 24000)
    soundfile.write(tmp_path / "ref.wav", wave, 24000)
    cloned = {"text": "Hello.", "ref_audio": str(tmp_path / "ref.wav"), "ref_text": "A tone.", "duration": 0.4}
    plain = {"text": "Hello.", "duration": 0.4, "seed": 1}
    settings = {"num_step": 2, "postprocess_output": False}
    together = tts.synthesize([cloned, plain], **settings)
    alone = tts.synthesize(plain, **settings)[0]
    np.testing.assert_array_equal(together[1].audio, alone.audio)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sample_rate": 16000}, "sample_rate: 16000 is not supported"),
        ({"num_quantizers": 4}, "4 codebooks of 1024 codes"),
        ({"mel_bins": 0}, "mel_bins"),
        ({"decoder_fine_width": "wide"}, "decoder_fine_width"),
        ({"decoder_fine_width": 16}, "misshapen"),
    ],
)
def test_odd_configurations_are_refused(folder, changes, message):
    edit_config(folder, **changes)
    with pytest.raises(InputError, match=message):
        load_codec(open_checkpoint(folder), "cpu")


def test_a_damaged_encoder_is_refused_when_it_is_needed(folder):
    path = folder / "audio_tokenizer" / "model.safetensors"
    tensors = load_file(path)
    tensors["encoder.project.bias"][0] = torch.nan
    save_file(tensors, path)
    codec = load_codec(open_checkpoint(folder), "cpu")
    with pytest.raises(InputError, match=r"encoder\.project\.bias holds numbers that are not finite"):
        codec.encode(np.zeros(960, np.float32))


# ---- Matrices of 8 bits ----


def test_int8_rows_are_multiplied_by_their_scales(folder, codec):
    path = folder / "audio_tokenizer" / "model.safetensors"
    tensors = load_file(path)
    weight = tensors["decoder.split.weight"]
    scale = weight.abs().amax(1, keepdim=True) / 127
    tensors["decoder.split.weight"] = (weight / scale).round().to(torch.int8)
    tensors["decoder.split.weight.row_scale"] = scale
    save_file(tensors, path)
    loaded = load_codec(open_checkpoint(folder), "cpu").decoder.split.weight
    assert loaded.dtype == torch.float32
    np.testing.assert_allclose(loaded, weight, rtol=0, atol=float(scale.max()) * 0.51)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (None, "not floating-point: decoder.split.weight"),
        (torch.ones(3, 1), "misshapen: decoder.split.weight.row_scale"),
    ],
)
def test_int8_without_fitting_scales_is_refused(folder, scale, message):
    path = folder / "audio_tokenizer" / "model.safetensors"
    tensors = load_file(path)
    tensors["decoder.split.weight"] = tensors["decoder.split.weight"].to(torch.int8)
    if scale is not None:
        tensors["decoder.split.weight.row_scale"] = scale
    save_file(tensors, path)
    with pytest.raises(InputError, match=message):
        load_codec(open_checkpoint(folder), "cpu")

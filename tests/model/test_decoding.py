"""Many clips in a row, by both codecs: each clip is what it is alone, to its last sample."""

import numpy as np
import pytest
import torch

from omnitts.model import codec as dac
from omnitts.model import decoding, frame_codec
from omnitts.model.checkpoint import open_checkpoint, resolve_model
from omnitts.model.codec import load_codec
from omnitts.model.decoding import GAP, ROW_FRAMES, Row, decode_padding, decode_row, decode_rows, in_dtype


@pytest.fixture(params=["noise", "mini"], ids=["DAC", "frame codec"])
def codec(request):
    """The bundled ones, loaded anew: a test may set the dtype that batches are decoded in."""
    return load_codec(open_checkpoint(resolve_model(request.param)), "cpu")


def clips(*lengths: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 1024, (8, length)).astype(np.int16) for length in lengths]


@pytest.fixture
def in_float16(monkeypatch):
    for module in (dac, frame_codec):
        monkeypatch.setattr(module, "decode_dtype", lambda device: torch.float16)


def test_on_the_cpu_a_batch_is_each_alone_to_the_bit(codec):
    codes = clips(9, 30, 9, 1)
    waves = codec.decode_batch(codes)
    for wave, clip in zip(waves, codes, strict=True):
        np.testing.assert_array_equal(wave, codec.decode(clip))
    assert codec.decode_batch([]) == []


def test_neighbours_reach_no_sample(codec):
    """Without the masks the first and last frames would differ by the level of the sound itself."""
    codes = clips(40, 37, 40, 12, 1)
    waves = decode_row(codec, codes)
    for wave, clip in zip(waves, codes, strict=True):
        assert wave.dtype == np.float32 and wave.shape == (960 * clip.shape[1],)
        np.testing.assert_allclose(wave, codec.decode(clip), rtol=0, atol=1e-5)


def test_neighbours_reach_no_sample_in_float16(codec, in_float16):
    codes = clips(40, 37, 12)
    for wave, clip in zip(decode_row(codec, codes), codes, strict=True):
        (alone,) = decode_row(codec, [clip])
        assert wave.dtype == np.float32
        np.testing.assert_allclose(wave, alone, rtol=0, atol=3e-3)


def test_what_float16_costs(codec, in_float16):
    """The docstrings of `decode_batch` have figures by clip; bfloat16 errs about 17 dB more."""
    codes = clips(40, 37, 35) if isinstance(codec, dac.Codec) else speech_codes()
    exact = np.concatenate([codec.decode(clip) for clip in codes])
    error = np.concatenate(decode_row(codec, codes)) - exact
    assert 10 * np.log10(np.sum(exact**2) / np.sum(error**2)) > 32


def speech_codes() -> list[np.ndarray]:
    import omnitts

    tts = omnitts.load("mini", device="cpu")
    texts = ("Hello there, how are you today?", "The quick brown fox jumps over the lazy dog.")
    items = [{"text": text, "instruct": voice} for text in texts for voice in ("male", "female")]
    return [speech.codes for speech in tts.synthesize(items, num_step=8)]


def test_numbers_beyond_float16_are_made_in_float32(codec, in_float16, monkeypatch):
    codes = clips(12, 30)
    monkeypatch.setattr(type(codec), "decode_joined", lambda self, joined, row: torch.full((960 * row.frames,), np.inf))
    for wave, clip in zip(decode_row(codec, codes), codes, strict=True):
        np.testing.assert_array_equal(wave, codec.decode(clip))


def test_rows_by_device():
    lengths = [1500, 3000, 400, 5000, 1000]
    rows = decode_rows(lengths, torch.device("cuda"))
    assert sorted(i for row in rows for i in row) == [0, 1, 2, 3, 4]
    assert all(len(row) == 1 or sum(lengths[i] + GAP for i in row) <= ROW_FRAMES for row in rows)
    assert len(rows) == 3
    assert decode_rows(lengths, torch.device("cpu")) == [[0], [1], [2], [3], [4]]
    assert decode_padding(lengths, torch.device("cpu")) == 0


def test_a_row_holds_its_clips_apart_and_has_one_of_few_lengths():
    row = Row([12, 40, 1])
    assert [(span.start, span.stop) for span in row.spans] == [
        (0, 12),
        (12 + GAP, 52 + GAP),
        (52 + 2 * GAP, 53 + 2 * GAP),
    ]
    assert row.sound.sum() == 53
    sizes = {Row([length]).frames for length in range(1, ROW_FRAMES + 1)}
    assert len(sizes) == 8 and max(sizes) == ROW_FRAMES
    assert Row([ROW_FRAMES + 1]).frames > ROW_FRAMES
    assert decode_padding([12, 40, 1], torch.device("cuda")) == row.frames - 53


def test_what_lies_between_is_silenced_at_any_rate():
    row = Row([3, 2])
    x = torch.ones(1, 2, 5 * row.frames)
    row.silence(x, 2)
    heard = x[0, 0].view(row.frames, 5)
    assert heard[row.sound].all() and not heard[~row.sound].any() and heard.sum() == 25


def test_a_module_of_the_dtype_is_not_copied():
    module = torch.nn.Linear(2, 2)
    assert in_dtype(module, torch.float32) is module
    half = in_dtype(module, torch.bfloat16)
    assert half.weight.dtype == torch.bfloat16 and module.weight.dtype == torch.float32


def test_a_gpu_decodes_in_float16_and_the_cpu_in_float32():
    assert decoding.decode_dtype(torch.device("cuda")) is torch.float16
    assert decoding.decode_dtype(torch.device("cpu")) is torch.float32

"""The training pieces, small, on made-up clips: no teacher and no text packages are needed."""

import numpy as np
import pytest
import torch

from omnitts.model.checkpoint import open_checkpoint
from omnitts.tts import load
from scripts.make_random_checkpoint import byte_tokenizer
from training import codec, export, model
from training.data import FRAME, Clip, fit
from training.documents import Documents, reveal_chances
from training.loop import Average
from training.optimizer import orthogonal
from training.pieces import load_pieces, save_pieces
from training.score import edit_distance, median_pitch, words
from training.teacher import PHONE_RATE, RATE, Spoken
from training.text import clean, heldout, key
from training.tokens import encode, save
from training.tokens import load as load_tokens

LINES = [f"This is line number {n}." for n in range(12)]
SMALL_CODEC = {
    "codebook_size": 1024,
    "codebook_dim": 8,
    "mel_bins": 20,
    "encoder_fine_width": 8,
    "encoder_fine_depth": 1,
    "encoder_coarse_width": 8,
    "encoder_coarse_depth": 1,
    "decoder_coarse_width": 8,
    "decoder_coarse_depth": 1,
    "decoder_fine_width": 8,
    "decoder_fine_depth": 1,
}


@pytest.fixture(scope="module")
def clips() -> list[Clip]:
    rng = np.random.default_rng(0)
    made = []
    for line in range(len(LINES)):
        frames = int(rng.integers(50, 60))
        wave = (3000 * rng.standard_normal(frames * FRAME)).clip(-32768, 32767).astype(np.int16)
        order = np.arange(frames * 2, dtype=np.int16) // 10
        made.append(Clip(line, line % 2, wave, (order % 41).astype(np.uint8), order))
    return made


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(codec, "SIZES", codec.SIZES | SMALL_CODEC)
    body = model.CONFIG["llm_config"] | {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    monkeypatch.setattr(model, "CONFIG", model.CONFIG | {"llm_config": body})


@pytest.fixture
def shards(clips, tmp_path):
    np.savez(
        tmp_path / "00000.npz",
        line=[clip.line for clip in clips],
        speaker=[clip.speaker for clip in clips],
        frames=[clip.frames for clip in clips],
        wave=np.concatenate([clip.wave for clip in clips]),
        phones=np.concatenate([clip.phones for clip in clips]),
        order=np.concatenate([clip.order for clip in clips]),
    )
    return tmp_path


def tokens_of(clips, folder):
    rng = np.random.default_rng(1)
    codes = [rng.integers(0, 1024, (8, clip.frames)).astype(np.int16) for clip in clips]
    save(folder / "tokens-0.npz", clips, codes)
    return load_tokens(folder), codes


# ---- Data ----


def test_heldout_sentences_are_many_and_told_apart():
    assert len({key(line) for line in heldout()}) == 100


def test_clean_keeps_what_can_be_read_aloud():
    texts = ["A plain   sentence.", "short", "Über-long names", "ALL CAPITALS HERE", "x" * 300]
    assert list(clean(texts)) == ["A plain sentence."]


def test_fit_cuts_edges_fills_up_and_keeps_labels_in_step():
    wave = np.zeros(RATE, np.int16)
    wave[5000:9000] = 5000
    labels = np.zeros(PHONE_RATE, np.uint8)
    labels[5000 // 320 : 9000 // 320] = 7
    clip = fit(Spoken(wave, labels, np.arange(PHONE_RATE, dtype=np.int16)), frames=30)
    assert clip.frames == 30 and len(clip.phones) == 60
    middle = np.flatnonzero(clip.phones == 7).mean() * 320
    sounds = np.flatnonzero(clip.wave)
    assert abs(middle - sounds.mean()) < 320
    assert sounds[0] >= 1280 and clip.order[0] == 0


def test_silence_makes_no_clip():
    assert fit(Spoken(np.zeros(1000, np.int16), np.zeros(4, np.uint8), np.zeros(4, np.int16)), 10) is None


def test_tokens_come_back(clips, tmp_path):
    tokens, codes = tokens_of(clips, tmp_path)
    np.testing.assert_array_equal(tokens.codes.T, np.concatenate(codes, axis=1))
    np.testing.assert_array_equal(tokens.order.flatten(), np.concatenate([clip.order for clip in clips]))
    np.testing.assert_array_equal(tokens.phones.flatten(), np.concatenate([clip.phones for clip in clips]))


def test_pieces_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr("training.pieces.LARGEST", 100)
    tensors = {"a": torch.randn(30), "b": torch.arange(30), "c": torch.randn(4)}
    files = save_pieces(tmp_path, "x", tensors)
    assert len(files) == 3
    back = load_pieces(tmp_path, "x")
    assert (back["a"] - tensors["a"]).abs().max() < 2e-3 and back["b"].equal(tensors["b"])


# ---- Documents ----


def test_documents_fill_rows_and_point_at_their_frames(clips, tmp_path):
    tokens, _ = tokens_of(clips, tmp_path)
    row = Documents(tokens, LINES, byte_tokenizer(), 4000, seed=0).pack()
    used = row.bounds[row.bounds < 4000].max()
    assert used > 2000 and row.bounds[-1] == 4000 and (np.diff(row.bounds) >= 0).all()
    assert ((row.text[:used] >= 0) ^ (row.frame[:used] >= 0)).all()
    target = row.target[row.target >= 0]
    assert (row.frame[target] >= 0).all() and (np.diff(target) > 0).all()
    assert row.progress.min() >= 0 and row.progress.max() < 1


def test_cells_are_revealed_from_low_codebooks_on():
    chances = reveal_chances()
    assert (np.diff(chances, axis=1) <= 1e-6).all()
    np.testing.assert_allclose(chances.mean(1), (np.arange(512) + 0.5) / 512, atol=2e-3)


# ---- Training ----


def test_the_packed_forward_pass_is_the_models(small, tmp_path):
    torch.manual_seed(0)
    training = model.Training.start(tmp_path / "m", torch.device("cpu"))
    with torch.no_grad():
        for parameter in training.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        x = [torch.randn(length, 32) for length in (30, 21)]
        expected = training.model(x, [10, 21])
        position = torch.cat([torch.arange(30.0), torch.arange(21.0)])
        hidden, _ = training(torch.cat(x), position, torch.tensor([0, 30, 51], dtype=torch.int32))
        logits = training.model.audio_heads(torch.cat([hidden[20:30], hidden[30:]])).unflatten(-1, (8, 1025))
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_the_model_learns_and_goes_on_where_it_was(small, clips, tmp_path):
    tokens, _ = tokens_of(clips, tmp_path)
    torch.manual_seed(0)
    training = model.Training.start(tmp_path / "m", torch.device("cpu"))
    documents = Documents(tokens, LINES, byte_tokenizer(), 1000, seed=0)
    row = {name: torch.from_numpy(value) for name, value in vars(documents.pack()).items()}
    batch = model.Batch(tokens, row, torch.device("cpu"))
    optimizer = model.Optimizer(training.named_parameters(), model.MATRICES)
    optimizer.rate.fill_(0.01)
    step = model.masked_step(training, batch, optimizer, Average(training))
    losses = [float(step()["loss"]) for _ in range(25)]
    assert losses[-1] < losses[0] - 0.05
    save_pieces(tmp_path / "m", "model", training.state_dict())
    again = model.Training.start(tmp_path / "m", torch.device("cpu"))
    assert (again.progress.weight - training.progress.weight).abs().max() < 1e-2


@pytest.mark.parametrize("stage", [codec.reconstruction_step, codec.adversarial_step])
def test_the_codec_learns(small, shards, tmp_path, stage):
    torch.manual_seed(0)
    device = torch.device("cpu")
    training = codec.Training.start(tmp_path / "c", device)
    speech = codec.Speech(shards, 100, device)
    step, optimizers, average = stage(training, speech, 4, 8, 0)
    for optimizer in optimizers:
        optimizer.rate.fill_(3e-3)
    losses = [float(step()["mel"]) for _ in range(12)]
    assert min(losses[-3:]) < losses[0]
    average.apply()


def test_what_is_exported_speaks_and_codes_as_training_did(small, clips, tmp_path):
    torch.manual_seed(0)
    trained = codec.Training.start(tmp_path / "c", torch.device("cpu"))
    trained.codec.quantizer.embed.normal_()
    trained.save(tmp_path / "c")
    save_pieces(tmp_path / "m", "model", model.Training.start(tmp_path / "m", torch.device("cpu")).state_dict())
    out = tmp_path / "out"
    export.export_model(tmp_path / "m", out)
    export.export_codec(tmp_path / "c", out / "audio_tokenizer")
    assert open_checkpoint(out).config.num_audio_codebook == 8
    tts = load(out, device="cpu")
    wave = codec.upsampled(clips[0].wave, torch.device("cpu")).float() / 32768
    same = tts.codec.encode(wave) == encode(clips[:1], codec.Training.start(tmp_path / "c", torch.device("cpu")))[0]
    assert same[0].mean() > 0.9  # the exported matrices are rounded to 8 bits
    speech = tts.synthesize({"text": "Hi.", "duration": 0.4}, num_step=2, postprocess_output=False)[0]
    assert np.isfinite(speech.audio).all() and speech.frames == 10


def test_orthogonal():
    made = orthogonal(torch.randn(2, 16, 24))
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.4 and values.max() < 1.4


# ---- Scores ----


def test_word_errors():
    assert edit_distance(words("The cat sat."), words("the CAT sat")) == 0
    assert edit_distance(words("the cat sat"), words("a cat sat down")) == 2
    assert edit_distance([], ["x"]) == 1


@pytest.mark.parametrize("hertz", [100.0, 180.0])
def test_median_pitch(hertz):
    time = np.arange(24000) / 24000
    wave = sum(np.sin(2 * np.pi * hertz * k * time) / k for k in range(1, 6)).astype(np.float32)
    assert abs(median_pitch(wave, 24000) - hertz) < 3

"""The backbone: documents in one packed row are as good as alone, and positions restart in each."""

import pytest
import torch

from omnitts.model.backbone import OmniVoice, rotate
from omnitts.model.checkpoint import ModelConfig, load_model, open_checkpoint


@pytest.fixture(scope="module")
def model(checkpoint_dir) -> OmniVoice:
    return load_model(open_checkpoint(checkpoint_dir), "cpu", torch.float32)


def test_packed_documents_do_not_see_each_other(model):
    torch.manual_seed(0)
    documents = [torch.randn(n, model.config.hidden_size) for n in (5, 17, 1, 40)]
    targets = [2, 17, 1, 9]
    with torch.inference_mode():
        packed = model._logits(documents, targets, [None] * len(documents))  # as on a GPU: one row
        alone = model(documents, targets)  # as on the CPU: one at a time
    assert packed.shape == (sum(targets), 8, 1025)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)


def test_attention_is_bidirectional(model):
    document = torch.randn(6, model.config.hidden_size)
    changed = document.clone()
    changed[-1] += 1.0
    with torch.inference_mode():
        before, after = model([document], [6]), model([changed], [6])
    assert not torch.allclose(before[0], after[0])


def test_rotation_pairs_halves_and_keeps_lengths():
    angle = torch.rand(5, 1, 4)
    x = torch.randn(5, 2, 8)
    y = rotate(x, (angle.cos(), angle.sin()))
    complex_x = torch.complex(x[..., :4], x[..., 4:])
    expected = complex_x * torch.polar(torch.ones_like(angle), angle)
    torch.testing.assert_close(torch.complex(y[..., :4], y[..., 4:]), expected)


def test_audio_embedding_is_the_sum_over_codebooks(model):
    codes = torch.randint(0, 1025, (3, 8))
    table = model.audio_embeddings.weight.view(8, 1025, -1)
    expected = torch.stack([sum(table[c, codes[t, c]] for c in range(8)) for t in range(3)])
    torch.testing.assert_close(model.embed_audio(codes), expected)


def test_grouped_heads_share_keys():
    """With every key/value head equal, the number of groups cannot matter."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 10,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "head_dim": 8,
        "intermediate_size": 32,
        "rope_theta": 1e4,
        "rms_norm_eps": 1e-6,
        "audio_vocab_size": 9,
        "audio_mask_id": 8,
        "num_audio_codebook": 2,
    }
    grouped = OmniVoice(ModelConfig(num_key_value_heads=2, **sizes))
    full = OmniVoice(ModelConfig(num_key_value_heads=4, **sizes))
    state = grouped.state_dict()
    for name in ("k_proj", "v_proj"):
        key = f"llm.layers.0.self_attn.{name}.weight"
        state[key] = state[key].view(2, 8, 16).repeat_interleave(2, dim=0).reshape(32, 16)
    full.load_state_dict(state)
    document = torch.randn(7, 16)
    with torch.inference_mode():
        torch.testing.assert_close(grouped([document], [7]), full([document], [7]))

"""The backbone for a GPU: the same function as `backbone.OmniVoice`, over one packed row, in few and large kernels.

Weights are joined where they read the same input (queries with keys and values, gates with ups), the residual is added
by the matrix product, and all else between the products is one pass of a kernel each. The last layer goes on with the
target rows alone, once every position has given its keys and values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from omnitts.model.attention import Attention
from omnitts.model.backbone import OmniVoice
from omnitts.model.checkpoint import ModelConfig
from omnitts.model.kernels import embed, norm_and_rotate, rms_norm, swiglu

_PLACES = 16_384  # positions of a document, to begin with: over ten minutes of audio


@dataclass(frozen=True)
class PackedLayer:
    """A layer's weights; matrices are [in, out] views of what a Linear stores."""

    input_norm: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    o: Tensor
    post_norm: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Row:
    """What a packed row of P positions holds; tensors on the device. Padding has neither text nor frame."""

    text: Tensor  # int32 [P], a token id or -1
    frame: Tensor  # int32 [P], a row of `codes` or -1
    place: Tensor  # int32 [P], counted from each document's start
    codes: Tensor  # int32 [F, C], the canvas and then the frames of references
    targets: Tensor  # int64 [T], the positions whose logits are wanted


class PackedModel:
    """The weights of an `OmniVoice`, which is used up by it, and the forward pass over a `Row`."""

    def __init__(self, model: OmniVoice):
        self.config: ModelConfig = model.config
        self.text_table = model.llm.embed_tokens.weight.detach()
        self.audio_table = model.audio_embeddings.weight.detach()
        self.heads = model.audio_heads.weight.detach().t()
        self.norm = model.llm.norm.weight.detach()
        self.device, self.dtype = self.heads.device, self.heads.dtype
        self.layers = []
        while len(model.llm.layers):  # layer by layer, so that two copies of the model are never there
            self.layers.append(_packed(model.llm.layers[0]))
            del model.llm.layers[0]
        self.reach(_PLACES)

    def reach(self, places: int) -> None:
        """Makes room for documents of this many positions. Captured graphs are of no use after it."""
        self.places = places
        self.cos, self.sin = self._rotations(places)

    def _rotations(self, places: int) -> tuple[Tensor, Tensor]:
        """cos and sin of every place's angles, float32 [places, D / 2]."""
        dim = self.config.head_dim
        exponent = torch.arange(0, dim, 2, dtype=torch.float32, device=self.device) / dim
        angle = (
            torch.arange(places, dtype=torch.float32, device=self.device)[:, None] / self.config.rope_theta**exponent
        )
        return angle.cos(), angle.sin()

    def logits(self, row: Row, attention: Attention) -> Tensor:
        """Logits of the row's targets, [T, codebooks, V]."""
        config = self.config
        x = embed(row.text, row.frame, row.codes, self.text_table, self.audio_table, config.audio_vocab_size)
        for layer in self.layers[:-1]:
            heads = self._attend(layer, x, row, attention)
            x = self._feed(layer, x, heads)
        heads = self._attend(self.layers[-1], x, row, attention)
        x = self._feed(self.layers[-1], x[row.targets], heads[row.targets])
        logits = rms_norm(x, self.norm, config.rms_norm_eps) @ self.heads
        return logits.unflatten(-1, (config.num_audio_codebook, config.audio_vocab_size))

    def _attend(self, layer: PackedLayer, x: Tensor, row: Row, attention: Attention) -> Tensor:
        """The heads' outputs, [P, heads * D]."""
        config = self.config
        q_heads, k_heads = config.num_attention_heads, config.num_key_value_heads
        qkv = rms_norm(x, layer.input_norm, config.rms_norm_eps) @ layer.qkv
        qkv = qkv.unflatten(-1, (q_heads + 2 * k_heads, config.head_dim))
        norm_and_rotate(qkv, layer.q_norm, layer.k_norm, self.cos, self.sin, row.place, q_heads, config.rms_norm_eps)
        q, k, v = qkv.split((q_heads, k_heads, k_heads), dim=1)
        return attention(q, k, v).flatten(1)

    def _feed(self, layer: PackedLayer, x: Tensor, heads: Tensor) -> Tensor:
        """The rest of a layer; x: [P, H], written over."""
        x = x.addmm_(heads, layer.o)
        hidden = swiglu(rms_norm(x, layer.post_norm, self.config.rms_norm_eps) @ layer.gate_up)
        return x.addmm_(hidden, layer.down)


def _packed(layer) -> PackedLayer:
    attention, mlp = layer.self_attn, layer.mlp

    def joined(*parts) -> Tensor:
        return torch.cat([part.weight.detach() for part in parts]).t()

    return PackedLayer(
        layer.input_layernorm.weight.detach(),
        joined(attention.q_proj, attention.k_proj, attention.v_proj),
        attention.q_norm.weight.detach(),
        attention.k_norm.weight.detach(),
        attention.o_proj.weight.detach().t(),
        layer.post_attention_layernorm.weight.detach(),
        joined(mlp.gate_proj, mlp.up_proj),
        mlp.down_proj.weight.detach().t(),
    )

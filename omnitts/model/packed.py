"""The backbone for a GPU: the same function as `backbone.OmniVoice`, over one packed row, in few and large kernels.

Weights are joined where they read the same input (queries with keys and values, gates with ups), the residual is added
by the matrix product, and all else between the products is one pass of a kernel each. The last layer goes on with the
target rows alone, once every position has given its keys and values.

In float8 the layers' products take e4m3 numbers, with a scale for each output channel of a weight and for each row of
an input; their results, the residual, attention and the heads stay in half precision.
"""

from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from omnitts.model.attention import Attention, is_hopper
from omnitts.model.backbone import Layer, OmniVoice
from omnitts.model.checkpoint import ModelConfig
from omnitts.model.kernels import (
    embed,
    norm_and_rotate,
    rms_norm,
    rms_norm_float8,
    swiglu,
    swiglu_float8,
    to_float8,
)

_PLACES = 16_384  # positions of a document, to begin with: over ten minutes of audio


@dataclass(frozen=True)
class Float8:
    """A matrix or rows in e4m3, with the scale of each column of a matrix [1, N], or of each row [P, 1]."""

    values: Tensor
    scale: Tensor


@dataclass(frozen=True)
class PackedLayer:
    """A layer's weights; matrices are [in, out] views of what a Linear stores."""

    input_norm: Tensor
    qkv: Tensor | Float8
    q_norm: Tensor
    k_norm: Tensor
    o: Tensor | Float8
    post_norm: Tensor
    gate_up: Tensor | Float8  # in alternation, as `hopper.alternated` gives them, if the products are fused
    down: Tensor | Float8


@dataclass(frozen=True)
class Row:
    """What a packed row of P positions holds; tensors on the device. Padding has neither text nor frame."""

    text: Tensor  # int32 [P], a token id or -1
    frame: Tensor  # int32 [P], a row of `codes` or -1
    place: Tensor  # int32 [P], counted from each document's start
    codes: Tensor  # int32 [F, C], the canvas and then the frames of references
    targets: Tensor | None  # int64 [T], the positions whose logits are wanted; None: all
    slots: Tensor | None = None  # int64 [P], where in memory their keys and values belong; None: in the row's order


class PackedModel:
    """The weights of an `OmniVoice`, which is used up by it, and the forward pass over a `Row`."""

    def __init__(self, model: OmniVoice, *, float8: bool = False):
        self.config: ModelConfig = model.config
        self.float8 = float8
        self.fused = _can_fuse(model, float8)
        self.text_table = model.llm.embed_tokens.weight.detach()
        self.audio_table = model.audio_embeddings.weight.detach()
        self.heads = model.audio_heads.weight.detach().t()
        self.norm = model.llm.norm.weight.detach()
        self.device, self.dtype = self.heads.device, self.heads.dtype
        self.layers = []
        while len(model.llm.layers):  # layer by layer, so that two copies of the model are never there
            self.layers.append(_packed(model.llm.layers[0], float8, self.fused))
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

    def memory(self, positions: int) -> Tensor:
        """Room for the keys and values of so many positions, and of one that is none: [layers, P + 1, 2 * heads, D]."""
        config = self.config
        heads = 2 * config.num_key_value_heads
        sizes = config.num_hidden_layers, positions + 1, heads, config.head_dim
        return torch.zeros(*sizes, dtype=self.dtype, device=self.device)

    def logits(self, row: Row, attention: Attention, memory: Tensor | None = None) -> Tensor:
        """Logits of the row's targets, [T, codebooks, V].

        memory: keys and values of a whole row. A row without slots leaves its own there; one with slots puts its own
        there, and attends to all that is there: so a row of targets can do without the rest of the documents.
        """
        config = self.config
        x = embed(row.text, row.frame, row.codes, self.text_table, self.audio_table, config.audio_vocab_size)
        memories = [None] * len(self.layers) if memory is None else memory
        delta = None
        for layer, kept in zip(self.layers[:-1], memories[:-1], strict=True):
            heads = self._attend(layer, x, delta, row, attention, kept)
            delta = self._feed(layer, x, heads)
        heads = self._attend(self.layers[-1], x, delta, row, attention, memories[-1])
        if row.targets is not None:
            x, heads = x[row.targets], heads[row.targets]
        delta = self._feed(self.layers[-1], x, heads)
        logits = rms_norm(x, self.norm, config.rms_norm_eps, delta) @ self.heads
        return logits.unflatten(-1, (config.num_audio_codebook, config.audio_vocab_size))

    def _attend(
        self,
        layer: PackedLayer,
        x: Tensor,
        delta: Tensor | None,
        row: Row,
        attention: Attention,
        memory: Tensor | None,
    ) -> Tensor:
        """The heads' outputs, [P, heads * D]; x: [P, H], to which a delta is added in place."""
        config = self.config
        q_heads, k_heads = config.num_attention_heads, config.num_key_value_heads
        rows, heads, eps = self._normed(x, delta, layer.input_norm), (q_heads, k_heads), config.rms_norm_eps
        rotation = layer.q_norm, layer.k_norm, self.cos, self.sin, row.place
        if self.fused and len(x) >= hopper().FEW_ROWS:
            qkv = hopper().rotated_product(*_operands(rows, layer.qkv), *rotation, heads, eps)
        else:
            qkv = _product(rows, layer.qkv).unflatten(-1, (q_heads + 2 * k_heads, config.head_dim))
            norm_and_rotate(qkv, *rotation, q_heads, eps)
        q, kv = qkv.split((q_heads, 2 * k_heads), dim=1)
        if memory is not None:
            if row.slots is None:
                memory[: len(kv)].copy_(kv)
            else:
                kv = memory.index_copy_(0, row.slots, kv)
        return attention(q, *kv.split(k_heads, dim=1)).flatten(1)

    def _feed(self, layer: PackedLayer, x: Tensor, heads: Tensor) -> Tensor | None:
        """The rest of a layer; x: [P, H], added to in place. What is still to be added to it, if anything."""
        delta = self._add(x, self._quantised(heads), layer.o)
        rows = self._normed(x, delta, layer.post_norm)
        if self.fused:
            hidden = self._quantised(hopper().swiglu_product(*_operands(rows, layer.gate_up)))
        elif self.float8:
            hidden = Float8(*swiglu_float8(_product(rows, layer.gate_up)))
        else:
            hidden = swiglu(_product(rows, layer.gate_up))
        return self._add(x, hidden, layer.down)

    def _normed(self, x: Tensor, delta: Tensor | None, weight: Tensor) -> Tensor | Float8:
        if self.float8:
            return Float8(*rms_norm_float8(x, weight, self.config.rms_norm_eps, delta))
        return rms_norm(x, weight, self.config.rms_norm_eps, delta)

    def _quantised(self, rows: Tensor) -> Tensor | Float8:
        return Float8(*to_float8(rows)) if self.float8 else rows

    def _add(self, x: Tensor, rows: Tensor | Float8, matrix: Tensor | Float8) -> Tensor | None:
        """x += rows @ matrix: by the product itself, or, in float8, by the next norm, which is given the result."""
        if isinstance(rows, Float8):
            return _product(rows, matrix)
        x.addmm_(rows, matrix)
        return None


def _product(rows: Tensor | Float8, matrix: Tensor | Float8) -> Tensor:
    """[P, in] @ [in, out] -> [P, out] in half precision."""
    if isinstance(rows, Float8):
        return torch._scaled_mm(
            rows.values, matrix.values, rows.scale, matrix.scale, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    return rows @ matrix


def _operands(rows: Tensor | Float8, matrix: Tensor | Float8) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """What `hopper`'s products take: rows, the matrix as [out, in], and float8's scales."""
    if isinstance(rows, Float8):
        return rows.values, matrix.values.t(), (rows.scale, matrix.scale)
    return rows, matrix.t(), None


def hopper() -> ModuleType:
    """The kernels for Hopper GPUs, where they are known to be importable."""
    from omnitts.model import hopper

    return hopper


def _can_fuse(model: OmniVoice, float8: bool) -> bool:
    """Whether products and what follows them can be one kernel: on a Hopper GPU, with sizes like OmniVoice's."""
    config, weight = model.config, model.audio_heads.weight
    if not is_hopper(weight.device, weight.dtype):
        return False
    kernels = hopper()
    attention, mlp = model.llm.layers[0].self_attn, model.llm.layers[0].mlp
    heads = config.num_attention_heads, config.num_key_value_heads
    return (
        config.head_dim == kernels.HEAD
        and not any(count % 2 for count in heads)
        and kernels.fits(attention.q_proj.weight, attention.k_proj.weight, mlp.gate_proj.weight)
        and kernels.fused_products_work(weight.device, float8)
    )


def _packed(layer: Layer, float8: bool, fused: bool) -> PackedLayer:
    attention, mlp = layer.self_attn, layer.mlp
    gate, up = mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()

    def matrix(weight: Tensor) -> Tensor | Float8:
        if not float8:
            return weight.t()
        values, scale = to_float8(weight)
        return Float8(values.t(), scale.t())

    return PackedLayer(
        layer.input_layernorm.weight.detach(),
        matrix(torch.cat([part.weight.detach() for part in (attention.q_proj, attention.k_proj, attention.v_proj)])),
        attention.q_norm.weight.detach(),
        attention.k_norm.weight.detach(),
        matrix(attention.o_proj.weight.detach()),
        layer.post_attention_layernorm.weight.detach(),
        matrix(hopper().alternated(gate, up) if fused else torch.cat([gate, up])),
        matrix(mlp.down_proj.weight.detach()),
    )

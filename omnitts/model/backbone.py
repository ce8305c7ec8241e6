"""The backbone: a Qwen3 body that reads text and audio embeddings and predicts all codebooks of every frame.

It is bidirectional: each position of a document attends to every other position of the same document. Several
documents travel as one packed row, without padding.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from omnitts.model.checkpoint import ModelConfig


@dataclass
class Prefix:
    """Keys and values of a document's first `length` positions, to be used again in later passes.

    The pass that is given an empty one computes the whole document, and fills it. One that is given a filled one gets
    the rest of the document alone, which attends to the prefix as it was.
    """

    length: int
    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # keys and values, [length, kv heads, D]

    @property
    def filled(self) -> bool:
        return bool(self.layers)

    def join(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values that a document's positions see in a layer, given those that the pass computed."""
        if len(self.layers) == layer:
            self.layers.append((k[: self.length].clone(), v[: self.length].clone()))
            return k, v
        before = self.layers[layer]
        return torch.cat([before[0], k]), torch.cat([before[1], v])


class Attention(nn.Module):
    """Grouped-query attention with a per-head RMSNorm on queries and keys, without a causal mask."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.head_dim = config.head_dim
        self.groups = config.num_attention_heads // config.num_key_value_heads
        query_width = config.num_attention_heads * config.head_dim
        key_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.q_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)
        self.k_norm = nn.RMSNorm(config.head_dim, eps=config.rms_norm_eps)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], bounds: list[int], prefixes: Sequence[Prefix | None], layer: int
    ) -> Tensor:
        """x: [P, H] -> [P, H]; rope: see `rotate`; bounds: where documents begin and end, from 0 to P."""
        q = rotate(self.q_norm(self.q_proj(x).unflatten(-1, (-1, self.head_dim))), rope)
        k = rotate(self.k_norm(self.k_proj(x).unflatten(-1, (-1, self.head_dim))), rope)
        v = self.v_proj(x).unflatten(-1, (-1, self.head_dim))
        heads = []
        for (a, b), prefix in zip(pairwise(bounds), prefixes, strict=True):
            seen = (k[a:b], v[a:b]) if prefix is None else prefix.join(layer, k[a:b], v[a:b])
            heads.append(attend(q[a:b], *seen, self.groups))
        return self.o_proj(torch.cat(heads).flatten(1))


def attend(q: Tensor, k: Tensor, v: Tensor, groups: int) -> Tensor:
    """Attention within one document. q: [L, heads, D]; k, v: [M, heads / groups, D] -> [L, heads, D]."""
    q, k, v = (t.transpose(0, 1) for t in (q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)))
    return F.scaled_dot_product_attention(q[None], k[None], v[None])[0].transpose(0, 1)


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary position embedding, pairing i with i + D/2. x: [P, heads, D]; rope: cos and sin, [P, 1, D/2] each."""
    cos, sin = rope
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class MLP(nn.Module):
    """SwiGLU: a gated feed-forward layer, position by position."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [P, H] -> [P, H]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then the feed-forward layer, each normalized before and added to its input."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, rope: tuple[Tensor, Tensor], bounds: list[int], prefixes: Sequence[Prefix | None], layer: int
    ) -> Tensor:
        """x: [P, H] -> [P, H]; the others as in `Attention`."""
        x = x + self.self_attn(self.input_layernorm(x), rope, bounds, prefixes, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    """The Qwen3 stack; parameter names are the checkpoint's."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, x: Tensor, lengths: list[int], prefixes: Sequence[Prefix | None] | None = None) -> Tensor:
        """x: [P, H], documents of the given lengths end to end -> final hidden states [P, H]."""
        prefixes = prefixes or [None] * len(lengths)
        starts = [prefix.length if prefix is not None and prefix.filled else 0 for prefix in prefixes]
        rope = self.rope(lengths, x.device, x.dtype, starts)
        bounds = [0]
        for length in lengths:
            bounds.append(bounds[-1] + length)
        for number, layer in enumerate(self.layers):
            x = layer(x, rope, bounds, prefixes, number)
        return self.norm(x)

    def rope(
        self, lengths: list[int], device: torch.device, dtype: torch.dtype, starts: list[int]
    ) -> tuple[Tensor, Tensor]:
        """cos and sin [P, 1, D/2]; positions begin anew in each document, at its start. Angles are taken in float32."""
        dim = self.config.head_dim
        exponent = torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim
        inverse_frequency = 1.0 / self.config.rope_theta**exponent
        each = zip(starts, lengths, strict=True)
        position = torch.cat([torch.arange(a, a + n, dtype=torch.float32, device=device) for a, n in each])
        angle = position[:, None, None] * inverse_frequency
        return angle.cos().to(dtype), angle.sin().to(dtype)


class OmniVoice(nn.Module):
    """Embeddings in, logits of the target frames out."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        audio_rows = config.num_audio_codebook * config.audio_vocab_size
        self.llm = Body(config)
        self.audio_embeddings = nn.Embedding(audio_rows, config.hidden_size)
        self.audio_heads = nn.Linear(config.hidden_size, audio_rows, bias=False)

    def embed_text(self, ids: Tensor) -> Tensor:
        """ids: int64 [L] -> [L, H]."""
        return self.llm.embed_tokens(ids)

    def embed_audio(self, codes: Tensor) -> Tensor:
        """codes: int64 [frames, codebooks] -> [frames, H], the sum of the codebooks' embeddings."""
        codebook = torch.arange(self.config.num_audio_codebook, device=codes.device)
        return self.audio_embeddings(codes + codebook * self.config.audio_vocab_size).sum(dim=1)

    def forward(
        self, documents: list[Tensor], targets: list[int], prefixes: Sequence[Prefix | None] | None = None
    ) -> Tensor:
        """Logits of the last `targets[i]` positions of each document, end to end: [sum(targets), codebooks, V].

        documents: embeddings [L_i, H], one a document; prefixes: of each document, see `Prefix`. On a GPU all documents
        go through as one packed row. On the CPU each goes through alone: a matrix product rounds differently at another
        number of rows, and there a batch gains no speed, so that an utterance's result can be bit-identical in every
        batch.
        """
        prefixes = prefixes or [None] * len(documents)
        if documents[0].device.type == "cpu":
            each = zip(documents, targets, prefixes, strict=True)
            return torch.cat([self._logits([document], [target], [prefix]) for document, target, prefix in each])
        return self._logits(documents, targets, prefixes)

    def _logits(self, documents: list[Tensor], targets: list[int], prefixes: Sequence[Prefix | None]) -> Tensor:
        lengths = [len(document) for document in documents]
        hidden = self.llm(torch.cat(documents), lengths, prefixes)
        ends = zip(hidden.split(lengths), targets, strict=True)
        target_hidden = torch.cat([document[len(document) - target :] for document, target in ends])
        logits = self.audio_heads(target_hidden)
        return logits.unflatten(-1, (self.config.num_audio_codebook, self.config.audio_vocab_size))

"""Trains the model on codes.

    python -m training.model TOKENS corpus.txt --out MODEL --seconds 250

Goes on from what is in MODEL, unless --fresh is given. The loss is OmniVoice's: cells of the target are masked at
random, and the model names the codes under the masks, with the codebooks weighted 8 8 6 6 4 4 2 2. A head in the middle
of the network, dropped afterwards, names the phones of the target frames and how far the text has been read.
"""

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from omnitts.model.backbone import Layer, OmniVoice, attend, rotate
from omnitts.model.checkpoint import read_model_config
from scripts.make_random_checkpoint import byte_tokenizer
from training.data import LABELS, read_lines
from training.documents import Rows
from training.loop import Average, Captured, Clock
from training.optimizer import Optimizer
from training.pieces import have_pieces, load_pieces, save_pieces
from training.teacher import PHONES
from training.tokens import Tokens, load

CONFIG = {
    "architectures": ["OmniVoice"],
    "audio_codebook_weights": [8, 8, 6, 6, 4, 4, 2, 2],
    "audio_mask_id": 1024,
    "audio_vocab_size": 1025,
    "dtype": "float16",
    "llm_config": {
        "attention_bias": False,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 256,
        "intermediate_size": 640,
        "max_position_embeddings": 4096,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 10,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_sliding_window": False,
        "vocab_size": 264,
    },
    "model_type": "omnivoice",
    "num_audio_codebook": 8,
}
MATRICES = ("llm.layers",)
PROGRESS_BINS = 64
LONGEST = 2048  # positions of a document, more than the longest has


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the model on codes.")
    parser.add_argument("tokens", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--fresh", action="store_true", help="start anew though there is a model in OUT")
    parser.add_argument("--positions", type=int, default=32_768, help="length of a packed row")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    tokens = load(args.tokens)
    rows = Rows(tokens, read_lines(args.corpus), byte_tokenizer(), args.positions, seed=args.seed)
    loader = DataLoader(rows, batch_size=None, num_workers=args.workers, prefetch_factor=6 if args.workers else None)
    training = Training.start(args.out, device, args.fresh)
    run(training, tokens, iter(loader), args.positions, args.seconds, args.rate)
    save_pieces(args.out, "model", training.state_dict())


class Training(nn.Module):
    """The model, and the heads of the middle that only training needs."""

    def __init__(self, config_file: Path):
        super().__init__()
        self.model = OmniVoice(read_model_config(config_file))
        width = self.model.config.hidden_size
        self.phones = nn.Linear(width, LABELS * len(PHONES))
        self.progress = nn.Linear(width, LABELS * PROGRESS_BINS)
        self.middle = self.model.config.num_hidden_layers // 2
        self.before, self.after, self.losses = before_attention, after_attention, cell_losses

    def compile(self) -> None:
        """Fuses what lies around the attention, and the loss."""
        self.before, self.after, self.losses = map(torch.compile, (before_attention, after_attention, cell_losses))

    @classmethod
    def start(cls, folder: Path, device: torch.device, fresh: bool = False) -> "Training":
        """From the weights in the folder, or from random ones."""
        folder.mkdir(parents=True, exist_ok=True)
        config_file = folder / "config.json"
        config_file.write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
        training = cls(config_file)
        if fresh or not have_pieces(folder, "model"):
            training.initialize()
        else:
            training.load_state_dict(load_pieces(folder, "model"))
        return training.to(device)

    @torch.no_grad()
    def initialize(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()  # each layer starts as nothing
            elif "embed" in name:
                parameter.normal_(std=0.02 if "audio" in name else 0.05)
            elif parameter.ndim == 2:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
        self.model.audio_heads.weight.mul_(0.1)

    def forward(self, x: Tensor, position: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings x [P, H] -> the last hidden states and those of the middle, [P, H] each."""
        body = self.model.llm
        frequency = body.config.rope_theta ** -(
            torch.arange(0, body.config.head_dim, 2, device=x.device) / body.config.head_dim
        )
        angle = position[:, None, None] * frequency
        rope = angle.cos(), angle.sin()
        middle = x
        for number, layer in enumerate(body.layers):
            if number == self.middle:
                middle = x
            q, k, v = self.before(layer, x, rope)
            x = self.after(layer, x, attend_packed(q, k, v, bounds))
        return body.norm(x), middle


def before_attention(layer: Layer, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """What `Attention` does before it attends; x: [P, H]."""
    attention, x = layer.self_attn, layer.input_layernorm(x)
    q, k, v = (
        projection(x).unflatten(-1, (-1, attention.head_dim))
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    q, k = rotate(attention.q_norm(q), rope), rotate(attention.k_norm(k), rope)
    k, v = (t.repeat_interleave(attention.groups, 1) for t in (k, v))
    return q, k, v


def after_attention(layer: Layer, x: Tensor, heads: Tensor) -> Tensor:
    """The rest of a layer; x: [P, H]; heads: [P, heads, D]."""
    x = x + layer.self_attn.o_proj(heads.flatten(1))
    return x + layer.mlp(layer.post_attention_layernorm(x))


def attend_packed(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor) -> Tensor:
    """Attention within each document: q, k, v [P, heads, D]; bounds int32 [documents + 1] -> [P, heads, D]."""
    if q.device.type == "cuda":
        q, k, v = (t.bfloat16() for t in (q, k, v))
        return torch.ops.aten._flash_attention_forward(q, k, v, bounds, bounds, LONGEST, LONGEST, 0.0, False, False)[0]
    ends = sorted(set(bounds.tolist()))
    return torch.cat([attend(q[a:b], k[a:b], v[a:b], 1) for a, b in pairwise(ends)])


class Batch:
    """A packed row on the device, always in the same place, as a captured step needs it."""

    def __init__(self, tokens: Tokens, first: dict[str, Tensor], device: torch.device):
        self.codes = torch.from_numpy(tokens.codes).to(device)
        self.phones = torch.from_numpy(tokens.phones).to(device)
        self.row = {name: value.to(device) for name, value in first.items()}
        self.room = int(len(first["text"]) * 0.7)  # target frames are about half of the positions

    def fill(self, row: dict[str, Tensor]) -> None:
        for name, value in row.items():
            self.row[name].copy_(value, non_blocking=True)


def masked_step(training: Training, batch: Batch, optimizer: Optimizer, average: Average):
    model, row = training.model, batch.row
    codebooks, mask_id, size = (
        model.config.num_audio_codebook,
        model.config.audio_mask_id,
        model.config.audio_vocab_size,
    )
    device = batch.codes.device
    offset = torch.arange(codebooks, device=device) * size
    weight = torch.tensor(CONFIG["audio_codebook_weights"], device=device, dtype=torch.float32)

    def step() -> dict[str, Tensor]:
        optimizer.zero_grad()
        target, document = row["target"][: batch.room], row["document"][: batch.room]
        real = target >= 0
        at = target.clamp(min=0)
        frame = row["frame"]
        codes = batch.codes[frame.clamp(min=0)].long()
        answer = codes[at]
        hidden = torch.rand(answer.shape, device=device) >= row["revealed"][document]
        hidden = hidden & real[:, None]
        # Frames that do not exist go to a place of their own, behind the row.
        shown = torch.cat([codes, codes[:1]])
        shown = shown.index_copy(
            0,
            torch.where(real, at, len(codes)),
            torch.where(hidden, mask_id, answer) * real[:, None],
        )[:-1]
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False):
            audio = F.embedding(shown + offset, model.audio_embeddings.weight).sum(1)
            text = F.embedding(row["text"].clamp(min=0), model.llm.embed_tokens.weight)
            x = torch.where((frame >= 0)[:, None], audio, text * (row["text"] >= 0)[:, None])
            last, middle = training(x, row["position"], row["bounds"])
            losses = training.losses(model.audio_heads(last[at]), answer)
            at_middle = F.rms_norm(middle[at], (middle.shape[1],))
            phones, progress = training.phones(at_middle), training.progress(at_middle)
        counted = hidden * weight
        loss = (losses * counted).sum() / counted.sum()
        labels = batch.phones[frame[at].clamp(min=0)].long()
        phone = label_loss(phones, labels, len(PHONES), real)
        bins = (row["progress"][: batch.room] * PROGRESS_BINS).long().clamp(max=PROGRESS_BINS - 1)
        read = label_loss(progress, bins, PROGRESS_BINS, real)
        (loss + 0.3 * phone + 0.1 * read).backward()
        optimizer.step()
        average.update()
        by_codebook = (losses.detach() * hidden).sum(0) / hidden.sum(0)
        return {"loss": loss.detach(), "phone": phone.detach(), "read": read.detach(), "codebooks": by_codebook}

    return step


def cell_losses(logits: Tensor, answer: Tensor) -> Tensor:
    """Cross-entropy of each cell: logits [T, 8 * V], answer [T, 8] -> float32 [T, 8]."""
    logits = logits.unflatten(-1, (answer.shape[1], -1)).float()
    return logits.logsumexp(-1) - logits.gather(-1, answer[..., None])[..., 0]


def label_loss(logits: Tensor, labels: Tensor, classes: int, real: Tensor) -> Tensor:
    """Mean cross-entropy of the labels [T, 2] of the frames that are real."""
    loss = F.cross_entropy(logits.float().reshape(-1, classes), labels.flatten(), reduction="none")
    return (loss.view_as(labels) * real[:, None]).sum() / (2 * real.sum())


def run(training: Training, tokens: Tokens, rows, positions: int, seconds: float, rate: float) -> None:
    device = next(training.parameters()).device
    batch = Batch(tokens, next(rows), device)
    optimizer = Optimizer(training.named_parameters(), MATRICES)
    average = Average(training)
    start = time.time()
    if device.type == "cuda":
        training.compile()
    captured = Captured(masked_step(training, batch, optimizer, average), device)
    print(f"captured after {time.time() - start:.1f} s, {sum(p.numel() for p in training.model.parameters())} weights")
    clock = Clock(seconds, rate)
    while clock.share < 1:
        batch.fill(next(rows))
        optimizer.rate.fill_(clock.rate())
        results = captured()
        if clock.steps % 250 == 1 or device.type == "cpu":
            shown = " ".join(f"{name} {value.item():.3f}" for name, value in results.items() if value.ndim == 0)
            each = " ".join(f"{value:.2f}" for value in results["codebooks"].tolist())
            print(f"step {clock.steps} at {clock.share:.0%}: {shown} | {each}", flush=True)
    average.apply()
    print(f"{clock.steps} steps of {positions} positions in {time.time() - start:.0f} s")


if __name__ == "__main__":
    main()

"""The clips as codes: what the model is trained on, in a few files small enough to travel.

python -m training.tokens DATA CODEC --out TOKENS
"""

import argparse
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from training.codec import Training, upsampled
from training.data import LABELS, Clip, load_shard

FRAMES_A_FILE = 1_200_000  # 12 MB of codes, and labels that shrink to little
_BATCH = 256


@dataclass(frozen=True)
class Tokens:
    """Clips end to end. Clip i has frames[i] frames; the arrays by frame hold the clips in order."""

    line: np.ndarray  # int32 [clips], of the training text
    speaker: np.ndarray  # uint8 [clips]
    frames: np.ndarray  # int32 [clips]
    codes: np.ndarray  # int16 [frames, 8]
    phones: np.ndarray  # uint8 [frames, 2]
    order: np.ndarray  # int16 [frames, 2]: which phone of its line


def main() -> None:
    parser = argparse.ArgumentParser(description="Turn the shards into codes.")
    parser.add_argument("data", type=Path)
    parser.add_argument("codec", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most-hours", type=float, default=1000.0)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clips, frames = [], 0
    for file in sorted(args.data.glob("*.npz")):
        if frames < args.most_hours * 90_000:
            shard = load_shard(file)
            clips += shard
            frames += sum(clip.frames for clip in shard)
    codes = encode(clips, Training.start(args.codec, device))
    args.out.mkdir(parents=True, exist_ok=True)
    for number, group in enumerate(split(clips)):
        save(args.out / f"tokens-{number}.npz", [clips[i] for i in group], [codes[i] for i in group])
    used = [len(np.unique(layer)) for layer in np.concatenate(codes, axis=1)]
    print(f"{len(clips)} clips, {frames / 90_000:.1f} h; codes used of each codebook: {used}")


@torch.inference_mode()
def encode(clips: list[Clip], training: Training) -> list[np.ndarray]:
    """The codes of each clip, int16 [8, frames]. Clips of one length go through together, so that none is padded."""
    device = training.counts.device
    by_length = defaultdict(list)
    for index, clip in enumerate(clips):
        by_length[clip.frames].append(index)
    codes: list = [None] * len(clips)
    for members in by_length.values():
        for start in range(0, len(members), _BATCH):
            some = members[start : start + _BATCH]
            waves = upsampled(np.stack([clips[i].wave for i in some]), device).float() / 32768
            batch = training.codec.quantizer.encode(training.encoder(waves)).to(torch.int16).cpu().numpy()
            for index, row in zip(some, batch, strict=True):
                codes[index] = row
    return codes


def split(clips: list[Clip]) -> list[list[int]]:
    groups: list[list[int]] = [[]]
    size = 0
    for index, clip in enumerate(clips):
        if size > FRAMES_A_FILE:
            groups.append([])
            size = 0
        groups[-1].append(index)
        size += clip.frames
    return groups


def save(file: Path, clips: list[Clip], codes: list[np.ndarray]) -> None:
    """Codes take 10 bits each: their low bytes, and the high two bits of four codes in a byte."""
    flat = np.concatenate(codes, axis=1).T
    high = (flat >> 8).astype(np.uint8).reshape(-1, 4)
    order = np.concatenate([clip.order for clip in clips])
    np.savez_compressed(
        file,
        line=np.array([clip.line for clip in clips], np.int32),
        speaker=np.array([clip.speaker for clip in clips], np.uint8),
        frames=np.array([clip.frames for clip in clips], np.int32),
        low=(flat & 255).astype(np.uint8),
        high=(high << np.array([0, 2, 4, 6], np.uint8)).sum(1).astype(np.uint8),
        phones=np.concatenate([clip.phones for clip in clips]).reshape(-1, LABELS),
        order=np.diff(order, prepend=np.int16(0)),  # mostly 0 and 1, which shrinks well
    )


def load(folder: Path) -> Tokens:
    """All that `save` wrote into a folder."""
    parts = [_load_file(file) for file in sorted(folder.glob("tokens-*.npz"))]
    names = Tokens.__dataclass_fields__
    return Tokens(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _load_file(file: Path) -> Tokens:
    with np.load(file) as content:
        low = content["low"].astype(np.int16)
        high = (content["high"][:, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
        return Tokens(
            line=content["line"],
            speaker=content["speaker"],
            frames=content["frames"],
            codes=low + (high.reshape(-1, low.shape[1]).astype(np.int16) << 8),
            phones=content["phones"],
            order=np.cumsum(content["order"], dtype=np.int16).reshape(-1, LABELS),
        )


if __name__ == "__main__":
    main()

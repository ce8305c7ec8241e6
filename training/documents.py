"""Training documents from clips: prompts as omnitts builds them, references, targets, and packed rows of them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from omnitts.model.text import add_end_mark, build_prompt_text, encode_prompts
from training.teacher import GENDERS, SPEAKERS
from training.tokens import Tokens

UNCONDITIONAL = 0.1  # share of documents that are targets alone, for guidance
REFERENCE = 0.5
INSTRUCT = 0.6  # of those without a reference
LANGUAGE = 0.5
OTHER_ITEMS = ("low pitch", "high pitch", "young adult", "middle-aged", "american accent", "british accent")
MOST_TARGET = 750  # frames: 30 s, the longest that omnitts makes in one piece
MOST_REFERENCE = 400
LEAST_REFERENCE = 50
MASK_STEPS = 512


@dataclass(frozen=True)
class Packed:
    """A row of P positions, documents end to end; what is left over at its end is a document of padding.

    Every position is a text token (text >= 0), a frame of a clip (frame >= 0), or padding.
    """

    text: np.ndarray  # int64 [P], token id or -1
    frame: np.ndarray  # int64 [P], index into Tokens.codes or -1
    position: np.ndarray  # float32 [P], counted from each document's start
    target: np.ndarray  # int64 [T], the positions of the target frames; -1 beyond the last
    document: np.ndarray  # int64 [T], whose they are
    progress: np.ndarray  # float32 [T, 2], how much of the target's phones has been said at each label
    revealed: np.ndarray  # float32 [documents, 8], the chance of a target cell of each codebook to be given
    bounds: np.ndarray  # int32 [documents + 1], where documents begin and end, from 0 to P


class Documents:
    """Draws documents at random and packs them into rows."""

    def __init__(self, tokens: Tokens, lines: list[str], tokenizer: Tokenizer, positions: int, seed: int):
        self.tokens, self.lines, self.tokenizer, self.positions = tokens, lines, tokenizer, positions
        self.rng = np.random.default_rng(seed)
        self.first = np.concatenate([[0], np.cumsum(tokens.frames)])
        self.of_speaker = [np.flatnonzero(tokens.speaker == speaker) for speaker in range(len(SPEAKERS))]
        self.reveal = reveal_chances()
        self.most_documents = positions // 32

    def __iter__(self) -> Iterator[Packed]:
        while True:
            yield self.pack()

    def pack(self) -> Packed:
        positions = self.positions
        text = np.full(positions, -1, np.int64)
        frame = np.full(positions, -1, np.int64)
        position = np.zeros(positions, np.float32)
        target = np.full(positions, -1, np.int64)
        document = np.zeros(positions, np.int64)
        progress = np.zeros((positions, 2), np.float32)
        revealed = np.ones((self.most_documents, 8), np.float32)
        bounds = [0]
        used = 0
        while len(bounds) < self.most_documents:
            ids, reference, wanted, said = self.draw()
            start, length = bounds[-1], len(ids) + len(reference) + len(wanted)
            if start + length > positions:
                break
            body = start + len(ids) + len(reference)
            text[start : start + len(ids)] = ids
            frame[start + len(ids) : body] = reference
            frame[body : start + length] = wanted
            position[start : start + length] = np.arange(length)
            span = slice(used, used + len(wanted))
            target[span] = np.arange(body, start + length)
            document[span] = len(bounds) - 1
            progress[span] = said
            revealed[len(bounds) - 1] = self.draw_reveal()
            used += len(wanted)
            bounds.append(start + length)
        position[bounds[-1] :] = np.arange(positions - bounds[-1])
        ends = np.full(self.most_documents + 1, positions, np.int32)
        ends[: len(bounds)] = bounds
        return Packed(text, frame, position, target, document, progress, revealed, ends)

    def draw(self) -> tuple[list[int], np.ndarray, np.ndarray, np.ndarray]:
        """One document: prompt ids, frames of the reference, frames of the target, and its progress [T, 2]."""
        rng, tokens = self.rng, self.tokens
        speaker = int(rng.integers(len(SPEAKERS)))
        target = self._clips(speaker, self._length(rng, MOST_TARGET))
        wanted, said = self._frames(target), self._progress(target)
        if rng.random() < UNCONDITIONAL:
            return [], np.zeros(0, np.int64), wanted, said
        reference, ref_text = [], None
        if rng.random() < REFERENCE:
            reference = self._clips(speaker, self._length(rng, MOST_REFERENCE), LEAST_REFERENCE)
            ref_text = add_end_mark(self._text(reference))
        instruct = None
        if rng.random() < (INSTRUCT if not reference else INSTRUCT / 2):
            others = [item for item in OTHER_ITEMS if rng.random() < 0.05]
            instruct = ", ".join([GENDERS[tokens.speaker[target[0]]], *others[:1]])
        prompt = build_prompt_text(
            self._text(target),
            language="en" if rng.random() < LANGUAGE else None,
            instruct=instruct,
            ref_text=ref_text,
            denoise=rng.random() < 0.9,
        )
        return encode_prompts(self.tokenizer, [prompt])[0], self._frames(reference), wanted, said

    @staticmethod
    def _length(rng: np.random.Generator, most: int) -> int:
        """Frames to fill: mostly what one line takes, sometimes several lines one after the other."""
        return 0 if rng.random() < 0.65 else int(rng.integers(100, most))

    def _clips(self, speaker: int, fill: int, least: int = 0) -> list[int]:
        """One clip of the speaker, and more of them while they fit into `fill` frames."""
        clips, total = [], 0
        while True:
            clip = int(self.rng.choice(self.of_speaker[speaker]))
            frames = int(self.tokens.frames[clip])
            if not clips and frames < least:
                continue
            if clips and total + frames > fill:
                return clips
            clips.append(clip)
            total += frames

    def _text(self, clips: list[int]) -> str:
        return " ".join(self.lines[self.tokens.line[clip]] for clip in clips)

    def _frames(self, clips: list[int]) -> np.ndarray:
        spans = [np.arange(self.first[clip], self.first[clip + 1]) for clip in clips]
        return np.concatenate(spans) if spans else np.zeros(0, np.int64)

    def _progress(self, clips: list[int]) -> np.ndarray:
        """How much of all clips' phones lies before each label, from 0 to 1: float32 [T, 2]."""
        said, before = [], 0
        for clip in clips:
            order = self.tokens.order[self.first[clip] : self.first[clip + 1]]
            said.append(before + order)
            before += int(order[-1, -1]) + 1
        return np.concatenate(said).astype(np.float32) / before

    def draw_reveal(self) -> np.ndarray:
        """Half the documents hide every cell with one chance, drawn evenly. The others hide as decoding does: it
        prefers low codebooks, and so leaves the high ones to the end."""
        share = self.rng.random()
        if self.rng.random() < 0.5:
            return np.full(8, share, np.float32)
        return self.reveal[int(share * MASK_STEPS)]


def reveal_chances() -> np.ndarray:
    """For each revealed share of a canvas, from 0 to 1, the share of each codebook: float32 [MASK_STEPS, 8].

    Decoding ranks cells by -codebook plus Gumbel noise (layer penalty 5 over position temperature 5, confidences
    left aside). So cells are drawn without replacement, of weight exp(-codebook), and after a time t one is revealed
    with the chance 1 - exp(-t * weight).
    """
    weight = np.exp(-np.arange(8))
    times = np.geomspace(1e-4, 2e4, 20_000)
    chances = 1 - np.exp(-times[:, None] * weight)
    shares = (np.arange(MASK_STEPS) + 0.5) / MASK_STEPS
    return chances[np.searchsorted(chances.mean(1), shares)].astype(np.float32)


class Rows(torch.utils.data.IterableDataset):
    """`Documents` for a loader's workers, each with a seed of its own."""

    def __init__(self, *arguments, seed: int):
        self.arguments, self.seed = arguments, seed

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = torch.utils.data.get_worker_info()
        number = 0 if worker is None else worker.id
        for row in Documents(*self.arguments, seed=self.seed * 1000 + number):
            yield {name: torch.from_numpy(value) for name, value in vars(row).items()}

"""Preparation: utterances -> pieces, the clips that the engine makes. Needs a tokenizer, but no model.

A piece is a whole utterance or one chunk of a long one. Everything about it is known beforehand, even where its
reference audio is yet to be made: the first chunk's length is planned, only its codes are not there.
"""

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from omnitts.manifest import MAX_DURATION, Utterance
from omnitts.model.chunking import chunk_length, chunk_text
from omnitts.model.duration import FRAME_RATE, estimate_frames, frames_for
from omnitts.model.text import build_prompt_text, encode_prompts
from omnitts.packing import pack
from omnitts.recipe import Recipe

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WINDOW = 1024  # utterances planned and packed together; bounds memory on long manifests
_SEED_BITS = 53  # derived seeds survive JSON readers that keep numbers as doubles


class ReferenceLike(Protocol):
    """What planning needs to know of reference audio: its transcript and its length in frames."""

    text: str

    @property
    def frames(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """One clip. The owner's reference conditions it, or, with `follows_first`, the owner's first chunk does."""

    owner: int  # index of the utterance
    chunk: int  # 0, 1, ... within the utterance
    follows_first: bool
    prompt_ids: list[int]
    reference_frames: int
    target_frames: int
    recipe: Recipe
    seed: int

    @property
    def positions(self) -> int:
        """Positions in the packed row: the conditional document, and the unconditional one when guided."""
        conditional = len(self.prompt_ids) + self.reference_frames + self.target_frames
        return conditional + (self.target_frames if self.recipe.guidance_scale > 0 else 0)


def windows(utterances: Iterable[Utterance]) -> Iterator[list[Utterance]]:
    """The utterances in lists of up to WINDOW, each of which is planned and packed on its own."""
    remaining = iter(utterances)
    while window := list(islice(remaining, WINDOW)):
        yield window


def utterance_seed(utterance: Utterance) -> int:
    """The seed that keys an utterance's noise: its own, or one derived from (recipe seed, id); "random" draws one."""
    if isinstance(utterance.seed, int):
        return utterance.seed
    if utterance.seed == "random" or utterance.recipe.seed == "random":
        return secrets.randbits(_SEED_BITS)
    return derive_seed(utterance.recipe.seed, utterance.id)


def derive_seed(seed: int, name: str) -> int:
    """A seed below 2**53 from a seed and a name (BLAKE2b)."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _SEED_BITS)


def plan_pieces(
    tokenizer: "Tokenizer",
    utterances: Sequence[Utterance],
    references: Sequence[ReferenceLike | None],
    seeds: Sequence[int],
) -> list[Piece]:
    """Splits long texts, estimates lengths and encodes prompts; the pieces of an utterance stand in order."""
    drafts = [
        draft
        for owner, (utterance, reference, seed) in enumerate(zip(utterances, references, seeds, strict=True))
        for draft in _drafts(owner, utterance, reference, seed)
    ]
    prompts = encode_prompts(tokenizer, [draft.prompt for draft in drafts])
    return [
        Piece(d.owner, d.chunk, d.follows_first, ids, d.reference_frames, d.target_frames, d.recipe, d.seed)
        for d, ids in zip(drafts, prompts, strict=True)
    ]


def too_long(piece: Piece) -> str | None:
    """Why a clip is refused: text without punctuation cannot be split, and may come out longer than is sensible."""
    seconds = piece.target_frames / FRAME_RATE
    if seconds <= MAX_DURATION:
        return None
    return (
        f"text: {seconds:.0f} s of speech without a place to split it, at most {MAX_DURATION:.0f} s are made in one "
        "piece: add punctuation"
    )


def plan_batches(pieces: Sequence[Piece], max_positions: int) -> list[list[Piece]]:
    """Packs pieces into batches, in the order in which to run them.

    First chunks that other chunks wait for go first, together; all else, the waiting chunks among it, follows.
    """
    awaited = {piece.owner for piece in pieces if piece.follows_first}
    first = [piece for piece in pieces if piece.owner in awaited and piece.chunk == 0]
    rest = [piece for piece in pieces if piece.owner not in awaited or piece.chunk > 0]
    return [
        [group[i] for i in batch]
        for group in (first, rest)
        for batch in pack([p.target_frames for p in group], [p.positions for p in group], max_positions)
    ]


@dataclass(frozen=True, slots=True)
class _Draft:
    """A piece whose prompt is still text, in the segments that are tokenized one by one."""

    owner: int
    chunk: int
    follows_first: bool
    prompt: list[str]
    reference_frames: int
    target_frames: int
    recipe: Recipe
    seed: int


def _drafts(owner: int, utterance: Utterance, reference: ReferenceLike | None, seed: int) -> Iterator[_Draft]:
    recipe = utterance.recipe
    speed = utterance.speed if utterance.speed is not None else recipe.speed
    ref_text, ref_frames = (reference.text, reference.frames) if reference is not None else (None, 0)
    text = utterance.text
    frames = frames_for(text, ref_text=ref_text, ref_frames=ref_frames, speed=speed, duration=utterance.duration)
    is_long = frames > int(recipe.audio_chunk_threshold * FRAME_RATE)
    chunks = chunk_text(text, chunk_length(text, frames, recipe.audio_chunk_duration)) if is_long else [text]
    if is_long and utterance.duration is not None:
        # The chunks together shall last as long as was asked, so the whole is spoken at this pace.
        speed = estimate_frames(text, ref_text, ref_frames) / frames
    for number, chunk in enumerate(chunks):
        if is_long:
            frames = estimate_frames(chunk, ref_text, ref_frames, speed)
        yield _Draft(
            owner,
            number,
            reference is None and number > 0,
            build_prompt_text(
                chunk,
                language=utterance.language,
                instruct=utterance.instruct,
                ref_text=ref_text,
                denoise=recipe.denoise,
            ),
            ref_frames,
            frames,
            recipe,
            seed if number == 0 else derive_seed(seed, f"chunk {number}"),
        )
        if reference is None and number == 0:
            # A voice of the model's own: the first chunk sets it, and its pace, which has the speed in it already.
            ref_text, ref_frames, speed = chunk, frames, 1.0

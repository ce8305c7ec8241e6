"""Preparation: utterances -> pieces, the clips that the engine makes. Needs a tokenizer, but no model.

A piece is a whole utterance or one chunk of a long one. Everything about it is known beforehand, even where its
reference audio is yet to be made: the first chunk's length is planned, only its codes are not there.
"""

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol

from omnitts.clips import clips_of
from omnitts.errors import InputError, shown_path
from omnitts.manifest import ManifestError, Utterance
from omnitts.model.checkpoint import Checkpoint
from omnitts.model.spoken import spoken_text
from omnitts.model.text import build_prompt_text, encode_prompts
from omnitts.model.voice import load_voice
from omnitts.packing import pack
from omnitts.recipe import Recipe

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WINDOW = 1024  # utterances planned and packed together; bounds memory on long manifests
FIRST_WINDOW = 128  # where recordings are to be read first
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
    """The utterances in lists of up to WINDOW, each of which is planned and packed on its own.

    All waits for the first one. When that holds recordings, which take a while to read and encode, it is short, and
    the next ones double: each is made ready while the one before it runs.
    """
    remaining = iter(utterances)
    first = list(islice(remaining, WINDOW))
    size = FIRST_WINDOW if any(utterance.ref_audio is not None for utterance in first) else WINDOW
    remaining = chain(first, remaining)
    while window := list(islice(remaining, size)):
        yield window
        size = min(2 * size, WINDOW)


def check_voices(
    checkpoint: Checkpoint,
    first_lines: Mapping[str, int],
    *,
    file: str | None = None,
    run_voice: str | None = None,
) -> None:
    """Raises ManifestError with each voice file that was made with another codec than the checkpoint's.

    first_lines: the first line of each voice file, by its path. file: the manifest, as messages call it.
    run_voice: the voice file given for the whole run, if any.
    """
    problems = []
    for path, line in first_lines.items():
        made_with = load_voice(path).codec
        if made_with != checkpoint.codec_digest:
            message = (
                f"{shown_path(path)} was made with another codec ({made_with}) than this checkpoint's "
                f"({checkpoint.codec_digest}): make it again with `omnitts voice create`"
            )
            place = {"field": "--voice"} if path == run_voice else {"file": file, "line": line, "field": "voice"}
            problems.append(InputError(message, **place))
    if problems:
        raise ManifestError(problems)


def tag_doubts(checkpoint: Checkpoint, first_lines: Mapping[str, int], *, file: str) -> list[str]:
    """A warning, if the lines have tags and the checkpoint was trained without.

    first_lines: the first line of each tag. file: the manifest, as messages call it.
    """
    if checkpoint.knows_tags or not first_lines:
        return []
    tags = ", ".join(f"[{tag}]" for tag in first_lines)
    message = (
        f"{checkpoint.path.name} was trained without tags, and reads {tags} as words: leave them out, or take a model "
        "that has them, such as --model k2-fsa/OmniVoice"
    )
    return [str(InputError(message, file=file, line=min(first_lines.values()), field="text"))]


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
    clips = [
        clip
        for owner, (utterance, reference, seed) in enumerate(zip(utterances, references, seeds, strict=True))
        for clip in _clips(owner, utterance, reference, seed)
    ]
    ids_of_prompts = encode_prompts(tokenizer, [prompt for prompt, _ in clips])
    return [piece(prompt_ids=ids) for (_, piece), ids in zip(clips, ids_of_prompts, strict=True)]


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


def _clips(
    owner: int, utterance: Utterance, reference: ReferenceLike | None, seed: int
) -> Iterator[tuple[list[str], Callable[..., Piece]]]:
    """Each clip's prompt, in the segments that are tokenized one by one, and what makes a piece of its ids."""
    own = (None, 0) if reference is None else (spoken_text(reference.text), reference.frames)
    chunks = clips_of(utterance, *own)
    for number, (text, frames) in enumerate(chunks):
        follows_first = reference is None and number > 0
        ref_text, ref_frames = chunks[0] if follows_first else own
        prompt = build_prompt_text(
            text,
            language=utterance.language,
            instruct=utterance.instruct,
            ref_text=ref_text,
            denoise=utterance.recipe.denoise,
        )
        yield (
            prompt,
            partial(
                Piece,
                owner=owner,
                chunk=number,
                follows_first=follows_first,
                reference_frames=ref_frames,
                target_frames=frames,
                recipe=utterance.recipe,
                seed=seed if number == 0 else derive_seed(seed, f"chunk {number}"),
            ),
        )

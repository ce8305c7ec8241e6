"""The clips of an utterance: the texts that are made one by one, and how long each is to be. Needs no tokenizer."""

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from omnitts.model.chunking import chunk_length, chunk_text
from omnitts.model.duration import FRAME_RATE, estimate_frames, frames_for

if TYPE_CHECKING:
    from omnitts.manifest import Utterance

MAX_DURATION = 600.0  # seconds
_DURATION_TOLERANCE = 0.05


def clips_of(utterance: "Utterance", ref_text: str | None, ref_frames: int) -> list[tuple[str, int]]:
    """The texts of an utterance's clips, and how many frames each takes. Without a reference ref_text is None."""
    text, recipe, duration = utterance.text, utterance.recipe, utterance.duration
    speed = utterance.speed if utterance.speed is not None else recipe.speed
    frames = frames_for(text, ref_text=ref_text, ref_frames=ref_frames, speed=speed, duration=duration)
    if frames <= int(recipe.audio_chunk_threshold * FRAME_RATE):
        return [(text, frames)]
    chunks = chunk_text(text, chunk_length(text, frames, recipe.audio_chunk_duration))
    if duration is not None:
        # The chunks together shall last as long as was asked, so the whole is spoken at this pace.
        speed = estimate_frames(text, ref_text, ref_frames) / frames
    lengths = [estimate_frames(chunks[0], ref_text, ref_frames, speed)]
    if ref_text is None:
        # A voice of the model's own: the first chunk sets it, and its pace, which has the speed in it already.
        ref_text, ref_frames, speed = chunks[0], lengths[0], 1.0
    lengths += [estimate_frames(chunk, ref_text, ref_frames, speed) for chunk in chunks[1:]]
    if duration is not None:
        lengths = _fitted(lengths, frames)
    return list(zip(chunks, lengths, strict=True))


def too_long(frames: int) -> str | None:
    """Why a clip is refused: text without punctuation cannot be split, and may come out longer than is sensible."""
    seconds = frames / FRAME_RATE
    if seconds <= MAX_DURATION:
        return None
    return (
        f"{seconds:.0f} s of speech without a place to split it, at most {MAX_DURATION:.0f} s are made in one "
        "piece: add punctuation"
    )


def _fitted(lengths: list[int], total: int) -> list[int]:
    """The chunks' lengths, scaled to add up to the `total` that was asked for where they miss it by far.

    They do when chunks are short, as the estimate lifts those. Small differences stay: the OmniVoice decoder has them.
    """
    if len(lengths) > 1 and abs(sum(lengths) - total) <= _DURATION_TOLERANCE * total:
        return lengths
    spare = total - len(lengths)  # after a frame for each
    ends = [round(spare * end / sum(lengths)) for end in accumulate(lengths)]
    return [1 + end - start for start, end in pairwise([0, *ends])]

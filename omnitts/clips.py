"""The clips of an utterance: the texts that are made one by one, and how long each is to be. Needs no tokenizer."""

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from omnitts.model.chunking import chunk_length, split_text
from omnitts.model.duration import FRAME_RATE, estimate_frames, estimate_seconds, frames_for
from omnitts.model.spoken import spoken_text, weighed_text

if TYPE_CHECKING:
    from omnitts.manifest import Utterance

MAX_DURATION = 600.0  # seconds
_DURATION_TOLERANCE = 0.05


def clips_of(utterance: "Utterance", ref_text: str | None, ref_frames: int) -> list[tuple[str, int]]:
    """The texts of an utterance's clips, as they are spoken, and how many frames each takes.

    Without a reference ref_text is None.
    """
    recipe, duration = utterance.recipe, utterance.duration
    text, weighed = spoken_text(utterance.text), weighed_text(utterance.text)
    if ref_text is not None:
        ref_text = weighed_text(ref_text)
    speed = speed_of(utterance)
    frames = frames_for(weighed, ref_text=ref_text, ref_frames=ref_frames, speed=speed, duration=duration)
    if frames <= int(recipe.audio_chunk_threshold * FRAME_RATE):
        return [(text, frames)]
    about, longest = (
        chunk_length(text, frames, seconds) for seconds in (recipe.audio_chunk_duration, recipe.audio_chunk_threshold)
    )
    chunks = split_text(text, about, longest)
    if duration is not None:
        # The chunks together shall last as long as was asked, so the whole is spoken at this pace.
        speed = estimate_frames(weighed, ref_text, ref_frames) / frames
    first, *others = map(weighed_text, chunks)
    lengths = [estimate_frames(first, ref_text, ref_frames, speed)]
    if ref_text is None:
        # A voice of the model's own: the first chunk sets it, and its pace, which has the speed in it already.
        ref_text, ref_frames, speed = first, lengths[0], 1.0
    lengths += [estimate_frames(chunk, ref_text, ref_frames, speed) for chunk in others]
    if duration is not None:
        lengths = _fitted(lengths, frames)
    return list(zip(chunks, lengths, strict=True))


def speed_of(utterance: "Utterance") -> float:
    """The line's own speed, or else its recipe's."""
    return utterance.recipe.speed if utterance.speed is None else utterance.speed


def seconds_of(utterance: "Utterance") -> float:
    """About how long it will be; its reference may set another pace."""
    if utterance.duration is not None:
        return utterance.duration
    return estimate_seconds(utterance.text) / speed_of(utterance)


def too_long(frames: int) -> str | None:
    """Why a clip is refused: a text without a blank or a mark cannot be split, and may take longer than is sensible."""
    seconds = frames / FRAME_RATE
    if seconds <= MAX_DURATION:
        return None
    return (
        f"{seconds:.0f} s of speech without a place to split it, at most {MAX_DURATION:.0f} s are made in one "
        "piece: add punctuation, or blanks between its words"
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

from dataclasses import replace

import pytest

from omnitts.clips import _fitted, clips_of, too_long
from omnitts.manifest import read_utterances
from omnitts.model.duration import estimate_frames
from omnitts.recipe import Recipe


def test_fitting_keeps_proportions_and_a_frame_for_each():
    assert _fitted([100, 200, 100], 40) == [10, 20, 10]
    assert _fitted([1, 1, 10_000], 30) == [1, 1, 28]
    assert _fitted([100, 104], 200) == [100, 104]
    assert _fitted([201], 200) == [200]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("word", None), ("word " * 3000, None), ("\u6211" * 3000, None), ("word" * 3000, 851), ("x|" * 9000, 957)],
)
def test_what_cannot_be_split_is_refused(text, seconds):
    (utterance,) = read_utterances([{"text": "a"}], recipe=Recipe())
    clips = clips_of(replace(utterance, text=text), None, 0)
    told = [message for _, frames in clips if (message := too_long(frames))]
    assert len(told) == (seconds is not None)
    assert all(f"{seconds} s of speech" in message and "add punctuation" in message for message in told)


def test_white_space_and_silent_characters_take_no_time():
    (utterance,) = read_utterances([{"text": "a"}], recipe=Recipe())

    def clip(text: str, ref_text: str | None = None) -> tuple[str, int]:
        return clips_of(replace(utterance, text=text), ref_text, 40)[0]

    usual = clip("Hello there, my friend.")
    assert usual == ("Hello there, my friend.", estimate_frames("Hello there, my friend."))
    for blanks in (" " * 200, "\n" * 40, "\r\n", "  ", "\t", "\u2028", "\u200b \ufeff\n", "\x0b\x0c"):
        for text in (f"{blanks}Hello there, my friend.", f"Hello there, my{blanks}friend.{blanks}"):
            assert clip(text) == usual
    assert clip("Hel\u200blo th\u00adere,\u2060 my fri\ufeffend.") == usual
    for marks in ("!" * 60, " !" * 60, "!?" * 60, "-" * 99, "🎉" * 60):
        text, frames = clip(f"Hello there, my friend.{marks}")
        assert frames <= usual[1] * 1.1 and len(text) <= len(usual[0]) + 9
    # A reference's words set the pace: what is not spoken there counts no more.
    reference = "What is said in it, and nothing else."
    assert clip("Hello there.", f"\n\n  {reference}\u200b{' ' * 50}") == clip("Hello there.", reference)


def test_long_hindi_is_made_in_several_clips():
    (utterance,) = read_utterances([{"text": "यह एक लंबा वाक्य है जिसे बोलना है। " * 40}], recipe=Recipe())
    clips = clips_of(utterance, None, 0)
    assert len(clips) > 3 and all(frames < 20 * 25 and text.endswith("।") for text, frames in clips)

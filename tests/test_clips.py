from dataclasses import replace

import pytest

from omnitts.clips import _fitted, clips_of, too_long
from omnitts.manifest import read_utterances
from omnitts.recipe import Recipe


def test_fitting_keeps_proportions_and_a_frame_for_each():
    assert _fitted([100, 200, 100], 40) == [10, 20, 10]
    assert _fitted([1, 1, 10_000], 30) == [1, 1, 28]
    assert _fitted([100, 104], 200) == [100, 104]
    assert _fitted([201], 200) == [200]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("word", None), ("word " * 1000, None), ("word " * 3000, 894), ("word, " * 3000, None), ("\u6211" * 3000, 638)],
)
def test_what_cannot_be_split_is_refused(text, seconds):
    (utterance,) = read_utterances([{"text": "a"}], recipe=Recipe())
    clips = clips_of(replace(utterance, text=text), None, 0)
    told = [message for _, frames in clips if (message := too_long(frames))]
    assert len(told) == (seconds is not None)
    assert all(f"{seconds} s of speech" in message and "add punctuation" in message for message in told)

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnitts.model.duration import FRAME_RATE, estimate_frames, frames_for, text_weight


def test_weights_and_frames_match_the_decoder(cases):
    assert len(cases["duration"]) == 60
    for case in cases["duration"]:
        ref = case["ref_text"], case["ref_len"]
        assert text_weight(case["text"]) == case["weight"]
        assert estimate_frames(case["text"], *ref) == case["frames"]
        assert estimate_frames(case["text"], *ref, speed=1.25) == case["frames_speed_1_25"]


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        ("", 0),
        ("aZ", 2),
        (" ", 0.2),
        ("\u00a0\u3000\u2028", 0.2 * 3),
        ("\n\t", 2),  # control characters are of no category with a weight of its own, nor of a script
        ("!", 0.5),
        ("€", 0.5),
        ("7", 3.5),
        ("٣Ⅳ½", 10.5),
        ("\u0301", 0),
        ("ـ", 0),
        ("é", 1),
        ("жαա", 3),
        ("אب", 3),
        ("क", 1.8),
        ("กລ", 3),
        ("က", 1.8),
        ("ა", 1),
        ("ᄀ한ㄱ", 7.5),
        ("አ", 3),
        ("Ꭰ", 1),
        ("ខ", 1.8),
        ("あア", 4.4),
        ("ㄅ一ꀀ豈", 12),
        ("ﷲﻻ", 3),
        ("ａ", 1),
        ("🌍", 0.5),
        ("ἀ\u200d", 4.4),  # the decoder counts all of U+1F00..U+30FF as kana, joiners included
        ("\U00010400", 1),  # Deseret
        ("\U00020000\U00020001", 4),  # the decoder's boundary leaves out U+20000 itself
    ],
)
def test_weight(text, weight):
    assert text_weight(text) == pytest.approx(weight)


@given(st.text(max_size=30), st.text(max_size=30))
def test_weight_is_additive_and_marks_weigh_nothing(first, second):
    assert text_weight(first + second) == pytest.approx(text_weight(first) + text_weight(second))
    marks = [c for c in first if unicodedata.category(c).startswith("M")]
    assert text_weight("".join(marks)) == 0


@pytest.mark.parametrize("ref", [(None, None), ("", 80), (None, 80), ("\u0301", 80), ("abc", 0)])
def test_default_pace(ref):
    assert estimate_frames("Nice to meet you." * 4, *ref) == 100


def test_short_estimates_are_lifted():
    assert estimate_frames("a" * 50, "a" * 10, 10) == 50
    assert estimate_frames("a" * 49, "a" * 10, 10) == 49  # int(50 * 0.98 ** (1 / 3))
    assert estimate_frames("a" * 10, "a" * 10, 10) == 29
    assert estimate_frames("a" * 51, "a" * 10, 10) == 51


def test_speed_divides_the_lifted_estimate():
    assert estimate_frames("a" * 100, "a", 1, speed=2) == 50
    assert estimate_frames("a" * 100, "a", 1, speed=0.5) == 200
    assert estimate_frames("a" * 10, "a", 1, speed=0.5) == 58  # lifted to 29.24 first
    assert estimate_frames("a", "a", 1, speed=1000) == 1


@pytest.mark.parametrize("text", ["", "\u0301", "ـ"])
def test_at_least_one_frame(text):
    assert estimate_frames(text) == 1


@given(st.text(max_size=60), st.text(max_size=20), st.integers(0, 500), st.floats(0.25, 4))
def test_frames_are_positive_and_fall_with_speed(text, ref_text, ref_frames, speed):
    frames = estimate_frames(text, ref_text, ref_frames, speed)
    assert isinstance(frames, int)
    assert 1 <= frames <= estimate_frames(text, ref_text, ref_frames, speed / 2)


def test_duration_overrides():
    ref = {"ref_text": "abc", "ref_frames": 80}
    assert FRAME_RATE == 25
    assert frames_for("a", **ref, speed=3, duration=2.0) == 50
    assert frames_for("a", **ref, duration=1.999) == 49
    assert frames_for("a", duration=0.001) == 1
    assert frames_for("a" * 80, **ref, speed=2.0) == estimate_frames("a" * 80, "abc", 80, 2.0)
    assert frames_for("a" * 80) == estimate_frames("a" * 80)

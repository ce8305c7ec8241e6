import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnitts.model.spoken import spoken_text, weighed_text
from omnitts.model.text import build_prompt_text


@pytest.mark.parametrize("index", range(20))
def test_ordinary_texts_come_out_as_they_are(index, cases):
    case = cases["prompts"][index]
    if "spaces" not in case["text"]:  # the one that has runs of white space
        assert spoken_text(case["text"]) == case["text"]
        assert build_prompt_text(spoken_text(case["text"])) == build_prompt_text(case["text"])


@pytest.mark.parametrize(
    "text",
    [
        *(
            "Wait... what?! “No” — he said…",
            "[laughter] [B EY1 S], ZHE2.",
            "10\u00a0000\u202f€",
            "a\u3000b",
            "(a) [b] {c}",
        ),
        *(
            "我用 Python 写。",
            "今日は、世界！",
            "한국어 문장이다.",
            "क्षमा कीजिए।",
            "สวัสดี ครับ",
            "مَرْحَبًا",
            "❤️ 1️⃣ 👍🏽",
            "C++ -- ok",
        ),
        *(
            "ⓗⓔⓛⓛⓞⓣⓗⓔⓡⓔ",
            "℃℃℃℃℃℃",
            "e\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308\u0309x",
            "............"[:4],
            "?!”’) — “(",
        ),
    ],
)
def test_texts_with_nothing_odd_are_kept(text):
    assert spoken_text(text) == text


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        # White space
        ("   Hello \t there.\n\n", "Hello there."),
        ("washed the\norange", "washed the orange"),
        ("washed the \r\n orange", "washed the orange"),
        ("a\u2028b\u2029c\x0bd\x0ce\x85f", "a b c d e f"),
        ("a\u00a0\u00a0b\u3000\u3000c", "a b c"),
        ("a\u2800\u3164b", "a b"),
        ("中文\n中文。\r\n再见", "中文中文。再见"),
        ("こん\nにちは", "こんにちは"),
        ("한국\n어", "한국 어"),
        ("我用\nPython", "我用 Python"),
        # What has no sound
        ("\ufeffHe\u200bllo th\u00adere\u2060\u200e", "Hello there"),
        ("a\x00\x07\x1bb\x7f\x9f", "ab"),
        ("\ue000x\U000f0000\ufdd0\ufffc", "x"),
        ("👩\u200d👧 and \U0001f3f4\U000e0067\U000e007f", "👩👧 and \U0001f3f4"),
        ("a\u200d\u200cb", "ab"),
        ("\u200b", ""),
        # Runs of marks
        ("So" + "!" * 60, "So!!!!"),
        ("So" + " !" * 60, "So ! ! ! !"),
        ("So" + "!?" * 30 + " (yes)", "So!?!?!?? ("[:6] + "?!? (yes)"),
        ("=" * 40 + " Title " + "=" * 40, "==== Title ===="),
        ("……………… 那么", "………… 那么"),
        ("_" * 20 + " or ___", "____ or ___"),
        ("🎉" * 10 + "⭐" * 10 + "ok", "🎉🎉🎉🎉⭐⭐⭐⭐ok"),
        ("!!!!!!!![laughter]!!!!!!!!", "!!!![laughter]!!!!"),
        ("ⓗ" * 6 + "!" * 9, "ⓗ" * 6 + "!!!!"),
    ],
)
def test_what_is_not_spoken_goes(text, spoken):
    assert spoken_text(text) == spoken


@pytest.mark.parametrize(
    "text", ["می\u200cخواهم", "क्\u200dष", "ക്\u200d", "ភាសា\u200bខ្មែរ", "ᠮᠤᠩᠭᠤᠯ\u180eᠠ", "ক\u200cখ"]
)
def test_joiners_that_are_spelling_are_kept_and_weigh_nothing(text):
    assert spoken_text(text) == text
    assert len(weighed_text(text)) == len(text) - 1


@given(st.text(st.sampled_from(" \n\t\u3000\u200b\u200d\ufeffab中क्।!?.[]🎉👍🏽\u0301ⓗ_-"), max_size=60))
def test_cleaning_twice_changes_nothing_and_drops_no_letter(text):
    spoken = spoken_text(text)
    assert spoken_text(spoken) == spoken == spoken.strip()
    assert [c for c in spoken if c.isalnum()] == [c for c in text if c.isalnum()]


@pytest.mark.parametrize("unit", ["!", " ! ", "\u200b", "\n", "\u0301", "a!", "!?", "👍🏽", "\u3000"])
def test_a_megabyte_takes_linear_time(unit):
    start = time.perf_counter()
    spoken_text("a" + unit * (1_000_000 // len(unit)) + "b")
    assert time.perf_counter() - start < 10

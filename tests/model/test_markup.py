import time

import pytest

from omnitts.model.markup import find_oddities
from omnitts.model.text import TAGS


def told(text: str) -> list[tuple[str, str]]:
    return [(odd.written, odd.mend) for odd in find_oddities(text)]


@pytest.mark.parametrize(
    ("written", "tag"),
    [
        *(
            ("[Laughter]", "laughter"),
            ("[LAUGHTER]", "laughter"),
            ("[ laughter ]", "laughter"),
            ("[laugh]", "laughter"),
        ),
        *(("[laughing]", "laughter"), ("[lauhgter]", "laughter"), ("[chuckles]", "laughter"), ("[sighs]", "sigh")),
        *(("[Question-EN]", "question-en"), ("[question]", "question-en"), ("[surprise_oh]", "surprise-oh")),
        *(
            ("[surprise wa]", "surprise-wa"),
            ("[dissatisfaction]", "dissatisfaction-hnn"),
            ("[confirmation]", "confirmation-en"),
        ),
        *(
            ("(laughter)", "laughter"),
            ("(laughs)", "laughter"),
            ("{sigh}", "sigh"),
            ("*sighs*", "sigh"),
            ("**laughs**", "laughter"),
        ),
        *(
            ("<laughter>", "laughter"),
            ("<laugh/>", "laughter"),
            ("（笑）", "laughter"),
            ("【笑】", "laughter"),
            ("_sigh_", "sigh"),
        ),
    ],
)
def test_tags_that_are_nearly_right(written, tag):
    assert told(f"Well, {written} so it is.") == [(written, f"write [{tag}]")]


@pytest.mark.parametrize(
    ("text", "written", "mend"),
    [
        ("<speak>Hello.", "<speak>", "leave markup out"),
        ("Hello.</p>", "</p>", "leave markup out"),
        ('Wait <break time="1s"/> here', '<break time="1s"/>', "leave markup out"),
        ("a<br />b", "<br />", "leave markup out"),
        ("<!-- no -->", "<!--", "leave markup out"),
        ("this &amp; that", "&amp;", "write &"),
        ("it&#39;s", "&#39;", "write '"),
        ("it&#x2019;s", "&#x2019;", "write ’"),
        ("a&nbsp;b", "&nbsp;", "write a space"),
        ("&eacute;t&eacute;", "&eacute;", "write é"),
        ("[music] plays", "[music]", "the tags are [laughter], [sigh]"),
        ("[door slams] Hey!", "[door slams]", "the tags are"),
        ("Dear [NAME],", "[NAME]", "the tags are"),
    ],
)
def test_other_signs_that_are_read_out(text, written, mend):
    (first_written, first_mend), *others = told(text)
    assert first_written == written and first_mend.startswith(mend)
    assert all(other == (first_written, first_mend) for other in others)


@pytest.mark.parametrize(
    "text",
    [
        *(f"[{tag}]" for tag in TAGS),
        *(
            "He plays the [B EY1 S] guitar.",
            "[AA1]",
            "[ZHE2]",
            "打ZHE2出售",
            "So it is (see below).",
            "(yes)",
            "（全角括号）",
        ),
        *(
            "if a < b and c > d",
            "a<b",
            "x <y and z> w",
            "AT&T; Q&A",
            "R&D &c.",
            "fish & chips;",
            "2 * 3 * 4",
            "snake_case_name",
        ),
        *(
            "See [1], [12].",
            "a (question) of time",
            "<|text_end|>",
            "**bold** and _it_",
            "I <3 you",
            "5 > 3; 3 < 5",
            "f(x) = {y}",
        ),
    ],
)
def test_what_is_meant_as_it_is_written(text):
    assert told(text) == []


@pytest.mark.parametrize("unit", ["[", "(", "<a ", "&", "*", "_", "<a b=", "[a ", "&a", "(a "])
def test_a_megabyte_takes_linear_time(unit):
    start = time.perf_counter()
    told(unit * (1_000_000 // len(unit)))
    assert time.perf_counter() - start < 10

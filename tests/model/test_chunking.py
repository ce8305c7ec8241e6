import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnitts.model.chunking import chunk_length, chunk_text
from omnitts.model.duration import estimate_frames

LONG = 10_000


def solid(text: str) -> str:
    return "".join(text.split())


def test_chunks_match_the_decoder(cases):
    assert len(cases["chunks"]) == 12
    for case in cases["chunks"]:
        assert chunk_text(case["text"], case["chunk_len"]) == case["chunks"]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Dr. No. 5 ft. away.", ["Dr. No. 5 ft.", "away."]),  # "No." stays, lower-case "ft." does not
        ("xDr. Who", ["xDr.", "Who"]),
        ("(Dr. Who)", ["(Dr.", "Who)"]),
        ("Well;Dr. Who", ["Well;", "Dr. Who"]),
        ("Hmm\tDr. Who", ["Hmm\tDr. Who"]),
        ("A-approx. five", ["A-approx.", "five"]),
        ("By approx. five", ["By approx. five"]),
        ("Dr.. Who", ["Dr..", "Who"]),
        ("Wait... what?! Yes.", ["Wait...", "what?!", "Yes."]),
        ("“Yes.” “No.” he", ["“Yes.”", "“No.”", "he"]),
        ("(Yes.) he", ["(Yes.", ") he"]),
        ("（好。）好的呀", ["（好。）", "好的呀"]),
        ("[a b.] 《c.》 ddd", ["[a b.]", "《c.》", "ddd"]),
        ("一二三，四五六。七八九！", ["一二三，", "四五六。", "七八九！"]),
        ("It is 3.14: pi", ["It is 3.", "14:", "pi"]),
        ("[sigh] oh, [laughter] yes", ["[sigh] oh,", "[laughter] yes"]),
        ("नमस्ते। दुनिया", ["नमस्ते। दुनिया"]),
        ("wow 🎉! 🌍 \u0301", ["wow 🎉!", "🌍 \u0301"]),
    ],
)
def test_sentences(text, sentences):
    assert chunk_text(text, 0) == sentences


def test_neighbours_merge_while_they_fit():
    text = "aaaa, bbbb, cccc, dddd."
    assert chunk_text(text, 10) == ["aaaa,", "bbbb,", "cccc,", "dddd."]
    assert chunk_text(text, 11) == ["aaaa, bbbb,", "cccc,", "dddd."]
    assert chunk_text(text, 12) == ["aaaa, bbbb,", "cccc, dddd."]
    assert chunk_text(text, len(text)) == [text]


def test_slivers_join_a_neighbour():
    assert chunk_text("a.bbbb.cccc.", 4) == ["a.bbbb.", "cccc."]
    assert chunk_text("aaaa.b.cccc.", 4) == ["aaaa.b.", "cccc."]
    assert chunk_text("aaaa.bbbb.c.", 4) == ["aaaa.", "bbbb.c."]
    assert chunk_text("a.b.", 1) == ["a.b."]
    assert chunk_text("aaaa. b.cccc.", 4) == ["aaaa.", "b.", "cccc."]  # the space counts
    assert chunk_text("aaaa.  ", 4) == ["aaaa."]


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("", []),
        (" \n\t ", []),
        ("...", ["..."]),
        (".", ["."]),
        ("”", ["”"]),
        (" . ", ["."]),
        ("\u0301", ["\u0301"]),
    ],
)
def test_odd_texts(text, chunks):
    for chunk_len in (-1, 0, 1, 100):
        assert chunk_text(text, chunk_len) == chunks


words = ["Dr", "i.e", "a", "bcd", " ", "\n", ".", ",", "？", "”", "“", ")", "[sigh]", "中", "🎉", "\u0301"]
texts = st.one_of(st.text(max_size=200), st.lists(st.sampled_from(words)).map("".join))


@given(texts, st.integers(-1, 60))
def test_nothing_is_lost(text, chunk_len):
    chunks = chunk_text(text, chunk_len)
    assert solid("".join(chunks)) == solid(text)
    assert all(chunk and chunk == chunk.strip() for chunk in chunks)


def test_chunk_length_follows_the_pace_of_the_text():
    assert chunk_length("x" * 360, 751, 15.0) == 179  # 15 s * 25 / (751 / 360), whole characters
    assert chunk_length("x" * 360, 751, 30.0) == 359


def test_chunks_of_a_real_call(cases):
    call = cases["e2e"]["long"]
    frames = estimate_frames(call["text"])
    length = chunk_length(call["text"], frames, call["audio_chunk_duration"])
    chunks = chunk_text(call["text"], length)
    assert chunks[:2] == [
        "Dr. Smith arrived at 5 p.m. on Jan. 3, i.e. late;",
        "Mr. Jones, however, was early! Was it really so?",
    ]
    assert len(chunks) > 5
    assert max(map(len, chunks)) <= length + 2
    assert solid("".join(chunks)) == solid(call["text"])


@pytest.mark.parametrize("unit", ["vs. ", "a.b", ".", "x", "Dr. Who, ", "a, ", " ", "”", "中。", "\u0301"])
def test_a_megabyte_takes_linear_time(unit):
    text = unit * (1_000_000 // len(unit))
    start = time.perf_counter()
    chunks = chunk_text(text, LONG)
    assert time.perf_counter() - start < 10  # well below 1 s; a quadratic scan takes hours
    assert solid("".join(chunks)) == solid(text)

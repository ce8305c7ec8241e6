import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnitts.model.chunking import chunk_length, split_text
from omnitts.model.duration import estimate_frames
from tests.model.published_chunking import chunk_text

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
    assert split_text(call["text"], length, 2 * length) == chunks, "what is spoken is what the decoder made"
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


# --- What is spoken: sentences first, then clauses, then words ---


@pytest.mark.parametrize(
    ("text", "chunk_len", "pieces"),
    [
        # A full stop goes before the comma behind it...
        (
            "It was over by noon. Then, all of them went home.",
            29,
            ["It was over by noon.", "Then, all of them went home."],
        ),
        ("Was it really? “Yes,” she said to them. So.", 25, ["Was it really?", "“Yes,” she said to them.", "So."]),
        # ... and a short sentence takes a clause of the next along, if that is parted in any case.
        ("Well. But then, as she said, it did go on.", 16, ["Well. But then,", "as she said,", "it did go on."]),
        # Nothing that can be read as a token is cut.
        (
            "It is $3.21 each, of 7,259 boxes, at 11:45 now.",
            18,
            ["It is $3.21 each,", "of 7,259 boxes,", "at 11:45 now."],
        ),
        ("See www.example.com, or mail a.b@c.de: now.", 20, ["See www.example.com,", "or mail a.b@c.de:", "now."]),
        ("Take version 1.2.3, 10.0.0.1; then notes.txt.", 21, ["Take version 1.2.3,", "10.0.0.1;", "then notes.txt."]),
        ("３．１４です。１１：４５から、７，２５９個。", 8, ["３．１４です。", "１１：４５から、", "７，２５９個。"]),
        ("版本3.5发布了。网址是例子.com。", 10, ["版本3.5发布了。", "网址是例子.com。"]),
        # Abbreviations and initials end nothing, in whatever brackets; "p.m." may.
        (
            "By J. R. R. Tolkien, of the U.S. Army, i.e. No. 5.",
            22,
            ["By J. R. R. Tolkien,", "of the U.S. Army,", "i.e. No. 5."],
        ),
        (
            "Bei (Prof. Dr. Müller), z.B. Nr. 5. Danach kam er.",
            25,
            ["Bei (Prof. Dr. Müller),", "z.B. Nr. 5.", "Danach kam er."],
        ),
        ("At 5 p.m. we left. At 6 p.m. She came.", 20, ["At 5 p.m. we left.", "At 6 p.m. She came."]),
        ("We left at 6 p.m. She came then.", 20, ["We left at 6 p.m.", "She came then."]),
        # An ellipsis or a question within a sentence goes on with a small letter, unless all letters are small.
        ("And... then he came. “What?” she said.", 24, ["And... then he came.", "“What?” she said."]),
        ("hello there. i am, so to say, here.", 14, ["hello there.", "i am,", "so to say,", "here."]),
        ("1. The first one. 2. The second one.", 20, ["1. The first one.", "2. The second one."]),
        # Closing marks stay with what they close.
        ("(He left.) She said: « Oui ! » Then he sang.", 20, ["(He left.)", "She said: « Oui ! »", "Then he sang."]),
        ("That is so.[laughter] Quite so.", 12, ["That is so.", "[laughter]", "Quite so."]),
        # All scripts have their own marks.
        ("यह एक वाक्य है। और यह दूसरा है।वह भी।", 18, ["यह एक वाक्य है।", "और यह दूसरा है।", "वह भी।"]),
        ("هل أنت بخير؟ نعم، شكرا لك۔ ماذا؟", 14, ["هل أنت بخير؟", "نعم، شكرا لك۔", "ماذا؟"]),
        ("Ինչպես ես։ Լավ եմ։ Իսկ դու։", 12, ["Ինչպես ես։", "Լավ եմ։", "Իսկ դու։"]),
        ("ሰላም ነው። እንዴት ነህ፧ ደህና ነኝ።", 9, ["ሰላም ነው።", "እንዴት ነህ፧", "ደህና ነኝ።"]),
        ("မင်္ဂလာပါ။ နေကောင်းလား။", 14, ["မင်္ဂလာပါ။", "နေကောင်းလား။"]),
        # Japanese has no comma but that of lists.
        (
            "これはとても長い文なので、途中で切ることになります。",
            15,
            ["これはとても長い文なので、", "途中で切ることになります。"],
        ),
    ],
)
def test_pieces_end_where_a_reader_can_pause(text, chunk_len, pieces):
    assert split_text(text, chunk_len, chunk_len) == pieces


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("one two three four", ["one two", "three", "four"]),
        ("say [B EY1 S B EY1 S] now", ["say", "[B EY1 S B EY1 S]", "now"]),
        ("it is 10 000 000 of them", ["it is", "10 000 000", "of them"]),
        ("dear Mr. Robert Roberts", ["dear", "Mr. Robert", "Roberts"]),
        ("incomprehensibilities go", ["incomprehensibilities", "go"]),
        ("ភាសា\u200bខ្មែរនិង\u200bអក្សរ", ["ភាសា", "ខ្មែរនិង", "អក្សរ"]),
        ("今天天气很好我们去公园散步", ["今天天气很好我们去公", "园散步"]),
        ("とてもすばらしいプログラミングだ", ["とてもすばらしい", "プログラミングだ"]),
    ],
)
def test_what_has_no_marks_is_parted_between_words(text, pieces):
    parts = [piece.strip("\u200b") for piece in split_text(text, 10, 10)]
    assert parts == pieces


def test_a_sentence_that_can_be_made_in_one_stays_whole():
    text = "a sentence without a comma that is somewhat long"
    assert split_text(text, 25, 50) == [text]
    assert split_text(text, 25, 40) == ["a sentence without a", "comma that is somewhat long"]


sentences = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from([", and ", "; but ", ". Then ", "! So ", "? If ", ", "]))
).map(lambda parts: "Well, " + "".join("word " * words + "word" + mark for words, mark in parts) + "it ends.")


@given(sentences, st.integers(20, 120))
def test_texts_that_the_published_rule_parts_at_sentences_are_parted_so(text, chunk_len):
    published = chunk_text(text, chunk_len)
    pieces = split_text(text, chunk_len, 10_000)
    if all(piece.endswith((".", "!", "?")) for piece in published):
        assert pieces == published
    # Up to the first place where a sentence could have ended, but a clause does, the two agree.
    same = next((i for i, pair in enumerate(zip(pieces, published, strict=False)) if pair[0] != pair[1]), len(pieces))
    assert pieces == published or (published[same][-1] in ",;" and pieces[same][-1] in ".!?")


@pytest.mark.parametrize(
    "token",
    [
        *(
            "e.g.",
            "i.e.",
            "J. R. R.",
            "J.R.R.",
            "Mr.",
            "St.",
            "Mt.",
            "No.",
            "Fig.",
            "vs.",
            "al.",
            "Ph.D.",
            "U.S.A.",
            "a.k.a.",
        ),
        *("z.B.", "d. h.", "bzw.", "Nr.", "EE. UU.", "p. ej.", "т.е.", "т. е.", "ул.", "А. С.", "डॉ."),
        *(
            "3,5",
            "1.000.000,00",
            "10:30:45",
            "192.168.0.1",
            "v1.2.3",
            "a.b@c.de",
            "https://a.b/c?d=e,f",
            "C:\\a\\b.txt",
        ),
        *(
            "example.com",
            "9.99€",
            "$3.21",
            "7,259",
            "!important",
            "Q&A:s",
            "३.५",
            "٣٫٥",
            "３．１４",
            "file.tar.gz",
            "and/or",
        ),
    ],
)
def test_no_piece_ends_in_or_behind_such_a_token(token):
    text = f"These are some words, and here is {token} Tolkien, with more. " * 6
    for chunk_len in range(10, 120, 7):
        for piece in split_text(text, chunk_len, 1000):
            assert piece.endswith((".", ",")) and not piece.endswith(token)
            assert piece.count(token) == piece.count("here is")


@given(texts, st.integers(-1, 60), st.integers(-1, 60))
def test_no_piece_loses_anything(text, chunk_len, longest):
    pieces = split_text(text, chunk_len, longest)
    assert solid("".join(pieces)) == solid(text)
    assert all(piece and piece == piece.strip() for piece in pieces)


@pytest.mark.parametrize(
    "unit", ["vs. ", "a.b", ".", "x", "Dr. Who, ", "a, ", " ", "”", "中。", "我", "\u0301", "3. b ", "[", "“ "]
)
def test_pieces_of_long_texts_take_linear_time(unit):
    text = unit * (200_000 // len(unit))
    start = time.perf_counter()
    pieces = split_text(text, 200, 400)
    assert time.perf_counter() - start < 10
    assert solid("".join(pieces)) == solid(text)

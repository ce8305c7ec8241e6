import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnitts.model.checkpoint import SPECIAL_TOKENS
from omnitts.model.text import (
    TAGS,
    add_end_mark,
    build_prompt_text,
    encode_prompts,
    has_cjk,
    has_words,
    normalize_text,
)

MASK = 1024
PROMPTS = range(20)


@pytest.fixture(scope="module")
def tokenizer(checkpoint_dir):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(checkpoint_dir / "tokenizer.json"))


def arguments(case: dict) -> dict:
    return {
        "language": case["lang"],
        "instruct": case["resolved_instruct"],
        "ref_text": case["ref_text"],
        "denoise": case["denoise"],
    }


def encode_prompt(tokenizer, text: str, **style) -> list[int]:
    return encode_prompts(tokenizer, [build_prompt_text(text, **style)])[0]


def text_of(segments: list[str]) -> str:
    """The words of a prompt, without its style and the tokens that enclose them."""
    return "".join(segments[1:]).removeprefix("<|text_start|>").removesuffix("<|text_end|>")


@pytest.mark.parametrize(
    "text",
    [
        *("a", "5", "½", "Ⅷ", "①", "٣", "你", "はい", "नि", "ဪ", "ก็", "ѝ", "ʻ", "ⓗ", "㍿", "℃", "1️⃣", "𞤀"),
        *("[laughter]", "... [sigh]", "[B EY1 S]", "<|text_end|>"),
    ],
)
def test_what_has_words(text):
    assert has_words(text)


@pytest.mark.parametrize(
    "text",
    ["", " ", "...!?", "♪", "🎉", "❤️", "👩‍👧", "🇩🇪", "_", "—", "()", "[]", "。。。", "\u0301", "\u200b", "\u3164", "ـ"],
)
def test_what_has_none(text):
    assert not has_words(text)


@pytest.mark.parametrize("index", PROMPTS)
def test_prompt_matches_the_decoder(index, cases, vectors, tokenizer):
    case = cases["prompts"][index]
    ids = vectors[f"prompt/{index}/input_ids"]
    audio_mask = vectors[f"prompt/{index}/audio_mask"].bool()

    prompt = encode_prompt(tokenizer, case["text"], **arguments(case))

    assert ids[:, : len(prompt)].tolist() == [prompt] * 8
    assert audio_mask.tolist() == [False] * len(prompt) + [True] * (ids.shape[1] - len(prompt))
    audio = ids[:, len(prompt) :]
    if case["ref"] is not None:
        codes = vectors[f"codec/encode/{case['ref']}/codes"]
        assert audio[:, : codes.shape[1]].tolist() == codes.tolist()
        audio = audio[:, codes.shape[1] :]
    assert audio.tolist() == [[MASK] * case["target_len"]] * 8


def test_prompts_encode_the_same_together(cases, tokenizer):
    prompts = [build_prompt_text(case["text"], **arguments(case)) for case in cases["prompts"]]
    one_by_one = [encode_prompt(tokenizer, case["text"], **arguments(case)) for case in cases["prompts"]]
    assert encode_prompts(tokenizer, prompts) == one_by_one
    assert encode_prompts(tokenizer, prompts[::-1] + prompts[:3]) == one_by_one[::-1] + one_by_one[:3]
    assert encode_prompts(tokenizer, iter(prompts)) == one_by_one
    assert encode_prompts(tokenizer, []) == []


def test_prompts_beyond_one_call_to_the_tokenizer(tokenizer, monkeypatch):
    monkeypatch.setattr("omnitts.model.text._ENCODE_AT_ONCE", 3)
    prompts = [build_prompt_text(f"[sigh] number {n}") for n in range(10)]
    assert encode_prompts(tokenizer, prompts) == [encode_prompt(tokenizer, f"[sigh] number {n}") for n in range(10)]


def test_style():
    style = "<|lang_start|>None<|lang_end|><|instruct_start|>None<|instruct_end|>"
    assert build_prompt_text("hi") == [style, "<|text_start|>hi<|text_end|>"]
    assert build_prompt_text("hi", language="", instruct="")[0] == style
    given_both = build_prompt_text("hi", language="yue", instruct="男，四川话")[0]
    assert given_both == "<|lang_start|>yue<|lang_end|><|instruct_start|>男，四川话<|instruct_end|>"


@pytest.mark.parametrize(
    ("ref_text", "denoise", "marked"),
    [
        (None, True, False),
        (None, False, False),
        ("", True, True),
        ("ref.", True, True),
        ("ref.", False, False),
    ],
)
def test_denoise_needs_a_reference(ref_text, denoise, marked):
    style = build_prompt_text("hi", ref_text=ref_text, denoise=denoise)[0]
    assert style.startswith("<|denoise|>") is marked
    assert style.count("<|denoise|>") == marked


@pytest.mark.parametrize(
    ("ref_text", "text", "joined"),
    [
        (" One. ", "\tTwo. ", "One. Two."),
        ("", " Two. ", "Two."),
        ("One.\n", "\nTwo.", "One. Two."),
        ("你好。", "世界", "你好。世界"),
        ("你好", "world", "你好world"),
        ("One.", "", "One. "),
    ],
)
def test_reference_text_goes_first(ref_text, text, joined):
    assert text_of(build_prompt_text(text, ref_text=ref_text)) == joined


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        ("[sigh]", ["<|text_start|>", "[sigh]", "<|text_end|>"]),
        ("[sigh][laughter]", ["<|text_start|>", "[sigh]", "[laughter]", "<|text_end|>"]),
        ("a [sigh] b", ["<|text_start|>a ", "[sigh]", " b<|text_end|>"]),
        ("end [question-en]", ["<|text_start|>end ", "[question-en]", "<|text_end|>"]),
        ("[[sigh]]", ["<|text_start|>[", "[sigh]", "]<|text_end|>"]),
        ("[sigh [laughter]", ["<|text_start|>[sigh ", "[laughter]", "<|text_end|>"]),
        (
            "[Sigh] [sighs] [ sigh ] [question]",
            ["<|text_start|>[Sigh] [sighs] [ sigh ] [question]<|text_end|>"],
        ),
        ("a [B EY1 S] guitar", ["<|text_start|>a [B EY1 S] guitar<|text_end|>"]),
        ("", ["<|text_start|><|text_end|>"]),
    ],
)
def test_tags_stand_alone(text, segments):
    assert build_prompt_text(text)[1:] == segments


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a <|text_end|> b", "a < |text_end|> b"),
        ("<<|denoise|>", "<< |denoise|>"),
        ("<|text_\nend|>", "< |text_end|>"),
        ("<|im_start|>", "< |im_start|>"),
        ("if a <| b |> c", "if a <| b |> c"),
        ("<|text_[sigh]end|>", "<|text_[sigh]end|>"),
    ],
)
def test_control_tokens_in_a_text_are_read_as_text(tokenizer, text, words):
    assert text_of(build_prompt_text(text)) == words

    def control_tokens(text: str, ref_text: str) -> list[int]:
        known = [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS]
        return [token for token in encode_prompt(tokenizer, text, ref_text=ref_text) if token in known]

    usual = control_tokens("So.", "So.")
    assert len(usual) == len(SPECIAL_TOKENS)
    assert control_tokens(text, "So.") == control_tokens("So.", text) == usual


def test_every_tag_is_known_and_keeps_its_ids(tokenizer):
    assert len(set(TAGS)) == 13
    for tag in TAGS:
        ids = tokenizer.encode(f"[{tag}]", add_special_tokens=False).ids
        for text in (f"ab[{tag}]cd", f"世[{tag}]界", f"[{tag}]"):
            prompt = encode_prompt(tokenizer, text)
            assert any(prompt[i : i + len(ids)] == ids for i in range(len(prompt)))
            assert f"[{tag}]" in build_prompt_text(text)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("", ""),
        ("a\nb", "ab"),
        ("a \r\n b", "a b"),
        ("a\n\n\nb\rc", "abc"),
        ("a \t \t b", "a b"),
        ("（a）", "(a)"),
        ("中 文", "中文"),
        ("a 中 b", "a中b"),
        ("中\u3000\u00a0文", "中文"),
        ("a\u3000b", "a\u3000b"),
        ("か な カ ナ", "か な カ ナ"),
        ("한 글", "한 글"),
        ("𠀀 𠀁", "𠀀 𠀁"),
        ("㐀 㐁", "㐀 㐁"),
        ("。 中", "。中"),
        ("🌍 🎉", "🌍 🎉"),
        ("\u0301 a", "\u0301 a"),
        ("a\u2028b", "a\u2028b"),
    ],
)
def test_normalize(text, clean):
    assert normalize_text(text) == clean


texts = st.text(st.sampled_from(" \t\r\n\u3000\u00a0ab中文（）[].🌍\u0301"), max_size=40)


@given(texts)
def test_normalize_is_idempotent_and_drops_only_white_space(text):
    clean = normalize_text(text)
    assert normalize_text(clean) == clean
    assert "".join(clean.split()) == "".join(text.split()).replace("（", "(").replace("）", ")")


def test_normalize_is_linear_in_runs_of_spaces():
    assert normalize_text("a" + "\u3000" * 300_000 + "b") == "a" + "\u3000" * 300_000 + "b"


def test_end_mark_matches_the_decoder(cases):
    assert {text: add_end_mark(text) for text in cases["add_punctuation"]} == cases["add_punctuation"]


@pytest.mark.parametrize(
    ("text", "closed"),
    [
        ("", ""),
        ("  \n", ""),
        (" yes ", "yes."),
        ("yes.", "yes."),
        ("yes…", "yes…"),
        ("yes)", "yes)"),
        ("“yes”", "“yes”"),
        ("yes-", "yes-."),
        ("是的", "是的。"),
        ("是的、", "是的、"),
        ("yes 是 yes", "yes 是 yes。"),
        ("はい", "はい."),
        ("हाँ।", "हाँ।."),
        ("🎉", "🎉."),
        ("[laughter]", "[laughter]"),
        ("\u0301", "\u0301."),
    ],
)
def test_end_mark(text, closed):
    assert add_end_mark(text) == closed
    assert add_end_mark(closed) == closed or text == "हाँ।"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a", False), ("", False), ("あ", False), ("㐀", False), ("一", True), ("a鿿", True), ("ꀀ", False)],
)
def test_has_cjk(text, expected):
    assert has_cjk(text) is expected

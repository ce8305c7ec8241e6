"""Text to token ids: cleaning, the prompt's control tokens, inline tags, and tokenization.

A request's document starts with [style][text] (OmniVoice decoder); audio frames follow. A prompt
is built as segments, strings that are tokenized one by one, because an inline tag must give the same ids
whatever surrounds it.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TAGS = (
    *("laughter", "sigh", "confirmation-en"),
    *("question-en", "question-ah", "question-oh", "question-ei", "question-yi"),
    *("surprise-ah", "surprise-oh", "surprise-wa", "surprise-yo", "dissatisfaction-hnn"),
)
"""The sounds that `[tag]` in a text stands for; any other bracket is read as text."""

_CJK = r"[\u4e00-\u9fff]"
_HAS_CJK = re.compile(_CJK)
_LINE_BREAKS = re.compile(r"[\r\n]+")
_BLANKS = re.compile(r"[ \t]+")
# A match may only start at the head of a run: otherwise a long run is scanned again from each space.
_SPACES_BESIDE_CJK = re.compile(rf"(?<={_CJK})\s+|(?<!\s)\s+(?={_CJK})")
_ASCII_PARENTHESES = str.maketrans("（）", "()")
# Letters by their category, but nothing to hear: a tatweel, and Hangul fillers, which stand for blanks.
_LETTER_OR_DIGIT = re.compile(r"[^\W_\u0640\u115f\u1160\u3164\uffa0]")
_TAG = re.compile(rf"(\[(?:{'|'.join(TAGS)})\])")
_CONTROL_TOKEN = re.compile(r"<\|(?=\w+\|>)")

# Brackets and quotes count: a sentence often ends inside them.
_END_MARKS = frozenset(".,;:!?…)]}\"'" + "。，；：！？、）】" + "“”‘’")

# Segments a call: the tokenizer's results hold much more than the ids, so they are not all kept at a time.
_ENCODE_AT_ONCE = 8192


def has_cjk(text: str) -> bool:
    """Whether `text` holds a CJK ideograph (U+4E00..U+9FFF)."""
    return _HAS_CJK.search(text) is not None


def has_words(text: str) -> bool:
    """Whether there is anything to speak: a letter or a digit of any script, or a tag, which is spelled with some."""
    if _LETTER_OR_DIGIT.search(text):
        return True
    return _LETTER_OR_DIGIT.search(unicodedata.normalize("NFKC", text)) is not None  # one of several, such as a ℃


def find_tags(text: str) -> list[str]:
    """The tags in `text`, without their brackets, in order."""
    return [tag[1:-1] for tag in _TAG.findall(text)]


def normalize_text(text: str) -> str:
    """Clean a prompt's text (reference and target joined) the way the OmniVoice decoder does.

    Line breaks are dropped without a space in their place (`spoken_text`, which is applied before, leaves none);
    full-width parentheses become ASCII; runs of
    spaces and tabs become one space; white space beside a CJK ideograph goes.
    """
    text = _LINE_BREAKS.sub("", text).translate(_ASCII_PARENTHESES)
    return _SPACES_BESIDE_CJK.sub("", _BLANKS.sub(" ", text))


def add_end_mark(text: str) -> str:
    """Strip `text` and close it with "。" (when it has a CJK ideograph) or "." unless it ends in a mark.

    Used on reference transcripts: the target must start after a finished sentence. An empty text stays empty.
    """
    text = text.strip()
    if not text or text[-1] in _END_MARKS:
        return text
    return text + ("。" if has_cjk(text) else ".")


def build_prompt_text(
    text: str,
    *,
    language: str | None = None,
    instruct: str | None = None,
    ref_text: str | None = None,
    denoise: bool = True,
) -> list[str]:
    """One request's prompt as segments for `encode_prompts`: the style, then the text split at its tags.

    `language` is an id and `instruct` a resolved one (see `resolve_language`, `resolve_instruct`). `ref_text`
    is the transcript of the reference audio, "" when that has none, and None when there is no reference;
    `denoise` asks for clean speech from a noisy reference, so it has no effect without one.
    """
    style = (
        f"{'<|denoise|>' if denoise and ref_text is not None else ''}"
        f"<|lang_start|>{language or None}<|lang_end|>"
        f"<|instruct_start|>{instruct or None}<|instruct_end|>"
    )
    spoken = f"{ref_text.strip()} {text.strip()}" if ref_text else text.strip()
    # A control token that is spelled out in a text would end it early, say: parted, it is read as any other text. This
    # comes last, as dropping a line break can put one together.
    words = _CONTROL_TOKEN.sub("< |", normalize_text(spoken))
    body = f"<|text_start|>{words}<|text_end|>"
    return [style, *filter(None, _TAG.split(body))]


def encode_prompts(tokenizer: "Tokenizer", prompts: Iterable[Sequence[str]]) -> list[list[int]]:
    """Token ids of each prompt (segments from `build_prompt_text`), in order.

    All prompts go to the tokenizer together, and a segment that many share, a style or a tag, only once.
    """
    prompts = list(prompts)
    segments = list(dict.fromkeys(chain.from_iterable(prompts)))
    ids: dict[str, list[int]] = {}
    for start in range(0, len(segments), _ENCODE_AT_ONCE):
        some = segments[start : start + _ENCODE_AT_ONCE]
        encodings = tokenizer.encode_batch_fast(some, add_special_tokens=False)
        ids.update((segment, encoding.ids) for segment, encoding in zip(some, encodings, strict=True))
    return [list(chain.from_iterable(ids[segment] for segment in prompt)) for prompt in prompts]

"""Voice design: a comma-separated list of voice properties, checked and put into one language."""

import difflib
import re
from dataclasses import dataclass

from omnitts.errors import InputError
from omnitts.model.text import has_cjk


@dataclass(frozen=True)
class _Item:
    group: str
    english: str
    chinese: str


_BILINGUAL = {
    "gender": {"male": "男", "female": "女"},
    "age": {
        "child": "儿童",
        "teenager": "少年",
        "young adult": "青年",
        "middle-aged": "中年",
        "elderly": "老年",
    },
    "pitch": {
        "very low pitch": "极低音调",
        "low pitch": "低音调",
        "moderate pitch": "中音调",
        "high pitch": "高音调",
        "very high pitch": "极高音调",
    },
    "style": {"whisper": "耳语"},
}
_ACCENTS = (
    *("american", "british", "australian", "chinese", "canadian"),
    *("indian", "korean", "portuguese", "russian", "japanese"),
)
_DIALECTS = (
    *("河南话", "陕西话", "四川话", "贵州话", "云南话", "桂林话"),
    *("济南话", "石家庄话", "甘肃话", "宁夏话", "青岛话", "东北话"),
)

# Accents and dialects have one name, in the one language that has them.
_ITEMS = (
    *(_Item(group, en, zh) for group, names in _BILINGUAL.items() for en, zh in names.items()),
    *(_Item("accent", f"{accent} accent", f"{accent} accent") for accent in _ACCENTS),
    *(_Item("dialect", dialect, dialect) for dialect in _DIALECTS),
)
_BY_NAME = {name: item for item in _ITEMS for name in (item.english, item.chinese)}


def resolve_instruct(instruct: str | None, text: str) -> str | None:
    """The instruct string that goes into the prompt of `text`, or None when `instruct` names nothing.

    Items are separated by either comma and written in English or Chinese, in any case. The result is in one
    language: English with an accent, Chinese with a dialect, else Chinese when `text` has a CJK ideograph.

    Raises InputError (field "instruct") for an unknown item, two of one group, or an accent with a dialect.
    """
    names = [" ".join(name.split()) for name in re.split("[,，]", instruct or "")]
    items = [_find(name) for name in names if name]
    if not items:
        return None

    by_group: dict[str, _Item] = {}
    for item in items:
        if item.group in by_group:
            pair = f"{by_group[item.group].english!r} and {item.english!r}"
            raise _error(f"{pair} are both of the group {item.group}: keep one")
        by_group[item.group] = item
    if "accent" in by_group and "dialect" in by_group:
        accent, dialect = by_group["accent"].english, by_group["dialect"].chinese
        raise _error(f"{accent!r} is for English and {dialect!r} for Chinese speech: keep one")

    if "dialect" in by_group or ("accent" not in by_group and has_cjk(text)):
        return "，".join(item.chinese for item in items)
    return ", ".join(item.english for item in items)


def _find(name: str) -> _Item:
    item = _BY_NAME.get(name.casefold())
    if item is not None:
        return item
    near = difflib.get_close_matches(name.casefold(), _BY_NAME, n=1)
    if near:
        raise _error(f"unknown item {name!r}: did you mean {near[0]!r}?")
    raise _error(f"unknown item {name!r}: use some of {', '.join(item.english for item in _ITEMS)}")


def _error(message: str) -> InputError:
    return InputError(message, field="instruct")

"""Names and codes of languages to the ids the checkpoint was trained with."""

import difflib
import functools
import re
import unicodedata
from importlib.resources import files

_TAG = re.compile(r"([a-z]{2,3})(?:[-_][a-z0-9]{1,8})+", re.IGNORECASE)


def resolve_language(name: str | None) -> str | None:
    """The language id for an id, an ISO 639 code, a tag such as "en-US" or "zh_CN", or an English name.

    None when the name is unknown (or None): the model then speaks without a language hint. Case, accents and
    punctuation do not matter.
    """
    if name is None:
        return None
    table = _ids_by_name()
    tag = _TAG.fullmatch(name.strip())
    return table.get(_key(name)) or (table.get(tag[1].lower()) if tag else None)


def languages(search: str = "") -> dict[str, list[str]]:
    """Id -> its names, the usual one first, and other codes: all, or those with `search` at the start of a word."""
    wanted = " " + _key(search)
    return {
        language_id: names
        for language_id, names in _table().items()
        if any(wanted in f" {_key(name)}" for name in (language_id, *names))
    }


def near_languages(name: str) -> list[str]:
    """Names that an unknown one may have been meant for, the likeliest first."""
    names = {_key(each): each for names in _table().values() for each in names}
    return [names[key] for key in difflib.get_close_matches(_key(name)[:64], names, n=3, cutoff=0.75)]


@functools.cache
def _table() -> dict[str, list[str]]:
    """Id -> its names, the usual one first, and the other ISO 639 codes that stand for it."""
    rows = files("omnitts.model").joinpath("data/languages.tsv").read_text(encoding="utf-8").splitlines()
    pairs = (row.split("\t") for row in rows if not row.startswith("#"))
    return {language_id: names.split(";") for language_id, names in pairs}


@functools.cache
def _ids_by_name() -> dict[str, str]:
    by_name = {_key(name): language_id for language_id, names in _table().items() for name in names}
    return by_name | {language_id: language_id for language_id in _table()}


def _key(name: str) -> str:
    """`name` without case, accents and punctuation: "Haitian Creole" and "haitian-creole" are the same."""
    decomposed = unicodedata.normalize("NFKD", name.casefold())
    return " ".join(re.findall(r"[^\W_]+", "".join(c for c in decomposed if not unicodedata.combining(c))))

"""Rewrite omnitts/model/data/languages.tsv: the names of the languages whose ids stand in its first column.

    pip install pycountry "langcodes[data]"
    python scripts/make_languages.py

Names come from ISO 639-3 (pycountry) and CLDR (langcodes), everyday ones that both lack from ALIASES below.
CLDR's name goes first, as the one in common use: Greek, not "Modern Greek (1453-)".
"""

import re
import unicodedata
from collections import Counter
from pathlib import Path

import langcodes
import pycountry

TABLE = Path(__file__).parents[1] / "omnitts/model/data/languages.tsv"
HEADER = "# Language id, then its names (the usual one first) and other ISO 639 codes that stand for it.\n"

# Codes of macrolanguages and of standard varieties go to the one id the model knows for them.
ALIASES = {
    "arb": "Arabic;Modern Standard Arabic;ar;ara",
    "apc": "Levantine Arabic;ajp",
    "az": "Azeri;azj",
    "bn": "Bengali",
    "ca": "Valencian",
    "ckb": "Sorani;Sorani Kurdish",
    "dgo": "doi",
    "dv": "Dhivehi;Maldivian",
    "es": "Castilian",
    "et": "ekk",
    "fa": "Farsi;Dari;pes;prs",
    "ff": "Fulani;Fulfulde",
    "fil": "Tagalog;tl;tgl",
    "fy": "Frisian",
    "ga": "Irish Gaelic",
    "gn": "gug",
    "hak": "Hakka",
    "he": "iw",
    "id": "in",
    "kea": "Cape Verdean Creole",
    "kmr": "Kurdish;Kurmanji;ku;kur",
    "knn": "kok",
    "lg": "Luganda",
    "lv": "lvs",
    "mn": "khk",
    "mni": "Meitei",
    "ms": "zsm",
    "my": "Myanmar",
    "nan": "Hokkien;Taiwanese;Taiwanese Hokkien;Min Nan",
    "nl": "Flemish",
    "npi": "ne;nep",
    "nso": "Sepedi",
    "ny": "Chewa",
    "om": "Afaan Oromo",
    "ory": "Oriya;or;ori",
    "pcm": "Nigerian Pidgin English",
    "pnb": "Western Punjabi",
    "plt": "Malagasy;mg;mlg",
    "ro": "Moldovan;mo",
    "sah": "Sakha",
    "si": "Sinhalese",
    "sl": "Slovene",
    "sq": "als",
    "sw": "Kiswahili;swh",
    "tn": "Setswana",
    "tw": "Akan;ak;aka",
    "xh": "isiXhosa",
    "yi": "ji",
    "zh": "Mandarin;Mandarin Chinese;cmn",
    "zu": "isiZulu",
}


def names_and_codes(language_id: str) -> tuple[list[str], list[str]]:
    field = "alpha_2" if len(language_id) == 2 else "alpha_3"
    language = pycountry.languages.get(**{field: language_id})
    common = langcodes.Language.make(language_id).display_name()
    names = [_tidy(common), _tidy(language.name)]
    codes = [language.alpha_3, getattr(language, "bibliographic", language.alpha_3)]
    for alias in filter(None, ALIASES.get(language_id, "").split(";")):
        (codes if alias.islower() else names).append(alias)
    return list(dict.fromkeys(names)), [code for code in dict.fromkeys(codes) if code != language_id]


def _tidy(name: str) -> str:
    """`name` without the qualifiers that only ISO 639 needs: kinds of entry, periods, an association."""
    qualifiers = r" \((macrolanguage|individual language|[^)]*\d[^)]*|International [^)]*)\)"
    return re.sub(qualifiers, "", unicodedata.normalize("NFC", name))


def main() -> None:
    ids = [line.split("\t")[0] for line in TABLE.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    table = {language_id: names_and_codes(language_id) for language_id in sorted(ids)}

    # "Luo (Kenya and Tanzania)" is also Luo, unless another language here has that name.
    bare = {i: sorted({name.split(" (")[0] for name in names} - {*names}) for i, (names, _) in table.items()}
    taken = Counter(name for i, (names, _) in table.items() for name in (*names, *bare[i]))
    rows = {i: [*names, *(name for name in bare[i] if taken[name] == 1), *codes] for i, (names, codes) in table.items()}

    owners = {language_id: language_id for language_id in rows}
    for language_id, names in rows.items():
        for name in names:
            owner = owners.setdefault(name.casefold(), language_id)
            if owner != language_id:
                raise SystemExit(f"{name!r} is both {owner} and {language_id}: mend ALIASES")
    lines = [f"{language_id}\t{';'.join(names)}\n" for language_id, names in rows.items()]
    TABLE.write_text(HEADER + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()

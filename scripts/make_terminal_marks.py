"""Rewrite omnitts/model/data/terminal_marks.tsv: the marks of all scripts at which a sentence or a clause can end.

    pip install regex
    python scripts/make_terminal_marks.py

They are Unicode's Sentence_Terminal, and what else has Terminal_Punctuation, as the package regex knows them.
"""

import re
from importlib.metadata import metadata
from pathlib import Path

import regex

TABLE = Path(__file__).parents[1] / "omnitts/model/data/terminal_marks.tsv"
HEADER = "# Code point (hexadecimal), and what can end at it: Sentence_Terminal, Terminal_Punctuation of Unicode {}.\n"


def main() -> None:
    rows = []
    for mark in map(chr, range(0x110000)):
        if regex.match(r"\p{Terminal_Punctuation}", mark):
            kind = "sentence" if regex.match(r"\p{Sentence_Terminal}", mark) else "clause"
            rows.append(f"{ord(mark):04X}\t{kind}\n")
    version = re.search(r"Unicode (\d+\.\d+\.\d+)", metadata("regex").get_payload())[1]
    TABLE.write_text(HEADER.format(version) + "".join(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

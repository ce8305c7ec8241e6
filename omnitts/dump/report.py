"""All dumps of a folder as one HTML page that needs nothing but itself."""

import base64
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np

from omnitts import __version__
from omnitts.dump.figures import lowest, mean, real_time_factor, reveal_order, thinned
from omnitts.dump.format import Dump, load
from omnitts.dump.outliers import Certainty, doubts
from omnitts.dump.recording import Recording, compact_audio
from omnitts.errors import InputError, counted, shown_path
from omnitts.targets import Kind, Target, writing

_PICTURE_COLUMNS = 640
_MARK = b'<meta name="generator" content="omnitts'
_START = 1 << 12  # bytes of a page, in which it is
_UNKNOWN = 255  # a byte of a picture; others are shares of 254


@dataclass(frozen=True)
class Row:
    """What the page shows of a dump, and keeps of it: a few KB."""

    path: Path
    id: str
    text: str
    seconds: float
    certainty: Certainty
    worst_logprob: float
    real_time_factor: float
    error: str | None
    made: tuple[tuple[str, str], ...]  # name and value of what is mostly the same for all dumps
    picture: bytes  # uint8 [2, C, columns]: the order of reveal, and the likeliest token's probability at reveal
    codebooks: int


@dataclass(frozen=True)
class Written:
    """What became of a page: how many dumps are in it, a line for each file that could not be read, which it lists.

    silent: the ids of dumps whose audio is not where it was looked for, though there should be some.
    """

    dumps: int
    complaints: list[str]
    silent: list[str]


def _is_page(path: Path) -> bool:
    with open(path, "rb") as file:
        return _MARK in file.read(_START)


KIND = Kind("a page of dumps", (".html", ".htm"), _is_page)


def write_report(
    path: str | PathLike | Target, dumps: Sequence[Path], recordings: Mapping[Path, Recording], folder: str | PathLike
) -> Written:
    """Writes the page of dumps, whole or not at all.

    recordings: the audio of dumps, by these; folder: of the dumps, for messages. Raises InputError when no dump can be
    read, OSError when the disk refuses.
    """
    rows, complaints = _read_all(dumps)
    if not rows:
        raise InputError(f"none of the dumps in {shown_path(folder)} can be read: {complaints[0]}")
    before_rows, before_audio, end = _template()
    with writing(path) as temporary, open(temporary, "w", encoding="utf-8", errors="replace") as page:
        reasons = [
            [*([f"no audio: {row.error}"] if row.error else []), *doubted]
            for row, doubted in zip(rows, doubts([row.certainty for row in rows]), strict=True)
        ]
        page.write(before_rows.replace("<!-- summary -->", _summary(rows, reasons)))
        page.writelines(_row(number, row, why) for number, (row, why) in enumerate(zip(rows, reasons, strict=True)))
        page.write(before_audio)
        for number, row in enumerate(rows):
            if row.path in recordings:
                complaints += _write_audio(page, number, recordings[row.path])
        page.write(end.replace("<!-- complaints -->", _complaints(complaints)))
    silent = [row.id for row in rows if row.path not in recordings and not row.error]
    return Written(len(rows), complaints, silent)


def _template() -> list[str]:
    text = files("omnitts.dump").joinpath("report.html").read_text(encoding="utf-8")
    text = text.replace(_MARK.decode(), f"{_MARK.decode()} {__version__}")
    before_rows, rest = text.split("<!-- rows -->\n")
    return [before_rows, *rest.split("<!-- audio -->\n")]


# ---- Reading ----


def _read_all(found: Iterable[Path]) -> tuple[list[Row], list[str]]:
    """One dump at a time, since a folder of them is larger than memory. A damaged one costs no other."""
    rows, complaints = [], []
    for path in found:
        try:
            rows.append(_read(path, load(path)))
        except InputError as error:
            complaints.append(str(error))
    return rows, complaints


def _read(path: Path, dump: Dump) -> Row:
    logprobs = dump.at_reveal(dump.logprobs)
    return Row(
        path=path,
        id=dump.id,
        text=dump.text,
        seconds=dump.seconds,
        certainty=Certainty(mean(logprobs), np.array([mean(logprobs[:, frame]) for frame in range(dump.frames)])),
        worst_logprob=lowest(logprobs),
        real_time_factor=real_time_factor(dump),
        error=dump.error,
        made=(
            ("model", dump.model_digest),
            ("device", dump.device),
            ("dtype", dump.dtype),
            ("recipe", str(dump.recipe.get("name", "-"))),
            ("steps", str(dump.num_step)),
            *((name, str(version)) for name, version in dump.versions.items()),
        ),
        picture=_picture(dump),
        codebooks=dump.codebooks,
    )


def _picture(dump: Dump) -> bytes:
    if not dump.frames:
        return b""
    layers = reveal_order(dump)[dump.revealed], np.exp(dump.at_reveal(dump.confidence))
    shares = np.stack([thinned(layer, _PICTURE_COLUMNS) for layer in layers])
    known = np.nan_to_num(shares).clip(0, 1) * (_UNKNOWN - 1)
    return np.where(np.isnan(shares), _UNKNOWN, np.rint(known)).astype(np.uint8).tobytes()


# ---- Writing ----


def _summary(rows: Sequence[Row], reasons: Sequence[Sequence[str]]) -> str:
    facts = {"utterances": f"{len(rows):,}", "to check": f"{sum(map(bool, reasons)):,}"}
    facts["seconds"] = f"{sum(row.seconds for row in rows):,.1f}"
    values: dict[str, dict[str, None]] = {}  # in place of a set, which has no order
    for name, value in (pair for row in rows for pair in row.made):
        values.setdefault(name, {})[value] = None
    facts |= {name: ", ".join(list(found)[:3]) + (", ..." if len(found) > 3 else "") for name, found in values.items()}
    return "\n".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())


def _row(number: int, row: Row, reasons: Sequence[str]) -> str:
    name = f'<th scope="row" data-value="{escape(row.id)}"><span class="id">{escape(row.id)}</span>'
    listed = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
    picture = (
        f'<canvas data-cells="{base64.b64encode(row.picture).decode()}" data-codebooks="{row.codebooks}" role="img" '
        f'aria-label="Order of reveal and confidence of {escape(row.id)}"></canvas>'
    )
    cells = [
        f'{name}<span class="text" dir="auto">{escape(row.text)}</span></th>',
        _number(row.seconds, 2),
        _number(row.certainty.mean, 2),
        _number(row.worst_logprob, 2),
        _number(row.real_time_factor, 3),
        f'<td class="reasons" data-value="{len(reasons)}">' + (f"<ul>{listed}</ul>" if reasons else "") + "</td>",
        f'<td class="picture">{picture if row.picture else "no frames"}</td>',
        '<td class="player"></td>',
    ]
    flagged = ' class="flagged"' if reasons else ""
    return f'<tr data-number="{number}"{flagged}>' + "".join(cells) + "</tr>\n"


def _number(value: float, digits: int) -> str:
    if math.isnan(value):
        return '<td class="number" data-value="">-</td>'
    sorted_by = "-1e999" if value == -math.inf else f"{value:.6g}"
    return f'<td class="number" data-value="{sorted_by}">{value:.{digits}f}</td>'


def _write_audio(page: IO[str], number: int, recording: Recording) -> Iterator[str]:
    """Writes a row's audio; yields why it could not be read.

    In an element of its own, which no browser decodes until the row is looked at.
    """
    try:
        kind, data = compact_audio(recording)
    except InputError as error:
        yield str(error)
        return
    page.write(f'<script type="text/plain" id="audio-{number}" data-kind="{kind}">')
    page.write(base64.b64encode(data).decode())
    page.write("</script>\n")


def _complaints(complaints: Sequence[str]) -> str:
    if not complaints:
        return ""
    listed = "".join(f"<li>{escape(line)}</li>\n" for line in complaints)
    return f"<section>\n<h2>{counted(len(complaints), 'file')} could not be read</h2>\n<ul>\n{listed}</ul>\n</section>"

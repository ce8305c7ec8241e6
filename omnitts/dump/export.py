"""All cells of a folder of dumps as one Parquet table."""

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from omnitts import __version__
from omnitts.dump.format import Dump, load, paths
from omnitts.errors import InputError, shown_path
from omnitts.model.duration import FRAME_RATE
from omnitts.targets import Kind, Target, writing

if TYPE_CHECKING:
    import pyarrow

_GROUP_ROWS = 1 << 20  # in a row group, about: some 40 MB before compression
_MARK = b"omnitts"  # in the file's metadata, with the version
_NUMBERS = ("logprob", "confidence", "score", "cond_logprob", "uncond_logprob")


def _is_export(path: Path) -> bool:
    import pyarrow.parquet

    return _MARK in (pyarrow.parquet.read_metadata(path).metadata or {})


KIND = Kind("a table of dumps", (".parquet",), _is_export)


def export(path: str | PathLike | Target, folder: str | PathLike) -> tuple[int, list[str]]:
    """Writes a row a cell and dumped step, whole or not at all. docs/dumps.md has the columns.

    Returns how many, and a line for each dump that could not be read. A dump at a time, so memory does not grow with
    their number. Raises InputError when pyarrow is missing or no dump can be read, OSError when the disk refuses.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError("Parquet needs pyarrow: pip install pyarrow, or the extra parquet") from error
    found, schema, rows, complaints = paths(folder), _schema(), 0, []
    with (
        writing(path) as temporary,
        pyarrow.parquet.ParquetWriter(temporary, schema, compression="zstd") as writer,
    ):
        for dump_path in found:
            try:
                loaded = load(dump_path)
            except InputError as error:
                complaints.append(str(error))
                continue
            for group in _groups(loaded):
                writer.write_table(pyarrow.table(group, schema=schema))
                rows += len(group["step"])
        if len(complaints) == len(found):
            raise InputError(f"none of the dumps in {shown_path(folder)} can be read: {complaints[0]}")
    return rows, complaints


def _schema() -> "pyarrow.Schema":
    import pyarrow as pa

    return pa.schema(
        [
            ("id", pa.dictionary(pa.int32(), pa.string())),
            *[("step", pa.int32()), ("codebook", pa.int16()), ("frame", pa.int32()), ("seconds", pa.float64())],
            ("token", pa.int16()),
            *[(name, pa.float32()) for name in _NUMBERS],
            *[("masked", pa.bool_()), ("revealed_at", pa.int16()), ("final_code", pa.int16())],
        ],
        metadata={_MARK: __version__},
    )


def _groups(dump: Dump) -> Iterator[dict[str, "pyarrow.Array"]]:
    """Columns of as many steps at a time as a row group takes, at least one."""
    if not dump.frames:
        return
    steps = max(1, _GROUP_ROWS // dump.codes.size)
    for start in range(0, len(dump.steps), steps):
        yield _columns(dump, slice(start, start + steps))


def _columns(dump: Dump, rows: slice) -> dict[str, "pyarrow.Array"]:
    """Token and numbers are null where the cell's piece did not run the step."""
    import pyarrow as pa

    tokens = dump.tokens[rows]
    step, codebook, frame = np.broadcast_arrays(
        dump.steps[rows, None, None], np.arange(dump.codebooks)[:, None], np.arange(dump.frames)
    )
    idle = (tokens < 0).ravel()
    numbers = (dump.logprobs, dump.confidence, dump.scores, dump.cond_logprobs, dump.uncond_logprobs)

    def column(values: np.ndarray, dtype: type, mask: np.ndarray | None = None) -> pa.Array:
        return pa.array(np.broadcast_to(values, tokens.shape).ravel().astype(dtype), mask=mask)

    return {
        "id": pa.DictionaryArray.from_arrays(pa.array(np.zeros(tokens.size, np.int32)), pa.array([dump.id])),
        "step": column(step, np.int32),
        "codebook": column(codebook, np.int16),
        "frame": column(frame, np.int32),
        "seconds": column(frame / FRAME_RATE, np.float64),
        "token": column(tokens, np.int16, idle),
        **{name: column(values[rows], np.float32, idle) for name, values in zip(_NUMBERS, numbers, strict=True)},
        "masked": column(dump.revealed >= step, np.bool_),
        "revealed_at": column(dump.revealed, np.int16),
        "final_code": column(dump.codes, np.int16),
    }

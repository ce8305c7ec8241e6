import sys

import numpy as np
import pytest

from omnitts.dump import Piece
from omnitts.dump import export as module
from tests.dump.conftest import make_dump, write
from tests.dump.test_show import without_steps

parquet = pytest.importorskip("pyarrow.parquet")


def test_a_row_a_cell_and_step(run, tmp_path):
    a, b = make_dump(), make_dump("b", frames=7, every=3, seed=1, dtype=np.float32)
    for made in (a, b):
        write(tmp_path, made)
    out = tmp_path / "cells.parquet"
    rows = a.tokens.size + b.tokens.size
    assert run("dump", "export", tmp_path, "-o", out) == (0, f"{out}: {rows:,} rows\n", "")
    table = parquet.read_table(out)
    assert table.num_rows == rows and table.column_names[:5] == ["id", "step", "codebook", "frame", "seconds"]
    assert not any(column.null_count for column in table.columns)
    for row in table.slice(a.tokens.size).to_pylist()[::37] + table.slice(0, a.tokens.size).to_pylist()[::101]:
        made = {"a": a, "b": b}[row["id"]]
        cell = row["codebook"], row["frame"]
        at = (int(np.flatnonzero(made.steps == row["step"])[0]), *cell)
        assert (row["token"], row["logprob"], row["score"]) == (made.tokens[at], made.logprobs[at], made.scores[at])
        assert row["cond_logprob"] == made.cond_logprobs[at] and row["uncond_logprob"] == made.uncond_logprobs[at]
        assert row["confidence"] == made.confidence[at] and row["seconds"] == row["frame"] / 25
        assert row["masked"] == made.masked()[at]
        assert (row["revealed_at"], row["final_code"]) == (made.revealed[cell], made.codes[cell])


def test_row_groups_bound_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_GROUP_ROWS", 200)
    made = make_dump()
    write(tmp_path, made)
    assert module.export(tmp_path / "cells.parquet", tmp_path) == (made.tokens.size, [])
    groups = parquet.ParquetFile(tmp_path / "cells.parquet").metadata
    assert groups.num_row_groups == 4 and groups.row_group(0).num_rows == 2 * 96


def test_steps_that_a_piece_did_not_run_are_null(tmp_path):
    made = make_dump(pieces=(Piece(6, 1), Piece(6, 2)))
    made.tokens[3, :, 6:] = -1
    write(tmp_path, made)
    module.export(tmp_path / "cells.parquet", tmp_path)
    table = parquet.read_table(tmp_path / "cells.parquet")
    assert {name: table[name].null_count for name in ("token", "logprob", "score", "masked")} == {
        **{"token": 48, "logprob": 48, "score": 48},
        "masked": 0,
    }


def test_no_steps_is_an_empty_table(tmp_path):
    write(tmp_path, without_steps(make_dump()))
    write(tmp_path, make_dump("b", frames=0))
    assert module.export(tmp_path / "cells.parquet", tmp_path) == (0, [])
    assert parquet.read_table(tmp_path / "cells.parquet").num_columns == 14


def test_a_broken_dump_costs_no_other(run, tmp_path):
    made = make_dump()
    write(tmp_path, made)
    (tmp_path / "b.dump.safetensors").write_bytes(b"no dump")
    out = tmp_path / "cells.parquet"
    code, printed, said = run("dump", "export", tmp_path, "-o", out)
    assert code == 1 and printed == f"{out}: {made.tokens.size:,} rows\n"
    assert said.startswith("warning: ") and "b.dump.safetensors" in said and said.count("\n") == 1
    assert parquet.read_table(out).num_rows == made.tokens.size


def test_written_whole_or_not_at_all(run, tmp_path, monkeypatch):
    (tmp_path / "b.dump.safetensors").write_bytes(b"no dump")
    code, _, said = run("dump", "export", tmp_path, "-o", tmp_path / "cells.parquet")
    assert code == 2 and "b.dump.safetensors" in said and said.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["b.dump.safetensors"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, said = run("dump", "export", tmp_path, "-o", tmp_path / "cells.parquet")
    assert code == 2 and said == "error: Parquet needs pyarrow: pip install pyarrow, or the extra parquet\n"

import math

import numpy as np
import pytest

from omnitts.dump.show import codebook_figures, least_certain, show, step_figures
from tests.dump.conftest import make_dump, write


def test_steps():
    made = make_dump(top=4)
    rows = step_figures(made)
    assert [row.step for row in rows] == list(range(8))
    assert sum(row.revealed for row in rows) == rows[0].masked == made.codes.size
    cells = made.revealed >= 3
    logprobs = made.logprobs[3][cells].astype(np.float64)
    assert rows[3].masked == cells.sum()
    assert rows[3].mean_logprob == pytest.approx(logprobs.mean())
    assert rows[3].lowest_logprob == logprobs.min()
    assert rows[3].confidence == pytest.approx(np.exp(logprobs).mean(), rel=1e-4)
    assert rows[3].guidance == pytest.approx(0.25, abs=0.01)
    assert rows[3].bits == pytest.approx(2, abs=0.01)  # four tokens, equally likely


def test_without_top_tokens_it_is_surprisal():
    made = make_dump()
    assert step_figures(made)[0].bits == pytest.approx(-step_figures(made)[0].mean_logprob / math.log(2))
    text = "\n".join(show(made))
    assert "surprisal" in text and "entropy" not in text
    assert "top-3 entropy" in "\n".join(show(make_dump(top=3)))


def test_codebooks_and_cells():
    made = make_dump()
    at = made.at_reveal(made.logprobs)
    rows = codebook_figures(made)
    assert [row.lowest_logprob for row in rows] == at.min(axis=1).tolist()
    assert rows[0].median_step < rows[7].median_step
    cells = least_certain(made)
    assert [cell.logprob for cell in cells] == np.sort(at.ravel())[:10].tolist()
    worst = cells[0]
    assert (worst.step, worst.token) == (
        made.revealed[worst.codebook, worst.frame],
        made.codes[worst.codebook, worst.frame],
    )
    assert worst.seconds == worst.frame / 25


@pytest.mark.parametrize("frames", [1, 40])
@pytest.mark.parametrize("top", [0, 5])
def test_lines_are_narrow(frames, top):
    made = make_dump(
        frames=frames, top=top, text="word " * 80, instruct="male, whisper", error="the logits were not finite"
    )
    lines = show(made)
    assert max(map(len, lines)) <= 100
    assert "not finite" in "\n".join(lines) and "instruct male, whisper" in "\n".join(lines)


def test_what_was_not_dumped_is_a_dash():
    few = make_dump(every=5)
    at = [row for row in codebook_figures(few) if math.isnan(row.mean_logprob)]
    assert len(least_certain(few)) == 10 and len(step_figures(few)) == 2
    none = without_steps(make_dump())
    text = "\n".join(show(none))
    assert "no step was dumped" in text and "-        -" in text and "nan" not in text
    assert least_certain(none) == [] and len(codebook_figures(none)) == 8 and at is not None


def without_steps(made):
    from dataclasses import replace

    names = ("steps", "tokens", "logprobs", "confidence", "scores", "cond_logprobs", "uncond_logprobs")
    return replace(made, **{name: getattr(made, name)[:0] for name in names})


def test_an_infinite_logprob_and_no_frames():
    made = make_dump()
    made.logprobs[0] = -np.inf
    assert step_figures(made)[0].mean_logprob == -np.inf
    assert "-inf" in "\n".join(show(made))
    assert "0 frames" in "\n".join(show(make_dump(frames=0)))


def test_texts_cannot_move_the_cursor(run, tmp_path):
    code, printed, _ = run("dump", "show", write(tmp_path, make_dump(text="one\x1b[2J two\nthree")))
    assert code == 0 and "\x1b" not in printed and "one\\x1b[2J two\\nthree" in printed

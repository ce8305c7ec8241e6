import math
from dataclasses import replace

import numpy as np
import pytest

from omnitts.dump import Piece
from omnitts.dump.diff import compare, describe
from tests.dump.conftest import make_dump, write
from tests.dump.test_show import without_steps


def words(a, b) -> str:
    return "\n".join(describe(compare(a, b), "a", "b"))


def with_token(made, step, codebook, frame, token=7, logprob=0.0):
    """Another token predicted at a step, whose logprob is so much higher."""
    tokens, logprobs = made.tokens.copy(), made.logprobs.copy()
    tokens[step, codebook, frame] = token
    logprobs[step, codebook, frame] += logprobs.dtype.type(logprob)
    return replace(made, tokens=tokens, logprobs=logprobs)


def with_swapped_reveal(made, step):
    """The last cell in rank of a step changes places with the first of the next."""
    revealed = made.revealed.copy()
    score = made.scores[step].astype(np.float64)
    left = np.unravel_index(np.where(revealed == step, score, np.inf).argmin(), score.shape)
    right = np.unravel_index(np.where(revealed == step + 1, score, -np.inf).argmax(), score.shape)
    revealed[left], revealed[right] = step + 1, step
    return replace(made, revealed=revealed)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_equal(dtype):
    a = make_dump(dtype=dtype)
    assert compare(a, a).equal and compare(a, a).metadata == ()
    rounded = replace(a, logprobs=np.nextafter(a.logprobs, dtype(0)), device="cuda:0")
    result = compare(a, rounded)
    assert result.equal and [name for name, _, _ in result.metadata] == ["device"]
    assert "Equal" in words(a, rounded)


def test_equal_across_dtypes():
    a = make_dump(dtype=np.float32)
    names = ("logprobs", "confidence", "scores", "cond_logprobs", "uncond_logprobs")
    assert compare(a, replace(a, **{name: getattr(a, name).astype(np.float16) for name in names})).equal


def test_numbers_beyond_rounding():
    a = make_dump()
    b = replace(a, logprobs=a.logprobs - np.float16(0.05))
    result = compare(a, b)
    assert not result.equal and result.parting is None and result.codes == 0
    assert result.steps[0].mean == pytest.approx(0.05, abs=0.005) and result.steps[0].tokens == 0
    assert "The same tokens, reveals and codes" in words(a, b)
    infinite = a.cond_logprobs.copy()
    infinite[0, 0, 0] = -np.inf
    assert compare(a, replace(a, cond_logprobs=infinite)).beyond_rounding == 1


def test_a_token_that_rounding_tipped():
    a = make_dump()
    codebook, frame = np.argwhere(a.revealed > 4)[0]
    b = with_token(a, 4, codebook, frame, logprob=0.01)
    result = compare(a, b)
    parting = result.parting
    assert (parting.step, parting.codebook, parting.frame, parting.what) == (4, codebook, frame, "predicted tokens")
    assert parting.tokens == (a.tokens[4, codebook, frame], 7) and parting.cells == 1
    assert parting.seconds == frame / 25
    assert parting.gap == pytest.approx(0.01, abs=0.005) and parting.before == parting.at == 0
    assert result.canvas is None and result.steps[4].tokens == 1 and result.steps[3].tokens == 0
    assert "looks like rounding" in words(a, b) and "the results are the same" in words(a, b)


def test_a_token_that_rounding_cannot_explain():
    a = make_dump()
    codebook, frame = np.argwhere(a.revealed > 4)[0]
    assert "Too much for rounding" in words(a, with_token(a, 4, codebook, frame, logprob=-2))
    moved = a.logprobs.copy()
    moved[2] -= np.float16(1)
    b = with_token(replace(a, logprobs=moved), 4, codebook, frame)
    assert compare(a, b).parting.before == pytest.approx(1, abs=0.01)
    assert "logprobs differed by 1.0" in words(a, b) and "Too much for rounding" in words(a, b)
    half = [replace(made, dtype="bfloat16") for made in (a, b)]
    assert "looks like rounding" in words(*half) or compare(*half).parting.before > 1


def test_cells_revealed_in_another_order():
    a = make_dump()
    b = with_swapped_reveal(a, 3)
    result = compare(a, b)
    assert (result.parting.step, result.canvas) == (3, (0, 3)) and result.parting.what == "revealed cells"
    assert result.steps[3].revealed == result.steps[4].revealed == 2 and result.parting.cells == 2
    assert result.parting.gap > 0 and "Too much for rounding" in words(a, b)
    near = replace(a, scores=np.where(np.isfinite(a.scores), a.scores / np.float16(1000), a.scores))
    assert "looks like rounding" in words(near, replace(near, revealed=b.revealed))
    assert "From step 3 on their canvases differ" in words(a, b)


def test_another_seed_is_the_cause():
    a = make_dump()
    b = make_dump(seed=1, pieces=(Piece(12, 6),), versions={"omnitts": "0.1.0", "torch": "3"})
    result = compare(a, b)
    assert result.causes == ("seed",) and result.parting.step == 0 and result.codes > 0
    assert result.parting.what == "predicted tokens and revealed cells"
    assert "A real difference: seed." in words(a, b)
    assert ("versions.torch", "-", "3") in result.metadata
    other = replace(b, pieces=a.pieces, recipe=dict(a.recipe) | {"guidance_scale": 3.0, "precision": "fp8"})
    assert compare(a, other).causes == ("recipe.guidance_scale",)


def test_sampled_tokens_are_not_judged_by_their_logprobs():
    a = make_dump(recipe=dict(make_dump().recipe) | {"class_temperature": 1.0})
    codebook, frame = np.argwhere(a.revealed > 4)[0]
    b = with_token(a, 4, codebook, frame, logprob=-2)
    assert math.isnan(compare(a, b).parting.gap) and "looks like rounding" in words(a, b)


def test_results_tell_of_steps_that_were_not_dumped():
    a = make_dump(every=4)
    codes = a.codes.copy()
    codebook, frame = np.argwhere(a.revealed == 5)[0]
    codes[codebook, frame] += 1
    result = compare(a, replace(a, codes=codes))
    assert result.codes == 1 and all(row.tokens == row.revealed == 0 for row in result.steps)
    assert (result.parting.step, result.parting.what) == (5, "predicted tokens")
    assert result.parting.tokens == (a.codes[codebook, frame], codes[codebook, frame])
    assert not result.equal and "The results differ in 1 code." in words(a, replace(a, codes=codes))
    assert "looks like rounding" in words(a, replace(a, codes=codes))
    last = [replace(made, **cut(made)) for made in (a, replace(a, codes=codes))]
    assert "dump more steps" in words(*last)


def cut(made):
    """Only step 8 of a longer schedule, which comes after all else."""
    names = ("tokens", "logprobs", "confidence", "scores", "cond_logprobs", "uncond_logprobs")
    one = {name: getattr(made, name)[:1] for name in names}
    return one | {"steps": np.array([8], np.int32), "recipe": dict(made.recipe) | {"num_step": 9}}


def test_the_first_piece_that_differs_is_looked_at():
    """The others may follow from it, as their reference."""
    a = make_dump(pieces=(Piece(4, 1), Piece(4, 2), Piece(4, 3)))
    late = int(np.argwhere(a.revealed[:, 4:8] == 6)[0][0])
    b = with_token(a, 6, late, 5, logprob=0.01)  # in the second piece
    logprobs = b.logprobs.copy()
    logprobs[:, :, 8:] -= np.float16(2)
    tokens, codes = b.tokens.copy(), a.codes.copy()
    tokens[0, :, 8:] = 3  # the third differs from the first step on
    codes[:, 8:] = 3
    result = compare(a, replace(b, logprobs=logprobs, tokens=tokens, codes=codes))
    parting = result.parting
    assert (parting.piece, parting.step, parting.codebook, parting.frame, parting.cells) == (1, 6, late, 5, 1)
    assert parting.before == 0 and result.canvas == (2, int(a.revealed[:, 8:].min()))
    text = "\n".join(describe(result, "a", "b"))
    assert "part at step 6 of piece 2 of 3" in text and "of piece 3 of 3 on their canvases differ" in text
    assert "looks like rounding" in text and "nan" not in text


def test_pieces_of_other_lengths_are_a_cause():
    a = make_dump(pieces=(Piece(6, 1), Piece(6, 2)))
    b = replace(with_swapped_reveal(a, 3), pieces=(Piece(5, 1), Piece(7, 2)))
    assert compare(a, b).causes == ("pieces",) and compare(a, b).parting.piece == 0


def test_what_cannot_be_compared(run, tmp_path):
    path = write(tmp_path, make_dump())
    for made, wanted in (
        (make_dump("text", text="Something else."), "different texts"),
        (make_dump("long", frames=13), "12 frames of 8 codebooks and 13 frames of 8 codebooks"),
        (without_steps(make_dump("steps")), "no step in common"),
    ):
        code, printed, said = run("dump", "diff", path, write(tmp_path, made))
        assert code == 2 and printed == "" and wanted in said and said.count("\n") == 1


def test_exit_codes_and_width(run, tmp_path):
    a = make_dump()
    one, two = write(tmp_path, a), write(tmp_path, replace(with_swapped_reveal(a, 2), id="b"))
    code, printed, said = run("dump", "diff", one, one)
    assert (code, said) == (0, "") and printed.endswith("within the rounding of the dumps.\n")
    code, printed, said = run("dump", "diff", one, two)
    assert (code, said) == (1, "") and "They part at step 2" in printed
    assert max(len(line) for line in printed.splitlines() if "/" not in line) <= 100

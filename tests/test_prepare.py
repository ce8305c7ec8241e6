"""From utterances to pieces: chunks, lengths, prompts, seeds, and the order of batches."""

from dataclasses import dataclass, replace

import pytest

from omnitts.clips import too_long
from omnitts.manifest import read_utterances
from omnitts.model.checkpoint import load_tokenizer, open_checkpoint
from omnitts.model.duration import estimate_frames
from omnitts.prepare import derive_seed, plan_batches, plan_pieces, utterance_seed, windows
from omnitts.recipe import Recipe

LONG_TEXT = "One sentence follows another here, and each takes a few seconds. " * 14


@dataclass(frozen=True)
class Recording:
    text: str = "What is said in it."
    frames: int = 80


@pytest.fixture(scope="module")
def tokenizer(checkpoint_dir):
    return load_tokenizer(open_checkpoint(checkpoint_dir))


def utterances(*records, recipe=None):
    return read_utterances(records, recipe=recipe or Recipe())


def pieces_of(tokenizer, *records, reference=None, recipe=None):
    items = utterances(*records, recipe=recipe)
    return plan_pieces(tokenizer, items, [reference] * len(items), [5] * len(items))


def test_a_short_text_is_one_piece(tokenizer):
    (piece,) = pieces_of(tokenizer, {"text": "Hello there."})
    assert (piece.owner, piece.chunk, piece.follows_first, piece.seed) == (0, 0, False, 5)
    assert piece.target_frames == estimate_frames("Hello there.")
    assert piece.positions == len(piece.prompt_ids) + 2 * piece.target_frames


def test_prompt_and_length_are_those_of_what_is_spoken(tokenizer):
    usual, *others = pieces_of(
        tokenizer,
        *(
            {"text": text}
            for text in ("We washed the orange.", "  We washed the\norange.\n\n", "We washed\u200b the\t\xadorange.")
        ),
        reference=Recording("What is said in it."),
    )
    blanks = pieces_of(
        tokenizer, {"text": "We washed the orange."}, reference=Recording(" What is\r\nsaid in it.\ufeff")
    )
    for piece in (*others, *blanks):
        assert (piece.prompt_ids, piece.target_frames) == (usual.prompt_ids, usual.target_frames)
    apart, dropped = pieces_of(tokenizer, {"text": "世界\n和平"}, {"text": "世界和平"})
    assert (apart.prompt_ids, apart.target_frames) == (dropped.prompt_ids, dropped.target_frames)


def test_positions_count_reference_and_guidance(tokenizer):
    plain = Recipe(guidance_scale=0.0)
    (piece,) = pieces_of(tokenizer, {"text": "Hello there."}, reference=Recording(), recipe=plain)
    assert piece.positions == len(piece.prompt_ids) + 80 + piece.target_frames


def test_duration_and_speed_set_the_length(tokenizer):
    timed, fast, slow = pieces_of(
        tokenizer,
        {"text": "Hello there.", "duration": 2.5},
        {"text": "A sentence that is not all too short, so that no lift applies.", "speed": 2.0},
        {"text": "A sentence that is not all too short, so that no lift applies.", "speed": 0.5},
    )
    assert timed.target_frames == 62
    assert slow.target_frames == pytest.approx(4 * fast.target_frames, abs=4)


def test_recipe_speed_holds_where_the_line_says_none(tokenizer):
    recipe = Recipe(speed=2.0)
    text = "A sentence that is not all too short, so that no lift applies."
    own, given = pieces_of(tokenizer, {"text": text, "speed": 1.0}, {"text": text}, recipe=recipe)
    assert own.target_frames == pytest.approx(2 * given.target_frames, abs=1)


def test_chunks_without_a_reference_follow_the_first(tokenizer):
    pieces = pieces_of(tokenizer, {"text": LONG_TEXT})
    assert len(pieces) > 2
    first, *others = pieces
    assert not first.follows_first and first.reference_frames == 0
    assert all(p.follows_first and p.reference_frames == first.target_frames for p in others)
    assert len({p.seed for p in pieces}) == len(pieces)
    assert 10 * 25 < first.target_frames < 20 * 25


def test_chunks_with_a_reference_use_it_alone(tokenizer):
    pieces = pieces_of(tokenizer, {"text": LONG_TEXT}, reference=Recording())
    assert len(pieces) > 2
    assert all(not p.follows_first and p.reference_frames == 80 for p in pieces)


def test_duration_of_a_long_text_is_kept_by_its_chunks(tokenizer):
    pieces = pieces_of(tokenizer, {"text": LONG_TEXT, "duration": 100.0})
    lengths = [p.target_frames for p in pieces]
    assert sum(lengths) == 2492  # as the published decoder has it: within 5 % it stays
    assert all(p.reference_frames == lengths[0] for p in pieces[1:])


@pytest.mark.parametrize("reference", [None, Recording()])
@pytest.mark.parametrize(
    ("text", "seconds", "chunks"),
    [
        ("A text. With two sentences in it, and more.", 40, 3),  # the lift of short chunks would make it 115 s
        ("a", 600, 1),
        ("one, two, three, four, five, six", 600, 6),
        ("Hello there, you. " * 30, 600, 60),
    ],
)
def test_duration_is_kept_by_chunks_that_would_miss_it(tokenizer, reference, text, seconds, chunks):
    pieces = pieces_of(tokenizer, {"text": text, "duration": seconds}, reference=reference)
    lengths = [p.target_frames for p in pieces]
    assert len(lengths) == chunks
    assert sum(lengths) == 25 * seconds and min(lengths) >= 1
    assert not any(map(too_long, lengths))
    if reference is None:
        assert all(p.reference_frames == lengths[0] for p in pieces[1:])


@pytest.mark.parametrize("text", ["...", "?!", "🎉", "\u0301", "\u200b"])
def test_a_text_without_words_is_a_short_clip(tokenizer, text):
    (utterance,) = utterances({"text": "a"})
    (piece,) = plan_pieces(tokenizer, [replace(utterance, text=text)], [None], [5])
    assert 1 <= piece.target_frames < 30


def test_seeds():
    (own,) = utterances({"id": "a", "text": "x", "seed": 9})
    assert utterance_seed(own) == 9
    a, b = utterances({"id": "a", "text": "x"}, {"id": "b", "text": "x"})
    assert utterance_seed(a) != utterance_seed(b)
    assert utterance_seed(a) == derive_seed(0, "a") == utterance_seed(replace(a, text="y", line=7))
    assert utterance_seed(replace(a, recipe=Recipe(seed=1))) not in (utterance_seed(a), utterance_seed(b))
    drawn = {utterance_seed(replace(a, seed="random")) for _ in range(4)}
    drawn |= {utterance_seed(replace(a, recipe=Recipe(seed="random"))) for _ in range(4)}
    assert len(drawn) == 8 and max(drawn) < 2**53


def test_awaited_chunks_run_before_all_else(tokenizer):
    pieces = pieces_of(tokenizer, {"text": "Short."}, {"text": LONG_TEXT}, {"text": LONG_TEXT + "And on."})
    batches = plan_batches(pieces, 2000)
    ran = [(piece.owner, piece.chunk) for batch in batches for piece in batch]
    assert sorted(ran) == sorted((piece.owner, piece.chunk) for piece in pieces)
    assert set(ran[:2]) == {(1, 0), (2, 0)}
    assert all(len(batch) == 1 or sum(p.positions for p in batch) <= 2000 for batch in batches)


def test_windows_cover_all_in_order():
    plain = utterances({"text": "Hello."}) * 2500
    assert [len(w) for w in windows(plain)] == [1024, 1024, 452]
    cloned = [*plain[:100], replace(plain[0], ref_audio="a.wav"), *plain[101:]]
    assert [len(w) for w in windows(cloned)] == [128, 256, 512, 1024, 580]  # all waits for the first one's recordings
    for lines in (plain, cloned):
        assert [line for window in windows(lines) for line in window] == lines
    assert list(windows([])) == []

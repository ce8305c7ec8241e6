"""What is warned of though it is made, read from manifests: lengths, texts, and how many lines a warning stands for."""

import json

import pytest

from omnitts.manifest import read_manifest
from omnitts.recipe import Recipe

FOURTEEN = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


@pytest.fixture
def warned(tmp_path):
    """The warnings of lines as "LINE: FIELD: message"."""

    def warned(*records: dict, settings: dict | None = None) -> list[str]:
        path = tmp_path / "list.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
        manifest = read_manifest(path, recipe=Recipe(), settings=settings)
        return [warning.removeprefix(f"{path}:") for warning in manifest.warnings]

    return warned


@pytest.mark.parametrize(
    ("fields", "begins", "mend"),
    [
        ({"text": "word", "duration": 500}, "1: duration: 500 s for words that take about 1.0 s", "Then write 0.5"),
        ({"text": FOURTEEN, "duration": 600}, "1: duration: 600 s for words that take", "leave it out"),
        ({"text": "So it is, my friend.", "duration": 60}, "1: duration: 60 s", "leave it out"),
        ({"text": "你好，世界。", "duration": 480}, "1: duration: 480 s", "milliseconds meant? Then write 0.48"),
        ({"text": FOURTEEN, "duration": 0.04}, "1: duration: 0.04 s for words that take", "nobody speaks so fast"),
        ({"text": FOURTEEN, "duration": 0.5}, "1: duration: 0.5 s", "nobody speaks so fast"),
        ({"text": "word", "speed": 10}, "1: speed: 10 times the usual pace", "1 is usual"),
        ({"text": "word", "speed": 0.1}, "1: speed: 0.1 times the usual pace", "1 is usual"),
        ({"text": "word", "recipe": {"speed": 9}}, "1: recipe.speed: 9 times the usual pace", "1 is usual"),
        ({"text": "This is a long book. " * 60_000}, "1: text: about 19", "cut it into lines"),
        ({"text": "这是一本很长的书。" * 3_000, "speed": 0.5}, "1: text: about 2", "hours in one file"),
    ],
)
def test_lengths_that_are_hardly_meant(warned, fields, begins, mend):
    (warning,) = warned(fields)
    assert warning.startswith(begins) and mend in warning


@pytest.mark.parametrize(
    "fields",
    [
        *({"text": "word", "duration": 0.5}, {"text": "word", "duration": 4}, {"text": FOURTEEN, "duration": 2}),
        *({"text": FOURTEEN, "duration": 14}, {"text": "word", "speed": 5}, {"text": "word", "speed": 0.35}),
        *({"text": "This is a short book. " * 1000}, {"text": "Hm.", "duration": 0.3}),
    ],
)
def test_lengths_that_speech_can_have(warned, fields):
    assert warned(fields) == []


def test_a_speed_beside_a_duration_is_not_judged(warned):
    assert warned({"text": "word", "duration": 1, "speed": 10}) == ["1: speed: ignored, for duration sets the length"]


def test_the_speed_of_a_run_is_told_once(warned):
    (warning,) = warned(*[{"text": "word"}] * 5, settings={"speed": 8})
    assert warning.startswith("1: recipe.speed: 8 times") and warning.endswith("(and on 4 more lines)")


def test_warnings_with_figures_are_told_once(warned):
    lines = [{"text": f"word {number}", "duration": 500 + number} for number in range(40)]
    (warning,) = warned(*lines)
    assert "500 s for words" in warning and warning.endswith("(and on 39 more lines)")


def test_a_line_counts_once_for_a_warning(warned):
    warnings = warned({"text": "[Laughter] and [Laughter]"}, {"text": "[Laughter] <b>bold</b>"})
    assert [warning.rpartition(": ")[2] for warning in warnings] == [
        "write [laughter] (and on 1 more line)",
        "leave markup out, for there is none but the tags in square brackets",
    ]
    assert warnings[0].startswith("1: text: '[Laughter]' is read out as it is written")
    assert len(warnings) == 2


def test_a_byte_order_mark_within_a_text_is_told(warned):
    (warning,) = warned({"text": "One.\ufeffTwo."})
    assert "a byte-order mark stands in it" in warning

"""Recipes that contradict themselves, as the commands tell of them: from files, options and a manifest's lines."""

import json

import pytest


@pytest.mark.parametrize(
    ("recipe", "settings", "says"),
    [
        (None, ["guidance_start=0.8", "guidance_end=0.5"], "--set: guidance_start: guidance_start is 0.8 and"),
        (None, ["audio_chunk_threshold=10"], "--set: audio_chunk_threshold: audio_chunk_duration is 15 s and"),
        ({"guidance_start": 0.8, "guidance_end": 0.1}, [], "lines.jsonl:1: recipe.guidance_start: guidance_start is"),
        ({"guidance_start": 0.75}, ["guidance_end=0.5"], "lines.jsonl:1: recipe.guidance_start: guidance_start is 0.7"),
        ("turbo", ["guidance_start=0.9"], "lines.jsonl:1: recipe.guidance_start: guidance_start is 0.9 and"),
        ("own.yaml", [], "lines.jsonl:1: recipe: {folder}/own.yaml:2: audio_chunk_duration: audio_chunk_duration"),
    ],
)
def test_recipes_that_contradict_themselves_are_refused(run, tmp_path, recipe, settings, says):
    (tmp_path / "own.yaml").write_text("num_step: 4\naudio_chunk_duration: 50\n")
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"text": "Hello.", "recipe": recipe}) + "\n")
    code, _, said = run("check", lines, *(part for setting in settings for part in ("--set", setting)))
    assert code == 2 and says.format(folder=tmp_path) in said

import math
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from omnitts.errors import InputError
from omnitts.recipe import (
    BUNDLED,
    SETTINGS,
    Recipe,
    digest,
    dump_yaml,
    load_recipe,
    named_recipes,
    parse_settings,
    with_settings,
)

# The published decoder's settings, written out once more so that an edited default fails here.
PUBLISHED = {
    "num_step": 32,
    "guidance_scale": 2.0,
    "guidance_start": 0.0,
    "guidance_end": 1.0,
    "t_shift": 0.1,
    "layer_penalty_factor": 5.0,
    "position_temperature": 5.0,
    "prefix_refresh": 1,
    "class_temperature": 0.0,
    "top_ratio": 0.1,
    "denoise": True,
    "speed": 1.0,
    "audio_chunk_threshold": 30.0,
    "audio_chunk_duration": 15.0,
    "preprocess_prompt": True,
    "postprocess_output": True,
    "match_loudness": True,
    "seed": 0,
    "precision": "auto",
}


@pytest.fixture
def load(tmp_path):
    def load(content: str | bytes) -> Recipe:
        path = tmp_path / "mine.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_recipe(path)

    return load


def refusal(call, *args) -> str:
    with pytest.raises(InputError) as caught:
        call(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


def settings_of(recipe: Recipe) -> dict:
    return {key: getattr(recipe, key) for key in SETTINGS}


# --- The named recipes ---


def test_the_defaults_are_the_published_ones():
    assert settings_of(Recipe()) == PUBLISHED == settings_of(load_recipe("default"))


def test_named_recipes_differ_from_the_default_as_they_say():
    recipes = named_recipes()
    assert list(recipes) == ["default", "fast", "greedy", "quality", "turbo"]
    assert settings_of(recipes["fast"]) == PUBLISHED | {"num_step": 16}
    assert settings_of(recipes["quality"]) == PUBLISHED | {"num_step": 64}
    assert settings_of(recipes["greedy"]) == PUBLISHED | {"position_temperature": 0, "class_temperature": 0}
    for name, recipe in recipes.items():
        assert recipe.name == name and recipe.description
        assert load_recipe(name) == recipe
        assert "#" in (BUNDLED / f"{name}.yaml").read_text(encoding="utf-8")


def test_an_unknown_name_is_told_the_nearest_and_all():
    message = refusal(load_recipe, "qualty")
    assert "'qualty'" in message and "did you mean quality?" in message
    assert "default, fast, greedy, quality" in message
    assert "did you mean" not in refusal(load_recipe, "zzzzzz")
    refusal(load_recipe, "")
    refusal(load_recipe, "../recipes/fast")
    refusal(load_recipe, "a\0b.yaml")
    assert refusal(load_recipe, 5) == "recipe: wanted a recipe's name or file, got 5"


# --- Files ---


def test_a_file_overrides_what_it_names(load):
    recipe = load("# mine\ndescription: a try\nnum_step: 20\nguidance_scale: 3\ndenoise: false\nseed: random\n")
    changed = {"num_step": 20, "guidance_scale": 3.0, "denoise": False, "seed": "random"}
    assert settings_of(recipe) == PUBLISHED | changed
    assert (recipe.name, recipe.description) == ("mine", "a try")
    assert isinstance(recipe.guidance_scale, float)


def test_paths_with_and_without_the_suffix(tmp_path, monkeypatch):
    (tmp_path / "fast").write_text("num_step: 3")
    (tmp_path / "own").write_text("num_step: 4")
    (tmp_path / "own.yml").write_text("num_step: 5")
    assert load_recipe("fast", folder=tmp_path).num_step == 16, "a bundled name comes first"
    assert load_recipe("own", folder=tmp_path).num_step == 4
    assert load_recipe("own.yml", folder=tmp_path).num_step == 5
    monkeypatch.chdir(tmp_path)
    assert load_recipe("own.yml").num_step == 5
    assert load_recipe(tmp_path / "own.yml", folder="elsewhere").num_step == 5
    assert refusal(load_recipe, "none.yaml") == "none.yaml: no such recipe file"
    (tmp_path / "folder.yaml").mkdir()
    assert "folder.yaml: a folder, not a recipe: name a YAML file" in refusal(load_recipe, "folder.yaml")
    os.rename("folder.yaml", "folder")
    assert refusal(load_recipe, "folder") == "folder: a folder, not a recipe: name a YAML file in it"


@pytest.mark.parametrize("text", ["1e-1", "1E-1", "1.0e-1", ".1", "0.1", "+1e-1"])
def test_numbers_in_scientific_form(load, text):
    assert load(f"t_shift: {text}").t_shift == 0.1


def test_whole_numbers_may_be_written_as_floats(load):
    recipe = load("num_step: 24.0\nseed: 1e3")
    assert (recipe.num_step, recipe.seed) == (24, 1000)
    assert type(recipe.num_step) is type(recipe.seed) is int


@pytest.mark.parametrize(
    ("line", "value"),
    [("seed: 010", 10), ("seed: 0x10", 16), ("seed: +7", 7), ("seed: 09", 9), ("audio_chunk_duration: 015.5", 15.5)],
)
def test_numbers_are_what_they_look_like(load, line, value):
    key, _, text = line.partition(": ")
    assert getattr(load(line), key) == value
    assert parse_settings([f"{key}={text}"]) == {key: value}


@pytest.mark.parametrize("text", ["1:30", "1:30.5", "0b11", "0o17", "1_000"])
def test_what_only_old_yaml_takes_for_a_number_is_refused(load, text):
    """To YAML 1.1 a `1:30` is 90."""
    assert f"wanted a number from 1 to 600, got '{text}'" in refusal(load, f"audio_chunk_duration: {text}")
    assert parse_settings([f"seed={text}"]) == {"seed": text}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("num_step: 0", "wanted a whole number from 1 to 1000, got 0"),
        ("num_step: 1001", "got 1001"),
        ("num_step: 32.5", "got 32.5"),
        ("num_step: true", "got true"),
        ("num_step: many", "got 'many'"),
        ("num_step: '24'", "got '24' as text: take its quotes off"),
        ("num_step: !!int many", "got 'many'"),
        ("num_step:", "got nothing"),
        ("num_step: [32]", "got a list"),
        ("num_step: {a: 1}", "got a mapping"),
        ("num_step: 2026-01-02", "got '2026-01-02'"),
        ("guidance_scale: -0.1", "wanted a number from 0 to 100, got -0.1"),
        ("guidance_scale: .nan", "got nan"),
        ("guidance_scale: .inf", "got inf"),
        ("t_shift: 0", "wanted a number above 0 and at most 10, got 0"),
        ("t_shift: 10.1", "got 10.1"),
        ("layer_penalty_factor: 1001", "from 0 to 1000"),
        ("position_temperature: -1", "from 0 to 1000"),
        ("class_temperature: -1", "from 0 to 1000"),
        ("top_ratio: 0.0", "wanted a number above 0 and at most 1, got 0.0"),
        ("top_ratio: 1.01", "got 1.01"),
        ("denoise: 1", "wanted true or false, got 1"),
        ("denoise: 'true'", "got 'true' as text: take its quotes off"),
        ("speed: 0.09", "from 0.1 to 10"),
        ("audio_chunk_threshold: 601", "from 1 to 600"),
        ("audio_chunk_duration: 0.5", "from 1 to 600"),
        ("preprocess_prompt: 1.0", "true or false"),
        ("postprocess_output: maybe", "true or false"),
        ("seed: -1", "or the word random, got -1"),
        (f"seed: {2**63}", "from 0 to 9223372036854775807"),
        ("seed: 0x" + "f" * 5000, "got an enormous number"),
        ("seed: 1e17", "got 1e+17"),  # beyond 2**53 a float no longer says which whole number was meant
        ("seed: Random", "got 'Random'"),
        ("seed: on", "got true"),
        ("precision: float64", "wanted auto, float32, bfloat16, float16 or fp8, got 'float64'"),
        ("precision: 16", "got 16"),
        ("num_stepp: 32", "unknown key: did you mean num_step?"),
        ("Guidance-Scale: 2", "unknown key: did you mean guidance_scale?"),
        ("zzz: 2", "unknown key: use num_step, guidance_scale"),
        ("name: x", "unknown key"),
        ("description: [3]", "wanted a text, got a list"),
    ],
)
def test_bad_settings_name_key_value_and_line(load, line, wanted):
    message = refusal(load, f"# a comment\n{line}\n")
    key = line.partition(":")[0]
    assert f"mine.yaml:2: {key}: " in message
    assert wanted in message


@pytest.mark.parametrize(
    "line",
    ["num_step: 1", "num_step: 1000", "guidance_scale: 0", "t_shift: 10", "top_ratio: 1", "speed: 0.1"],
)
def test_the_ends_of_a_range_are_in_it(load, line):
    key, _, value = line.partition(": ")
    assert getattr(load(line), key) == float(value)


def test_all_problems_of_a_file_are_told_together(load):
    message = refusal(load, "num_stepp: 1\nspeed: 99\nnum_step: 3\nnum_step: 4\ndescription: []\n")
    for part in (
        "mine.yaml:1: num_stepp: unknown key",
        "mine.yaml:2: speed: wanted",
        "mine.yaml:4: num_step: given twice, first on line 3",
        "mine.yaml:5: description: wanted a text",
    ):
        assert part in message
    assert message.count("; ") == 3 and message.count("mine.yaml") == 4


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("", "is empty"),
        ("# nothing\n", "is empty"),
        ("- num_step", "is not a mapping"),
        ("num_step", "is not a mapping"),
        ("num_step: 1\nspeed: ]", "mine.yaml:2: not valid YAML"),
        ("num_step: 1\n--- \nspeed: 1", "not valid YAML"),
        ("speed: *nothing", "mine.yaml:1: not valid YAML"),
        ("speed: \x01", "not valid YAML"),
        ("[" * 100_000, "not valid YAML"),
        ("? [a]\n: 1", "a key must be one word"),
        (b"description: \xff", "not UTF-8 text"),
        ("speed: !!python/object/apply:os.getcwd []", "got a list"),
    ],
)
def test_files_that_are_no_recipes(load, content, wanted):
    message = refusal(load, content)
    assert "mine.yaml" in message and wanted in message


def test_a_byte_order_mark_and_crlf_are_fine(load):
    assert load(b"\xef\xbb\xbfnum_step: 8\r\nspeed: 2\r\n").num_step == 8


# --- Changes ---


def test_python_values_are_checked_too():
    assert "num_step: wanted a whole number from 1 to 1000, got 0" in refusal(lambda: Recipe(num_step=0))
    assert "speed" in refusal(lambda: replace(Recipe(), speed=math.nan))
    assert type(Recipe(guidance_scale=2).guidance_scale) is float


def test_parse_settings_reads_yaml_scalars():
    items = ["num_step=24", " t_shift = 1e-1 ", "denoise=no", "seed=random", "description=a=b", "num_step=25"]
    assert parse_settings(items) == {
        "num_step": 25,
        "t_shift": 0.1,
        "denoise": False,
        "seed": "random",
        "description": "a=b",
    }
    assert parse_settings([]) == {}


@pytest.mark.parametrize("item", ["num_step", "=24", "num_step=", "a=[1]", "a={b: 1}", "a=[", "a='", "a=\ud800"])
def test_parse_settings_refuses(item):
    assert refusal(parse_settings, [item]).startswith("--set")


def test_with_settings_changes_and_names():
    base = load_recipe("default")
    recipe = with_settings(base, {"speed": 1.25, "num_step": 24, "seed": "random", "guidance_scale": 2})
    assert settings_of(recipe) == PUBLISHED | {"speed": 1.25, "num_step": 24, "seed": "random"}
    assert recipe.name == "default+num_step=24+seed=random+speed=1.25"
    assert with_settings(base, {"num_step": 32}) is base
    again = with_settings(recipe, {"denoise": False, "num_step": 8, "seed": 1})
    assert again.name == "default+denoise=false+num_step=8+seed=1+speed=1.25"


def test_with_settings_tells_place_and_all_problems():
    def change(**mapping):
        with_settings(Recipe(), mapping, file="list.jsonl", line=7, field="recipe")

    assert refusal(lambda: change(num_step=0)).startswith("list.jsonl:7: recipe.num_step: wanted a whole")
    message = refusal(lambda: change(num_step=0, sped=1))
    assert message.startswith("list.jsonl:7: recipe.num_step: ")
    assert "; recipe.sped: unknown key: did you mean speed?" in message
    assert "recipe.5: unknown key" in refusal(lambda: with_settings(Recipe(), {5: 1}, field="recipe"))
    assert "description: unknown key" in refusal(lambda: change(description="x"))


# --- Contradictions ---


@pytest.mark.parametrize(
    ("settings", "field", "says"),
    [
        (
            {"guidance_start": 0.8, "guidance_end": 0.5},
            "guidance_start",
            "guidance_start is 0.8 and guidance_end 0.5, so that no step is guided: set guidance_start below",
        ),
        ({"guidance_start": 1.0, "guidance_end": 0.0}, "guidance_start", "guidance_start is 1 and guidance_end 0"),
        (
            {"audio_chunk_duration": 40, "audio_chunk_threshold": 31},
            "audio_chunk_duration",
            "audio_chunk_duration is 40 s and audio_chunk_threshold 31 s, so that chunks are longer",
        ),
        ({"audio_chunk_duration": 30.5}, "audio_chunk_duration", "audio_chunk_threshold 30 s"),
        ({"audio_chunk_threshold": 10}, "audio_chunk_threshold", "audio_chunk_duration is 15 s"),
        (
            {"guidance_start": 0.35, "guidance_end": 0.45, "num_step": 4},
            "guidance_start",
            "with num_step 4, a step at each multiple of 0.25, none lies between to be guided",
        ),
        ({"guidance_start": 0.99}, "guidance_start", "with num_step 32, a step at each multiple of 0.03125, none lies"),
        (
            {"guidance_start": 0.5, "num_step": 1},
            "guidance_start",
            "with num_step 1, a step at each multiple of 1, none",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused_wherever_they_stand(load, settings, field, says):
    yaml_file = refusal(load, "denoise: true\n" + "".join(f"{key}: {value}\n" for key, value in settings.items()))
    line = 2 + list(settings).index(field)
    assert re.match(rf".*mine\.yaml:{line}: {field}: .*{re.escape(says)}", yaml_file)
    asked = [f"{key}={value}" for key, value in settings.items()]
    from_shell = refusal(lambda: with_settings(Recipe(), parse_settings(asked), file="--set"))
    assert from_shell.startswith(f"--set: {field}: ") and says in from_shell
    of_a_line = refusal(lambda: with_settings(Recipe(), settings, file="a.jsonl", line=7, field="recipe"))
    assert of_a_line.startswith(f"a.jsonl:7: recipe.{field}: ") and says in of_a_line
    assert says in refusal(lambda: Recipe(**settings))
    assert says in refusal(lambda: replace(Recipe(), **settings))


def test_contradictions_with_what_a_recipe_has_already():
    turbo = load_recipe("turbo")
    message = refusal(lambda: with_settings(turbo, {"guidance_start": 0.75}, file="--set"))
    assert message.startswith("--set: guidance_start: guidance_start is 0.75 and guidance_end 0.5, so that no step")
    assert "guidance_start is 0.5" in refusal(lambda: with_settings(Recipe(guidance_start=0.5), {"guidance_end": 0.2}))
    both = {"audio_chunk_threshold": 10, "audio_chunk_duration": 20, "guidance_start": 1, "guidance_end": 0.5}
    message = refusal(lambda: with_settings(Recipe(), both))
    assert "no step is guided" in message and "; audio_chunk_duration: audio_chunk_duration is 20 s" in message


@pytest.mark.parametrize(
    "settings",
    [
        {"guidance_end": 0},  # none
        {"guidance_start": 0.5, "guidance_end": 0.5},
        {"guidance_start": 0.99, "guidance_scale": 0},
        {"guidance_start": 0.5, "num_step": 2},
        {"audio_chunk_duration": 30},
        {"audio_chunk_threshold": 600, "audio_chunk_duration": 600},
        {"top_ratio": 0.5, "class_temperature": 0},
        {"prefix_refresh": 1000, "num_step": 1},
    ],
)
def test_what_is_merely_without_effect_is_taken(settings):
    assert settings.items() <= settings_of(with_settings(Recipe(), settings)).items()


# --- The digest ---


def test_digest_is_of_the_settings_alone():
    recipe = Recipe()
    assert digest(replace(recipe, name="x", description="y")) == digest(recipe)
    assert digest(replace(recipe, guidance_scale=2)) == digest(recipe)
    assert digest(Recipe(class_temperature=-0.0)) == digest(recipe)
    other = {
        "num_step": 31,
        "prefix_refresh": 2,
        "seed": "random",
        "precision": "float16",
        "denoise": False,
        "preprocess_prompt": False,
        "postprocess_output": False,
        "match_loudness": False,
        "audio_chunk_threshold": 31,
        "audio_chunk_duration": 16,
    }
    digests = {digest(replace(recipe, **{key: other.get(key, 0.5)})) for key in SETTINGS}
    assert len(digests) == len(SETTINGS) and digest(recipe) not in digests


def test_digest_does_not_change_between_versions_or_processes():
    assert digest(Recipe()) == "44136fa355b3"
    assert digest(Recipe(num_step=16, seed=7)) == "d0980fd412af"
    script = "from omnitts.recipe import *; print(digest(load_recipe('default')))"
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "44136fa355b3"


# --- Printing ---


@pytest.mark.parametrize("name", ["default", "fast", "quality", "greedy", "turbo"])
def test_dump_yaml_loads_back(load, name):
    recipe = with_settings(load_recipe(name), {"t_shift": 1e-7, "seed": 2**63 - 1})
    text = dump_yaml(recipe)
    again = load(text)
    assert digest(again) == digest(recipe) and again == recipe and again.description == recipe.description
    assert list(yaml.safe_load(text)) == ["description", *SETTINGS]
    for setting in SETTINGS.values():
        assert setting.meaning in text and setting.wanted in text


@pytest.mark.parametrize("description", ["two\nlines: # é", "yes", "08", "1e5", "", "~"])
def test_dump_yaml_of_awkward_names(load, description):
    recipe = Recipe(name="a\nseed: 5", description=description)
    again = load(dump_yaml(recipe))
    assert again == recipe and again.description == recipe.description


# --- Whatever is written ---


def mutate(text: str, edits: list[tuple[float, int, str]]) -> str:
    for where, cut, insert in edits:
        position = int(where * len(text))
        text = text[:position] + insert + text[position + cut :]
    return text


EDITS = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.integers(0, 5),
        st.one_of(st.sampled_from(["!!int ", "&a ", "*a", "<<: ", "1e999", "0b_", "? ", "- ", "'", "\t"]), st.text()),
    ),
    max_size=4,
)


@hypothesis_settings(max_examples=150, deadline=None)
@given(EDITS)
def test_mutated_recipes_load_or_raise_input_error(edits):
    text = mutate("description: one\nnum_step: 16\nspeed: 1.5\ndenoise: true\nseed: random\nt_shift: 1e-1\n", edits)
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        file.write(text.encode("utf-8", "surrogatepass"))
        file.flush()
        try:
            recipe = load_recipe(file.name)
        except InputError as error:
            assert str(error).count("\n") == 0
        else:
            assert isinstance(recipe, Recipe) and len(digest(recipe)) == 12


@hypothesis_settings(max_examples=150, deadline=None)
@given(st.text(), st.text())
def test_any_setting_parses_or_raises_input_error(key, value):
    for item in (f"{key}={value}", f"num_step={value}"):
        try:
            with_settings(Recipe(), parse_settings([item]))
        except InputError as error:
            assert str(error)

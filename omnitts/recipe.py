"""A recipe: every setting that shapes how text is spoken, read from YAML and checked.

Each setting is declared once, as a field of `Recipe` with its range and its meaning. The YAML reader, `--set`
and manifest lines, the digest and the printed help all work from that declaration.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from omnitts.contradictions import contradictions
from omnitts.errors import InputError
from omnitts.wording import nearest, printable, shown
from omnitts.yaml_text import mapping as yaml_mapping
from omnitts.yaml_text import parsed as yaml_parsed
from omnitts.yaml_text import scalar as yaml_scalar

BUNDLED = Path(__file__).parent / "recipes"
MOST_TOLD = 8  # problems of one recipe in one message


# --- Declaring a setting ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What a key means, what it takes in words, and how a value is read.

    `read` takes a value as YAML or JSON gives it, and returns it in the setting's type or raises ValueError.
    """

    meaning: str
    wanted: str
    read: Callable[[Any], Any]


def _declare(default: Any, meaning: str, wanted: str, read: Callable[[Any], Any]) -> Any:
    return field(default=default, metadata={"setting": Setting(meaning, wanted, read)})


def _whole(default: int, low: int, high: int, meaning: str) -> Any:
    def read(value: object) -> int:
        # 32.0 is taken for 32, as spreadsheets and data frames write it; 32.5 and true are refused.
        if isinstance(value, float) and value.is_integer() and abs(value) <= 2**53:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return value

    return _declare(default, meaning, f"a whole number from {low} to {high}", read)


def _number(default: float, low: float, high: float, meaning: str, *, above: bool = False) -> Any:
    """A float from `low` to `high`; with `above`, `low` itself is left out."""

    def read(value: object) -> float:
        # NaN fails the comparisons. They come before float(), which an enormous whole number would overflow.
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ValueError
        if above and value == low:
            raise ValueError
        return float(value) + 0.0  # -0.0 becomes 0.0, so that equal settings have equal digests

    wanted = f"a number above {low:g} and at most {high:g}" if above else f"a number from {low:g} to {high:g}"
    return _declare(default, meaning, wanted, read)


def _flag(default: bool, meaning: str) -> Any:
    def read(value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    return _declare(default, meaning, "true or false", read)


def _choice(default: str, choices: tuple[str, ...], meaning: str) -> Any:
    def read(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError
        return value

    return _declare(default, meaning, f"{', '.join(choices[:-1])} or {choices[-1]}", read)


def _seed(default: int, meaning: str) -> Any:
    whole = _whole(default, 0, 2**63 - 1, meaning).metadata["setting"]

    def read(value: object) -> int | str:
        return "random" if value == "random" else whole.read(value)

    return _declare(default, meaning, f"{whole.wanted}, or the word random", read)


@dataclass(frozen=True)
class Recipe:
    """The settings of a run. Two recipes are equal when their settings are, whatever they are called.

    Building one, from Python too, checks every value: InputError names the key, the value and what is wanted.
    The defaults are those of the published OmniVoice decoder.
    """

    name: str = field(default="default", compare=False)
    description: str = field(default="", compare=False)

    num_step: int = _whole(32, 1, 1000, "diffusion steps: fewer are faster, more are more careful")
    guidance_scale: float = _number(2.0, 0, 100, "weight of classifier-free guidance: 0 leaves it out, for speed")
    guidance_start: float = _number(
        0.0, 0, 1, "share of the steps that pass before guidance begins; at most guidance_end"
    )
    guidance_end: float = _number(1.0, 0, 1, "share of the steps after which guidance ends")
    prefix_refresh: int = _whole(
        1, 1, 1000, "steps from one pass over prompt and reference to the next; between them the first one's serves"
    )
    t_shift: float = _number(
        0.1, 0, 10, "shape of the reveal schedule: below 1, early steps reveal few cells", above=True
    )
    layer_penalty_factor: float = _number(
        5.0, 0, 1000, "score taken off per codebook, so that the coarse codebooks are revealed first"
    )
    position_temperature: float = _number(
        5.0, 0, 1000, "randomness of which cells are revealed next: 0 takes the most confident"
    )
    class_temperature: float = _number(0.0, 0, 1000, "randomness of a cell's token: 0 takes the most likely")
    top_ratio: float = _number(
        0.1, 0, 1, "share of the tokens that class_temperature draws from; unused while that is 0", above=True
    )
    denoise: bool = _flag(True, "ask for clean speech even where the reference audio is noisy")
    speed: float = _number(1.0, 0.1, 10, "speaking rate: 2 is twice as fast, 0.5 half as fast")
    audio_chunk_threshold: float = _number(30.0, 1, 600, "seconds: speech longer than this is made in chunks")
    audio_chunk_duration: float = _number(15.0, 1, 600, "seconds: about how long each chunk is; at most the threshold")
    preprocess_prompt: bool = _flag(
        True, "shorten the reference audio's silences and close its transcript with an end mark"
    )
    postprocess_output: bool = _flag(True, "shorten the output's silences of over 1 s and trim its edges")
    match_loudness: bool = _flag(
        True, "make the output as loud as its reference or, without one, of peak 0.5; false leaves the codec's level"
    )
    seed: int | str = _seed(0, "seed of all the noise; random takes a new one each run")
    precision: str = _choice(
        "auto",
        ("auto", "float32", "bfloat16", "float16", "fp8"),
        "arithmetic of the model, for a whole run: auto suits it to the device, fp8 needs a recent GPU",
    )

    def __post_init__(self) -> None:
        values, problems = _checked({key: getattr(self, key) for key in SETTINGS})
        if problems := problems or _contradicting(values, values):
            raise _joined(problems)
        for key, value in values.items():
            object.__setattr__(self, key, value)


# In the order of declaration, without the name and the description.
SETTINGS: dict[str, Setting] = {f.name: f.metadata["setting"] for f in fields(Recipe) if f.metadata}


def _settings_of(recipe: Recipe | type[Recipe]) -> dict[str, Any]:
    """The settings of a recipe or, of the class, the defaults."""
    return {key: getattr(recipe, key) for key in SETTINGS}


# --- Checking --------------------------------------------------------------------------------------------


def _checked(
    mapping: Mapping[str, object], lines: Mapping[str, int] | None = None, prefix: str = ""
) -> tuple[dict[str, Any], list[InputError]]:
    """The settings in their own types, and one problem for each key that is unknown or badly set."""
    values, problems = {}, []
    all_keys = f"use {', '.join(SETTINGS)}"  # told once

    def problem(key: str, message: str) -> None:
        line = lines[key] if lines else None
        problems.append(InputError(message, line=line, field=prefix + printable(str(key))))

    for key, value in mapping.items():
        setting = SETTINGS.get(key)
        if setting is None:
            near = nearest(str(key), SETTINGS)
            hint = f"did you mean {near}?" if near else all_keys
            problem(key, f"unknown key: {hint}" if hint else "unknown key")
            all_keys = all_keys if near else ""
            continue
        try:
            values[key] = setting.read(value)
        except ValueError:
            quoted = isinstance(value, str) and re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?|true|false", value)
            note = " as text: take its quotes off" if quoted else ""
            problem(key, f"wanted {setting.wanted}, got {shown(value)}{note}")
    return values, problems


def _contradicting(
    settings: Mapping[str, Any], given: Mapping[str, Any], lines: Mapping[str, int] | None = None, prefix: str = ""
) -> list[InputError]:
    """A problem for each contradiction among all the settings of a recipe, where one of its settings was given."""
    problems = []
    for keys, message in contradictions(settings):
        key = next((key for key in keys if key in given), keys[0])
        problems.append(InputError(message, line=(lines or {}).get(key), field=prefix + key))
    return problems


def _joined(problems: list[InputError], *, file: str | None = None, line: int | None = None) -> InputError:
    """One error for all the problems of a place, the first one's, with the others after it.

    Each keeps its own line and field; those without a line of their own are where the first one is.
    """
    first, *others = problems
    told = [first.message]
    for other in others[: MOST_TOLD - 1]:
        own_file = None if other.line is None else file
        told.append(str(InputError(other.message, file=own_file, line=other.line, field=other.field)))
    if len(problems) > MOST_TOLD:
        told.append(f"and {len(problems) - MOST_TOLD} more")
    return InputError("; ".join(told), file=file, line=first.line or line, field=first.field)


def with_settings(
    recipe: Recipe,
    mapping: Mapping[str, object],
    *,
    file: str | None = None,
    line: int | None = None,
    field: str | None = None,
) -> Recipe:
    """`recipe` with some settings replaced, checked as a recipe file's are.

    Settings that change something are added to the name, sorted and each once: "default+num_step=24". `file`,
    `line` and `field` say where the mapping stands, for the one InputError that tells all its bad settings.
    """
    prefix = f"{field}." if field else ""
    values, problems = _checked(mapping, prefix=prefix)
    if problems := problems or _contradicting(_settings_of(recipe) | values, values, prefix=prefix):
        raise _joined(problems, file=file, line=line)
    changed = {key: values[key] for key in sorted(values) if values[key] != getattr(recipe, key)}
    if not changed:
        return recipe
    base, *earlier = re.split(r"\+(?=[a-z_]+=)", recipe.name)
    told = dict(part.split("=", 1) for part in earlier)
    told |= {key: value if isinstance(value, str) else json.dumps(value) for key, value in changed.items()}
    return replace(recipe, name="+".join([base, *(f"{key}={told[key]}" for key in sorted(told))]), **changed)


def digest(recipe: Recipe) -> str:
    """12 hexadecimal digits that stand for the settings (not the name or the description), in any process.

    Those at their defaults are left out, so that a version with further settings finds the same digits.
    """
    changed = {key: getattr(recipe, key) for key in SETTINGS if getattr(recipe, key) != getattr(Recipe, key)}
    canonical = json.dumps(changed, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


# --- Files ---------------------------------------------------------------------------------------------


def _load_file(path: Path) -> Recipe:
    file = str(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError("no such recipe file", file=file) from None
    except IsADirectoryError:
        raise InputError("a folder, not a recipe: name a YAML file in it", file=file) from None
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8 text: {error.reason} at byte {error.start}", file=file) from None
    except (OSError, ValueError) as error:  # ValueError: a path that no system takes, such as one with a NUL
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot be read: {reason}", file=file) from None

    entries, lines, problems = yaml_mapping(text, file)
    description = entries.pop("description", "")
    if not isinstance(description, str):
        message = f"wanted a text, got {shown(description)}"
        problems.append(InputError(message, line=lines["description"], field="description"))
    values, bad = _checked(entries, lines)
    bad = bad or _contradicting(_settings_of(Recipe) | values, values, lines)
    problems = sorted(problems + bad, key=lambda problem: problem.line)
    if problems:
        raise _joined(problems, file=file)
    return Recipe(name=path.stem, description=description, **values)


def load_recipe(name_or_file: str | os.PathLike[str], *, folder: str | os.PathLike[str] = "") -> Recipe:
    """A bundled recipe by its name, or a YAML file by its path. Keys that it leaves out keep their defaults.

    A bundled name comes first; anything else is a path when it ends in .yaml or .yml, or is there. A
    relative path starts at `folder`.

    Raises InputError for an unknown name, and a file that cannot be read or is not a mapping of known keys
    to values in range; all the problems of a file are in one error, each with its key and line.
    """
    if not isinstance(name_or_file, str | os.PathLike):
        raise InputError(f"wanted a recipe's name or file, got {shown(name_or_file)}", field="recipe")
    name = os.fspath(name_or_file)
    if (path := recipe_file(name, folder=folder)) is not None:
        return _load_file(Path(path))
    known = _bundled()
    if name in known:
        return _load_file(BUNDLED / f"{name}.yaml")
    near = nearest(name, known)
    hint = f"did you mean {near}?" if near else "give a name, or a file that ends in .yaml."
    raise InputError(f"unknown recipe {shown(name)}: {hint} The named ones are {', '.join(known)}")


def recipe_file(name: str, *, folder: str | os.PathLike[str] = "") -> str | None:
    """The file that a name stands for in `load_recipe`; None for a bundled recipe, and for a name that is unknown."""
    path = os.path.join(folder, name)
    if name in _bundled() or not (name.endswith((".yaml", ".yml")) or os.path.exists(path)):
        return None
    return path


def _bundled() -> list[str]:
    return sorted(path.stem for path in BUNDLED.glob("*.yaml"))


def named_recipes() -> dict[str, Recipe]:
    """The recipes that come with the package, by name."""
    return {path.stem: _load_file(path) for path in sorted(BUNDLED.glob("*.yaml"))}


def parse_settings(items: Iterable[str]) -> dict[str, object]:
    """`["num_step=24", "denoise=false"]` as a mapping for `with_settings`: values are read as YAML scalars.

    Of a key given twice the last value counts, as with other options. InputError: no "=", no value, a list.
    """
    settings = {}
    for item in items:
        key, _, text = (part.strip() for part in item.partition("="))
        if not key or not text:
            raise InputError(f"{shown(item)} is not key=value, as in num_step=24", file="--set")
        try:
            node = yaml_parsed(text, None)
        except InputError as error:
            raise InputError(error.message, file="--set", field=printable(key)) from None
        if not isinstance(node, yaml.ScalarNode):
            raise InputError(f"wanted one value, got {shown(text)}", file="--set", field=printable(key))
        settings[key] = yaml_scalar(node)
    return settings


def dump_yaml(recipe: Recipe) -> str:
    """The recipe as a YAML file that loads back equal: each key below its meaning and its range."""

    def entry(key: str) -> str:
        return yaml.safe_dump({key: getattr(recipe, key)}, allow_unicode=True, width=10**6).rstrip()

    blocks = [f"# Recipe {printable(recipe.name)}, digest {digest(recipe)}\n{entry('description')}"]
    for key, setting in SETTINGS.items():
        blocks.append(f"# {setting.meaning}\n# ({setting.wanted})\n{entry(key)}")
    return "\n\n".join(blocks) + "\n"

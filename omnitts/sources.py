"""What commands read, as `Inputs` that no output may take the place of."""

import os
from collections.abc import Iterable
from pathlib import Path

from omnitts.inputs import Inputs
from omnitts.manifest import Manifest
from omnitts.recipe import recipe_file


def add_model(inputs: Inputs, model: str | None) -> None:
    """Adds the files of --model, where that is a folder: no other checkpoint lies where a user writes."""
    folder = Path(os.path.expanduser(model or ""))
    if model and folder.is_dir():
        inputs_of = (path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file())
        add_files(inputs, inputs_of, "a file of the model,")


def add_recipe(inputs: Inputs, recipe: str) -> None:
    """Adds the file of --recipe, if it is one."""
    if (path := recipe_file(recipe)) is not None:
        inputs.add(path, "the recipe")


def add_manifest(inputs: Inputs, lines: Manifest, voice: str | None) -> None:
    """Adds a manifest, the files that it names, and the run's voice."""
    add_files(inputs, [] if lines.source is None else [lines.source], "the manifest")
    add_files(inputs, lines.recordings, "the recording")
    add_files(inputs, [*lines.voices, *([] if voice is None else [voice])], "the voice")
    add_files(inputs, lines.recipe_files, "the recipe")


def add_files(inputs: Inputs, paths: Iterable[str | os.PathLike[str]], what: str) -> None:
    for path in paths:
        inputs.add(path, what)

"""What the commands with one output read, as `Inputs` that the output must not take the place of."""

import os
from collections.abc import Iterable
from pathlib import Path

from omnitts.inputs import Inputs
from omnitts.manifest import Manifest


def add_model(inputs: Inputs, model: str | None) -> None:
    """Adds the files of --model, where that is a folder: no other checkpoint lies where a user writes."""
    folder = Path(os.path.expanduser(model or ""))
    if model and folder.is_dir():
        inputs_of = (path for pattern in ("*", "*/*") for path in folder.glob(pattern) if path.is_file())
        add_files(inputs, inputs_of, "a file of the model,")


def add_recipe(inputs: Inputs, recipe: str) -> None:
    """Adds the file of --recipe, if it is one."""
    if os.path.isfile(recipe):
        inputs.add(recipe, "the recipe")


def add_manifest(inputs: Inputs, source: str, lines: Manifest) -> None:
    """Adds a manifest and the files that it names, the run's voice among them."""
    if source != "-":
        inputs.add(source, "the manifest")
    add_files(inputs, lines.recordings, "a reference recording,")
    add_files(inputs, lines.voices, "a voice file,")


def add_files(inputs: Inputs, paths: Iterable[str | os.PathLike[str]], what: str) -> None:
    for path in paths:
        inputs.add(path, what)

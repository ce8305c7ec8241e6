"""What a command found out, as a file of JSON for programs."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from omnitts import __version__
from omnitts.targets import Kind, Target

_MOST_BYTES = 1 << 26  # of a file that is looked into: ours are far smaller


def json_kind(command: str) -> Kind:
    """The files that a command writes, `bench step`."""
    return Kind(f"JSON of `omnitts {command}`", (), partial(_is_of, command))


def write_json(target: Target, command: str, figures: Mapping[str, Any]) -> None:
    """Writes figures with the version and the command that they are of. Raises OSError when the disk refuses."""
    with target.writing() as temporary:
        marked = {"omnitts": __version__, "command": command, **figures}
        temporary.write_text(json.dumps(marked, indent=2) + "\n", encoding="utf-8")


def _is_of(command: str, path: Path) -> bool:
    if path.stat().st_size > _MOST_BYTES:
        return False
    found = json.loads(path.read_bytes())
    return isinstance(found, dict) and isinstance(found.get("omnitts"), str) and found.get("command") == command

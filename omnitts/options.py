"""Options and arguments that name files: checked as they are read, and the same for all commands."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from omnitts.targets import Kind, Target


def source(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The callback of what names a file or a folder that is read, or may do so. Raises InputError."""
    if value is not None and value != "-":
        from omnitts.paths import check_path, check_readable

        check_path(value, _name(parameter))
        check_readable(value, _name(parameter))
    return value


def sink(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """The callback of what names a file or a folder that is written. Raises InputError."""
    if value is not None:
        from omnitts.paths import check_path

        check_path(value, _name(parameter))
    return value


def _name(parameter: click.Parameter) -> str:
    """As messages call it: --out, MANIFEST."""
    return parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.metavar or parameter.opts[-1]


replace_option = click.option(
    "--replace-files",
    "replace",
    is_flag=True,
    help="Also replace files that omnitts did not write, or wrote for another manifest; never one that is read.",
)


def out_option(metavar: str) -> Callable[[Any], Any]:
    """-o, and whether it may replace a foreign file."""
    help = "The file to write. Missing folders are made; a file that omnitts did not write is not replaced."
    return _both(click.option("-o", "--out", "out", required=True, metavar=metavar, callback=sink, help=help))


def _both(option: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda command: option(replace_option(command))


json_option = _both(
    click.option(
        *("--json", "out"),
        metavar="FILE",
        callback=sink,
        help="Also write JSON. A file that omnitts did not write is not replaced.",
    )
)


def target(out: str, option: str, kind: "Kind", replace: bool) -> "Target":
    """The file of `out_option` or `json_option`, checked as far as that can be before what is read is known."""
    from omnitts.targets import Target

    made = Target(out, option, kind, replace)
    made.check()
    return made


def json_target(out: str | None, command: str, replace: bool) -> "Target | None":
    """The file of `json_option`, if there is to be one. command: which one's figures are in it, `bench step`."""
    from omnitts.json_file import json_kind

    return None if out is None else target(out, "--json", json_kind(command), replace)

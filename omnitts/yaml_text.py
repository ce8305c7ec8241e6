"""YAML as recipes have it: a mapping of plain values with known lines, and numbers that are what they look like."""

import re
from typing import ClassVar

import yaml

from omnitts.errors import InputError
from omnitts.wording import printable

_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """PyYAML's safe loader with the numbers of YAML 1.2, which are what they look like.

    PyYAML's own are those of YAML 1.1: to it `1:30` is 90, `010` is 8, and `1e-1` is a text.
    """

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_INT, _FLOAT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(_INT, re.compile(r"([-+]?[0-9]+|0x[0-9a-fA-F]+)\Z"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"),
    list("-+.0123456789"),
)
_Loader.add_constructor(_INT, lambda _, node: int(node.value, 16 if node.value.startswith("0x") else 10))
_SCALARS = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "null", "str")}


def parsed(text: str, file: str | None) -> yaml.Node | None:
    """A YAML document as nodes, which still know their lines and duplicate keys. InputError: bad syntax."""
    try:
        return yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context
        raise InputError(f"not valid YAML: {what} at column {mark.column + 1}", file=file, line=mark.line + 1) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a lone surrogate from argv
        raise InputError(f"not valid YAML: {error}", file=file) from None


def scalar(node: yaml.Node) -> object:
    """A node's value; lists and mappings, which no setting takes, stay empty."""
    if isinstance(node, yaml.MappingNode):
        return {}
    if isinstance(node, yaml.SequenceNode):
        return []
    if node.tag not in _SCALARS:
        return node.value  # a date, say: as text it is refused with its own spelling
    try:
        return _Loader("").construct_object(node)
    except (ArithmeticError, LookupError, ValueError):  # a tag that does not fit, as in `!!int many`
        return node.value


def mapping(text: str, file: str | None) -> tuple[dict[str, object], dict[str, int], list[InputError]]:
    """A YAML mapping's values and lines by key, and a problem for each key that is given twice."""
    root = parsed(text, file)
    if not isinstance(root, yaml.MappingNode):
        kind = "is empty" if root is None else "is not a mapping"
        raise InputError(f"{kind}: a recipe has lines like num_step: 32", file=file)
    values, lines, problems = {}, {}, []
    for key_node, value_node in root.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            problems.append(InputError("a key must be one word", line=line))
            continue
        key = key_node.value
        if key in values:
            message = f"given twice, first on line {lines[key]}"
            problems.append(InputError(message, line=line, field=printable(key)))
            continue
        # A description is text even where it reads `yes` or 2024.
        as_written = key == "description" and isinstance(value_node, yaml.ScalarNode)
        values[key], lines[key] = value_node.value if as_written else scalar(value_node), line
    return values, lines, problems

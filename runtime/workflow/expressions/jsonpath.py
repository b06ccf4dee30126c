"""JSONPath as Argo's `jsonpath(text, path)` uses it: children, indexes, slices, wildcards and descent; no filters."""

import re
from collections.abc import Iterator
from typing import Any

from everstep.runtime.workflow.expressions.bounds import Meter, use_meter
from everstep.runtime.workflow.expressions.errors import ExpressionError
from everstep.runtime.workflow.expressions.json_text import read_json

_STEP = re.compile(
    r"""(?P<deep>\.\.)?(?:\.?(?P<name>[A-Za-z_$][\w$-]*)|\.?(?P<star>\*)
    |\[\s*(?:(?P<index>-?\d+)|(?P<slice>-?\d*:-?\d*)|(?P<any>\*)|'(?P<one>[^']*)'|"(?P<two>[^"]*)")\s*\])""",
    re.VERBOSE,
)


def jsonpath(text: str, path: str) -> Any:
    """What the path finds in the JSON text: one value, or a list where the path may find several."""
    try:
        document = read_json(text, floats=True)
    except (ExpressionError, TypeError) as error:
        raise ExpressionError(f"invalid JSON: {error}") from None
    if not path.startswith("$"):
        raise ExpressionError(f"invalid JSONPath query '{path}': it begins with $")
    with use_meter() as meter:
        return _follow_path(document, path, meter)


def _follow_path(document: Any, path: str, meter: Meter) -> Any:
    matches, several, position = [document], False, 1
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            raise ExpressionError(f"invalid JSONPath query '{path}': cannot read {path[position:]!r}")
        position = step.end()
        several = several or bool(step["deep"] or step["star"] or step["any"] or step["slice"])
        if step["deep"]:
            for value in matches:
                meter.weigh(value)
            matches = [below for value in matches for below in _descendants(value)]
        matches = [below for value in matches for below in _children(value, step)]
        meter.spend(len(matches))
    if several:
        return matches
    if not matches:
        raise ExpressionError(f"key not found by JSONPath '{path}'")
    return matches[0]


def _descendants(value: Any) -> Iterator[Any]:
    """It, and all below it, from the top."""
    pending = [value]
    while pending:
        value = pending.pop()
        yield value
        below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        pending += reversed(list(below))


def _children(value: Any, step: re.Match[str]) -> list[Any]:
    if step["star"] or step["any"]:
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if step["index"] or step["slice"]:
        if not isinstance(value, list):
            return []
        if step["slice"]:
            first, _, last = step["slice"].partition(":")
            return value[int(first) if first else None : int(last) if last else None]
        index = int(step["index"])
        return [value[index]] if -len(value) <= index < len(value) else []
    name = step["name"] or step["one"] or step["two"] or ""
    return [value[name]] if isinstance(value, dict) and name in value else []

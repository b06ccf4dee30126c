"""withItems, withParam, withSequence: the items of a task, their names, and what `{{item}}` is in each."""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from runtime.workflow.expressions import ExpressionError
from runtime.workflow.expressions.govaluate import should_run
from runtime.workflow.expressions.values import go_json, go_text, parameter_text
from runtime.workflow.scope import Scope, read_json
from runtime.workflow.tags import substitute, tags

_FORMAT = re.compile(r"%([-+ 0#]*)(\d*)(?:\.(\d+))?([a-zA-Z%])")


class Item(NamedTuple):
    """One turn of a loop."""

    suffix: str
    """`(0:x)`, what is added to the task's name."""
    task: dict[str, Any]
    """The task with its item in place."""


def loops(task: Mapping[str, Any]) -> bool:
    """Is it a loop?"""
    return any(task.get(kind) is not None for kind in ("withItems", "withParam", "withSequence"))


def expand(task: Mapping[str, Any], scope: Scope) -> list[Item]:
    """The task once for each of its items. Raises ExpressionError in Argo's words."""
    body = {key: value for key, value in task.items() if key not in ("withItems", "withParam", "withSequence")}
    if task.get("withParam") is not None and _left_out(task):
        try:
            _items(task)
        except ExpressionError:
            return []
    return [_item(body, index, item, scope) for index, item in enumerate(_items(task))]


def _items(task: Mapping[str, Any]) -> list[Any]:
    if task.get("withItems") is not None:
        return [item for item in task["withItems"] if item is not None]
    if task.get("withParam") is not None:
        text = str(task["withParam"])
        try:
            found = read_json(text)
        except ExpressionError as error:
            raise ExpressionError(f"withParam value could not be parsed as a JSON list: {text}: {error}") from None
        if found is not None and not isinstance(found, list):
            kind = "object" if isinstance(found, dict) else {str: "string", bool: "bool"}.get(type(found), "number")
            raise ExpressionError(
                f"withParam value could not be parsed as a JSON list: {text}: json: cannot unmarshal {kind} into Go "
                "value of type []v1alpha1.Item"
            )
        return found or []
    return _sequence(task["withSequence"])


def _sequence(sequence: Mapping[str, Any]) -> list[str]:
    start = _whole(sequence.get("start") or 0)
    if sequence.get("end") is not None:
        end = _whole(sequence["end"])
    elif sequence.get("count") is not None:
        count = _whole(sequence["count"])
        if count == 0:
            return []
        end = start + count - 1
    else:
        raise ExpressionError("neither end nor count was specified in withSequence")
    form = str(sequence.get("format") or "%d")
    numbers = range(start, end + 1) if start <= end else range(start, end - 1, -1)
    return [_FORMAT.sub(lambda m: _formatted(m, number), form) for number in numbers]  # noqa: B023


def _whole(value: Any) -> int:
    try:
        return int(str(value), 10)
    except ValueError:
        raise ExpressionError(f'strconv.Atoi: parsing "{value}": invalid syntax') from None


def _formatted(match: re.Match[str], number: int) -> str:
    """As Go's fmt does it for a whole number."""
    flags, width, precision, verb = match.groups()
    if verb == "%":
        return "%"
    if verb == "c":
        return chr(number)
    if verb not in "dxXob":
        return f"%!{verb}(int={number})"
    digits = format(abs(number), verb)
    if precision:
        digits = digits.zfill(int(precision))
    sign = "-" if number < 0 else "+" if "+" in flags else " " if " " in flags else ""
    if "0" in flags and width and "-" not in flags and not precision:
        digits = digits.zfill(int(width) - len(sign))
    text = sign + digits
    return text.ljust(int(width or 0)) if "-" in flags else text.rjust(int(width or 0))


def _item(body: Mapping[str, Any], index: int, item: Any, scope: Scope) -> Item:
    own: Scope = {**scope, "item": _text(item)}
    if isinstance(item, Mapping):
        own |= {f"item.{key}": _text(value) for key, value in item.items()}
        name = ",".join(sorted(f"{key}:{_named(value)}" for key, value in item.items()))
    elif isinstance(item, list):
        own |= {f"item[{place}]": _text(value) for place, value in enumerate(item)}
        name = f"[{' '.join(_named(value) for value in item)}]"
    else:
        name = "[]" if item is None else _named(item)
    name = name.replace("(", "").replace(")", "")
    return Item(f"({index}:{name})", _replaced(body, own))


def _replaced(body: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """Every tag must be known, unless `when` says already that the item is left out."""
    task = substitute(body, scope, strict=True)
    if not _left_out(body):
        for tag in tags({key: value for key, value in task.items() if key not in ("hooks", "inline")}):
            if not tag.startswith("="):
                raise ExpressionError(f"failed to resolve {{{{{tag}}}}}")
    return task


def _left_out(task: Mapping[str, Any]) -> bool:
    """`when` is false, whatever the item."""
    try:
        return bool(task.get("when")) and not should_run(str(task["when"]))
    except ExpressionError:
        return False


def _text(value: Any) -> str:
    return go_json(value) if value is None or isinstance(value, dict | list) else parameter_text(value)


def _named(value: Any) -> str:
    """As it stands in a node's name: JSON, without the quotes around a text."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)[1:-1]
    return go_json(value) if value is None or isinstance(value, dict | list) else go_text(value)

"""withItems, withParam, withSequence: the items of a task, their names, and the value of `{{item}}` in each."""

import json
import math
import re
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from everstep.runtime.workflow.engine.nodes import MAX_NODES, TOO_MANY_NODES
from everstep.runtime.workflow.engine.scope import Scope
from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.bounds import check_int64, check_length, use_meter
from everstep.runtime.workflow.expressions.govaluate import should_run
from everstep.runtime.workflow.expressions.json_text import Number, read_json
from everstep.runtime.workflow.expressions.tags import substitute, tags
from everstep.runtime.workflow.expressions.values import go_json, go_text, parameter_text

MAX_WIDTH = 1_000_000
"""Largest width or precision of a formatted number; Go's fmt has the same."""
_FORMAT = re.compile(r"%([-+ 0#]*)(\d*)(?:\.(\d+))?([a-zA-Z%])")


class LoopItem(NamedTuple):
    """One item of a loop."""

    suffix: str
    """`(0:x)`, what is added to the task's name."""
    task: dict[str, Any]
    """The task with the item substituted."""


def is_loop(task: Mapping[str, Any]) -> bool:
    """Whether a task or step is a loop."""
    return any(task.get(kind) is not None for kind in ("withItems", "withParam", "withSequence"))


def expand_loop(task: Mapping[str, Any], scope: Scope, room: int = MAX_NODES) -> list[LoopItem]:
    """The task once for each of its items. Raises ExpressionError in Argo's words, and for more than `room`."""
    body = {key: value for key, value in task.items() if key not in ("withItems", "withParam", "withSequence")}
    left_out = _is_left_out(task)
    try:
        items = _loop_items(task, room)
    except ExpressionError:
        if task.get("withParam") is not None and left_out:
            return []
        raise
    _check_room(len(items), room)
    with use_meter() as meter:
        meter.grant(len(items))
        return [_loop_item(body, index, item, scope, left_out) for index, item in enumerate(items)]


def _check_room(items: int, room: int) -> None:
    if items > room:
        raise ExpressionError(f"{TOO_MANY_NODES} the loop has {items} items")


def _loop_items(task: Mapping[str, Any], room: int) -> list[Any]:
    if task.get("withItems") is not None:
        return [item for item in task["withItems"] if item is not None]
    if task.get("withParam") is not None:
        text = str(task["withParam"])
        try:
            loop_values = read_json(text, exact=True)
        except ExpressionError as error:
            raise ExpressionError(f"withParam value could not be parsed as a JSON list: {text}: {error}") from None
        if loop_values is not None and not isinstance(loop_values, list):
            kind = (
                "object"
                if isinstance(loop_values, dict)
                else {str: "string", bool: "bool"}.get(type(loop_values), "number")
            )
            raise ExpressionError(
                f"withParam value could not be parsed as a JSON list: {text}: json: cannot unmarshal {kind} into Go "
                "value of type []v1alpha1.Item"
            )
        return loop_values or []
    return _sequence_items(task["withSequence"], room)


def _sequence_items(sequence: Mapping[str, Any], room: int) -> list[str]:
    start = _parse_int(sequence.get("start") or 0)
    if sequence.get("end") is not None:
        end = _parse_int(sequence["end"])
    elif sequence.get("count") is not None:
        count = _parse_int(sequence["count"])
        if count == 0:
            return []
        end = start + count - 1
    else:
        raise ExpressionError("neither end nor count was specified in withSequence")
    form = str(sequence.get("format") or "%d")
    numbers = range(start, end + 1) if start <= end else range(start, end - 1, -1)
    _check_room(abs(end - start) + 1, room)
    check_length(len(numbers) * (len(form) + sum(_max_length(match) for match in _FORMAT.finditer(form))))
    return [_sprintf(form, number) for number in numbers]


def _parse_int(value: Any) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", str(value)):
        raise ExpressionError(f'strconv.Atoi: parsing "{value}": invalid syntax')
    try:
        return check_int64(int(str(value), 10))
    except ValueError:
        raise ExpressionError(f'strconv.Atoi: parsing "{value}": value out of range') from None


def _max_length(match: re.Match[str]) -> int:
    """The most characters that a formatted number can have. Raises ExpressionError for a width that Go refuses, too."""
    sizes = [int(digits[:8]) for digits in (match[2], match[3]) if digits]
    if any(size > MAX_WIDTH for size in sizes):
        raise ExpressionError(f"withSequence: the format {match[0]} is wider than {MAX_WIDTH}")
    return max([20, *sizes])


def _sprintf(form: str, number: int) -> str:
    """Go's Sprintf of one number: a second verb prints MISSING, a format without a verb prints EXTRA."""
    is_used = 0

    def verb(match: re.Match[str]) -> str:
        nonlocal is_used
        if match[4] == "%":
            return "%"
        is_used += 1
        return _format_number(match, number) if is_used == 1 else f"%!{match[4]}(MISSING)"

    text = _FORMAT.sub(verb, form)
    return text if is_used else f"{text}%!(EXTRA int={number})"


def _format_number(match: re.Match[str], number: int) -> str:
    """One verb of Go's fmt applied to an integer."""
    flags, width, precision, verb = match.groups()
    if verb == "c":
        return chr(number) if 0 <= number <= sys.maxunicode and not 0xD800 <= number < 0xE000 else "\ufffd"
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


def _loop_item(body: Mapping[str, Any], index: int, item: Any, scope: Scope, left_out: bool) -> LoopItem:
    whole = "" if isinstance(item, Number) and math.isinf(item) else _item_text(item)  # As Argo has it.
    own: Scope = {**scope, "item": whole}
    if isinstance(item, Mapping):
        own |= {f"item.{key}": _item_text(value) for key, value in item.items()}
        name = ",".join(sorted(f"{key}:{_name_text(value)}" for key, value in item.items()))
    elif isinstance(item, list):
        own |= {f"item[{place}]": _item_text(value) for place, value in enumerate(item)}
        name = f"[{' '.join(_name_text(value) for value in item)}]"
    else:
        name = "[]" if item is None else _name_text(item)
    name = name.replace("(", "").replace(")", "")
    return LoopItem(f"({index}:{name})", _substitute_item(body, own, left_out))


def _substitute_item(body: Mapping[str, Any], scope: Scope, left_out: bool) -> dict[str, Any]:
    """The task with the item substituted. Raises ExpressionError for an unknown tag, unless `when` skips the item."""
    task = substitute(body, scope, strict=True)
    if not left_out:
        for tag in tags({key: value for key, value in task.items() if key not in ("hooks", "inline")}):
            if not tag.startswith("="):
                raise ExpressionError(f"failed to resolve {{{{{tag}}}}}")
    return task


def _is_left_out(task: Mapping[str, Any]) -> bool:
    """Whether `when` is false for every item."""
    try:
        return bool(task.get("when")) and not should_run(str(task["when"]))
    except ExpressionError:
        return False


def _item_text(value: Any) -> str:
    return go_json(value) if value is None or isinstance(value, dict | list) else parameter_text(value)


def _name_text(value: Any) -> str:
    """The value as it appears in a node's name: JSON, without quotes around a string."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)[1:-1]
    return go_json(value) if value is None or isinstance(value, dict | list) else go_text(value)

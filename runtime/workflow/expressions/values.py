"""Go's view of a value: its type's name, its JSON and its `%v`, as expr-lang and Argo print them."""

import json
import math
import re
import secrets
from typing import Any

from everstep.runtime.workflow.expressions.bounds import use_meter
from everstep.runtime.workflow.expressions.errors import ExpressionError
from everstep.runtime.workflow.expressions.json_text import Number


class Int64(int):
    """What Go has as int64. It counts as any int does, and what is computed of it is an int again; sprig asks which."""

    def __neg__(self) -> "Int64":
        return Int64(super().__neg__())


def go_type(value: Any) -> str:
    """The name of the Go type that holds such a value in expr-lang."""
    if value is None:
        return "<nil>"
    names = {bool: "bool", float: "float64", Number: "float64", str: "string", list: "[]interface {}"}
    names |= dict.fromkeys((int, Int64), "int")
    return names.get(type(value), "map[string]interface {}")


def go_json(value: Any, sort_keys: bool = True, escape: bool = True) -> str:
    """`json.Marshal`: no spaces, the keys of maps sorted, `<`, `>` and `&` escaped, 6.0 as 6.

    Raises ExpressionError for what JSON has not: infinity, and what is nested too deep.
    """
    with use_meter():
        text = json.dumps(_mark_numbers(value), separators=(",", ":"), sort_keys=sort_keys, ensure_ascii=False)
    for character in "<>&\u2028\u2029" if escape else "\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return _unmark_numbers(text)


def go_pretty_json(value: Any) -> str:
    """`json.MarshalIndent` with two spaces. Raises ExpressionError as `go_json`."""
    with use_meter():
        text = json.dumps(_mark_numbers(value), indent=2, sort_keys=True, ensure_ascii=False)
    return _unmark_numbers(text)


_MARK = secrets.token_hex(8)
"""Around what is written without quotes. No text of a pod can have it."""
_MARKED = re.compile(f'"{_MARK}([^"]*){_MARK}"')


def _mark_numbers(value: Any) -> Any:
    if isinstance(value, Number):
        return f"{_MARK}{value.text}{_MARK}"
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ExpressionError(f"json: unsupported value: {go_float(value)}")
        return int(value) if value == int(value) and abs(value) < 1e21 else f"{_MARK}{go_float(value)}{_MARK}"
    if isinstance(value, dict):
        return {str(key): _mark_numbers(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_mark_numbers(inner) for inner in value]
    return value


def _unmark_numbers(text: str) -> str:
    return _MARKED.sub(r"\1", text) if _MARK in text else text


def go_float(value: float) -> str:
    """The shortest text that gives the float again, as `%v` and JSON have it."""
    if math.isnan(value) or math.isinf(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    if value == int(value) and abs(value) < 1e21:
        return str(int(value))
    text = repr(value)
    digits, exponent, power = text.partition("e")
    if not exponent:
        return text
    sign, number = power[0] if power[0] in "+-" else "+", power.lstrip("+-")
    if sign == "-" and int(number) <= 6:
        return f"{value:.{int(number) + len(digits.replace('.', '').replace('-', '')) - 1}f}"
    return f"{digits.removesuffix('.0')}e{sign}{number.zfill(2)}"


def go_text(value: Any) -> str:
    """`%v`."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Number):
        return value.text
    if isinstance(value, float):
        return go_float(value)
    if isinstance(value, list):
        return f"[{' '.join(map(go_text, value))}]"
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{go_text(value[key])}' for key in sorted(value, key=str))}]"
    return str(value)


def parameter_text(value: Any) -> str:
    """The text that a parameter's value arrives as: of a text, number or boolean; a map or list gives an empty one."""
    if isinstance(value, str):
        return value
    return "" if value is None or isinstance(value, dict | list) else go_text(value)

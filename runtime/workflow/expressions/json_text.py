"""JSON as Go reads it: its nesting has an end, and its words say what is wrong (encoding/json, "Decoder")."""

import json
import re
from typing import Any

from everstep.runtime.workflow.expressions.bounds import MAX_NESTING, use_meter
from everstep.runtime.workflow.expressions.errors import ExpressionError

_STRUCTURE = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_HALF, _LONE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]"), re.compile("[\ud800-\udfff]")
"""Half a character, escaped or not."""
MAX_DIGITS = 400
"""Of the longest integer that is read as one: no float is as large as the next."""


class Number(float):
    """A number with its own words: `1.50`, `1e400`, five thousand digits."""

    text: str

    def __new__(cls, text: str) -> "Number":
        """Of those words."""
        number = super().__new__(cls, text)
        number.text = text
        return number


def read_json(text: str, exact: bool = False, floats: bool = False) -> Any:
    """The value of a JSON text. Raises ExpressionError in the words of Go.

    `exact`: with each number as a Number. `floats`: with each as a float, as Go has it where no type is asked for.
    """
    _check_nesting(text)
    whole, real = (Number, Number) if exact else (float if floats else _parse_int, float)
    try:
        with use_meter():
            value = json.loads(text, parse_int=whole, parse_float=real, parse_constant=_refuse_constant)
            return _replace_lone_surrogates(value) if _HALF.search(text) else value
    except json.JSONDecodeError as error:
        raise ExpressionError(_go_message(text, error)) from None


def _parse_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


def _refuse_constant(word: str) -> Any:
    """NaN and Infinity, which are no JSON."""
    at = 1 if word[0] == "-" else 0
    where = "in numeric literal" if at else "looking for beginning of value"
    raise ExpressionError(f"invalid character {_quote_character(word[at])} {where}")


def _check_nesting(text: str) -> None:
    """Raise ExpressionError where brackets stand too deep in each other: below it, reading would."""
    if text.count("[") + text.count("{") <= MAX_NESTING:
        return
    depth = 0
    for match in _STRUCTURE.finditer(text):
        character = match.group()[0]
        if character in "[{":
            depth += 1
            if depth > MAX_NESTING:
                raise ExpressionError(f"invalid character {_quote_character(character)} exceeded max depth")
        elif character in "]}":
            depth -= 1


def _replace_lone_surrogates(value: Any) -> Any:
    """With what is half a character as the replacement character, as Go reads it."""
    if isinstance(value, str):
        return _LONE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_replace_lone_surrogates(inner) for inner in value]
    if isinstance(value, dict):
        return {_replace_lone_surrogates(key): _replace_lone_surrogates(inner) for key, inner in value.items()}
    return value


def _go_message(text: str, error: json.JSONDecodeError) -> str:
    rest = text[error.pos :]
    if not rest.strip():
        return "unexpected end of JSON input"
    rest = rest.lstrip()
    for literal in ("true", "false", "null"):
        if rest[0] == literal[0]:
            for expected, actual in zip(literal, rest, strict=False):
                if expected != actual:
                    had, due = _quote_character(actual), _quote_character(expected)
                    return f"invalid character {had} in literal {literal} (expecting {due})"
            return "unexpected end of JSON input"
    if error.msg == "Extra data":
        return f"invalid character {_quote_character(rest[0])} after top-level value"
    return f"invalid character {_quote_character(rest[0])} looking for beginning of value"


def _quote_character(character: str) -> str:
    return "'\\''" if character == "'" else f"'{character}'"

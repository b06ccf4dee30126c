"""The operators of expr-lang over two values."""

import re
from collections.abc import Callable
from typing import Any


class NoSuchOperationError(Exception):
    """The operator does not take operands of these types."""


def is_number(value: Any) -> bool:
    """An int or a float; a boolean is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numeric(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(a: Any, b: Any) -> Any:
        if is_number(a) and is_number(b):
            return operation(a, b)
        raise NoSuchOperationError

    return checked


def _ordered(operation: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def checked(a: Any, b: Any) -> bool:
        if (is_number(a) and is_number(b)) or (isinstance(a, str) and isinstance(b, str)):
            return operation(a, b)
        raise NoSuchOperationError

    return checked


def _textual(operation: Callable[[str, str], bool]) -> Callable[[Any, Any], bool]:
    def checked(a: Any, b: Any) -> bool:
        if isinstance(a, str) and isinstance(b, str):
            return operation(a, b)
        raise NoSuchOperationError

    return checked


def equal(a: Any, b: Any) -> bool:
    """Numbers by value, everything else only within its own type."""
    if is_number(a) and is_number(b):
        return a == b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


def _add(a: Any, b: Any) -> Any:
    if (isinstance(a, str) and isinstance(b, str)) or (is_number(a) and is_number(b)):
        return a + b
    raise NoSuchOperationError


def _within(a: Any, b: Any) -> bool:
    if isinstance(b, list):
        return any(equal(a, one) for one in b)
    if isinstance(b, dict):
        return a in b
    if b is None:
        return False
    raise NoSuchOperationError


def _modulo(a: Any, b: Any) -> int:
    if not (isinstance(a, int) and isinstance(b, int)) or isinstance(a, bool) or isinstance(b, bool):
        raise NoSuchOperationError
    return abs(a) % abs(b) * (-1 if a < 0 else 1)


def _range(a: Any, b: Any) -> list[int]:
    if not (isinstance(a, int) and isinstance(b, int)):
        raise NoSuchOperationError
    return list(range(a, b + 1))


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": equal,
    "!=": lambda a, b: not equal(a, b),
    "<": _ordered(lambda a, b: a < b),
    "<=": _ordered(lambda a, b: a <= b),
    ">": _ordered(lambda a, b: a > b),
    ">=": _ordered(lambda a, b: a >= b),
    "+": _add,
    "-": _numeric(lambda a, b: a - b),
    "*": _numeric(lambda a, b: a * b),
    "/": _numeric(lambda a, b: a / b if b else float("inf") if a > 0 else float("-inf") if a < 0 else float("nan")),
    "%": _modulo,
    "**": _numeric(lambda a, b: float(a) ** b),
    "^": _numeric(lambda a, b: float(a) ** b),
    "..": _range,
    "in": _within,
    "contains": _textual(lambda a, b: b in a),
    "startsWith": _textual(lambda a, b: a.startswith(b)),
    "endsWith": _textual(lambda a, b: a.endswith(b)),
    "matches": _textual(lambda a, b: re.search(b, a) is not None),
}

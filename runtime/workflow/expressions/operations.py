"""The operators of expr-lang over two values."""

import math
from collections.abc import Callable
from typing import Any

from everstep.runtime.workflow.expressions import regexp
from everstep.runtime.workflow.expressions.bounds import check_count, check_length, wrap_int64


class NoSuchOperationError(Exception):
    """The operator does not take operands of these types."""


def is_number(value: Any) -> bool:
    """An int or a float; a boolean is not a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _on_numbers(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def operate(a: Any, b: Any) -> Any:
        if is_number(a) and is_number(b):
            result = operation(a, b)
            return wrap_int64(result) if isinstance(result, int) else result
        raise NoSuchOperationError

    return operate


def _on_ordered(operation: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def operate(a: Any, b: Any) -> bool:
        if (is_number(a) and is_number(b)) or (isinstance(a, str) and isinstance(b, str)):
            return operation(a, b)
        raise NoSuchOperationError

    return operate


def _on_texts(operation: Callable[[str, str], bool]) -> Callable[[Any, Any], bool]:
    def operate(a: Any, b: Any) -> bool:
        if isinstance(a, str) and isinstance(b, str):
            return operation(a, b)
        raise NoSuchOperationError

    return operate


def is_equal(a: Any, b: Any) -> bool:
    """Numbers by value, everything else only within its own type."""
    if is_number(a) and is_number(b):
        return a == b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(is_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_equal(a[key], b[key]) for key in a)
    return type(a) is type(b) and a == b


def _add(a: Any, b: Any) -> Any:
    if isinstance(a, str) and isinstance(b, str):
        check_length(len(a) + len(b))
        return a + b
    return _on_numbers(lambda a, b: a + b)(a, b)


def _is_in(a: Any, b: Any) -> bool:
    if isinstance(b, list):
        return any(is_equal(a, item) for item in b)
    if isinstance(b, dict):
        return isinstance(a, str) and a in b
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
    check_count(b - a + 1)
    return list(range(a, b + 1))


def quotient(a: float, b: float) -> float:
    """Go's division of floats: by 0 it is infinite, or NaN."""
    if b:
        return float(a) / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)


def power(a: Any, b: Any) -> float:
    """Go's math.Pow: too large is infinite, and what is no real number is NaN."""
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:
        return math.inf if a == 0 else math.nan


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": is_equal,
    "!=": lambda a, b: not is_equal(a, b),
    "<": _on_ordered(lambda a, b: a < b),
    "<=": _on_ordered(lambda a, b: a <= b),
    ">": _on_ordered(lambda a, b: a > b),
    ">=": _on_ordered(lambda a, b: a >= b),
    "+": _add,
    "-": _on_numbers(lambda a, b: a - b),
    "*": _on_numbers(lambda a, b: a * b),
    "/": _on_numbers(quotient),
    "%": _modulo,
    "**": _on_numbers(power),
    "^": _on_numbers(power),
    "..": _range,
    "in": _is_in,
    "contains": _on_texts(lambda a, b: b in a),
    "startsWith": _on_texts(lambda a, b: a.startswith(b)),
    "endsWith": _on_texts(lambda a, b: a.endswith(b)),
    "matches": _on_texts(lambda a, b: regexp.matches(b, a)),
}

"""The functions that expr-lang brings, and those that Argo adds: asInt, asFloat, toJson, jsonpath.

After the language definition of expr-lang, "Built-in Functions". Dates and time zones are not here.
"""

import base64
import itertools
import math
from collections.abc import Callable, Iterable
from typing import Any

from everstep.runtime.workflow.expressions.bounds import check_count, check_int64, check_length, wrap_int64
from everstep.runtime.workflow.expressions.errors import ExpressionError
from everstep.runtime.workflow.expressions.json_text import read_json
from everstep.runtime.workflow.expressions.jsonpath import jsonpath
from everstep.runtime.workflow.expressions.operations import is_number
from everstep.runtime.workflow.expressions.values import go_json, go_pretty_json, go_text, go_type


def as_int(value: Any) -> int:
    """Argo's asInt: of a text or a number. Raises ExpressionError."""
    _refuse_nil(value)
    try:
        return check_int64(int(value) if not isinstance(value, str) else int(value, 10))
    except (ValueError, TypeError, OverflowError):
        raise ExpressionError(f"invalid operation: int({go_text(value)})") from None


def as_float(value: Any) -> float:
    """Argo's asFloat."""
    _refuse_nil(value)
    try:
        return float(value)
    except (ValueError, TypeError):
        raise ExpressionError(f"invalid operation: float({go_text(value)})") from None


def _refuse_nil(value: Any) -> None:
    """Raises ExpressionError: Go's reflection cannot call a function of Argo's own with nil."""
    if value is None:
        raise ExpressionError("reflect: call of reflect.Value.Type on zero Value")


def from_json(text: str) -> Any:
    """The value of a JSON text; numbers are floats, as Go reads them. Raises ExpressionError."""
    return read_json(text, floats=True)


def _length(value: Any) -> int:
    if isinstance(value, str | list | dict):
        return len(value)
    raise ExpressionError(f"invalid argument for len (type {go_type(value)})")


def _type(value: Any) -> str:
    names = {"<nil>": "nil", "float64": "float", "[]interface {}": "array", "map[string]interface {}": "map"}
    return names.get(go_type(value), go_type(value))


def _numbers(values: tuple[Any, ...]) -> list[Any]:
    flat = _flatten(values)
    if not all(map(is_number, flat)):
        raise ExpressionError("invalid argument (numbers are needed)")
    return flat


def _median(*values: Any) -> float:
    in_order = sorted(_numbers(values))
    middle = len(in_order) // 2
    if not in_order:
        return 0.0
    return float(in_order[middle]) if len(in_order) % 2 else (in_order[middle - 1] + in_order[middle]) / 2


def _round(value: float) -> float:
    return float(math.floor(abs(value) + 0.5)) * (-1 if value < 0 else 1)


def _split(text: str, separator: str, limit: int = -1) -> list[str]:
    if separator == "":
        return list(text)
    return text.split(separator) if limit < 0 else text.split(separator, limit - 1) if limit else []


def _split_after(text: str, separator: str) -> list[str]:
    parts = text.split(separator)
    return [part + separator for part in parts[:-1]] + parts[-1:]


def _join(parts: list[Any], glue: str = "") -> str:
    if not all(isinstance(part, str) for part in parts):
        raise ExpressionError("invalid argument for join (texts are needed)")
    return join_texts(parts, glue)


def unique_values(values: list[Any]) -> list[Any]:
    """Each once, where it is first."""
    unique: dict[Any, Any] = {}
    for value in values:
        unique.setdefault(unique_key(value), value)
    return list(unique.values())


def _flatten(values: Iterable[Any]) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        flat += _flatten(value) if isinstance(value, list) else [value]
    return flat


def _get(of: Any, key: Any) -> Any:
    if isinstance(of, dict):
        return of.get(key)
    if isinstance(of, list) and isinstance(key, int) and -len(of) <= key < len(of):
        return of[key]
    return None


def _repeat(text: str, count: int) -> str:
    if count < 0:
        raise ExpressionError(f"invalid argument for repeat (expected positive integer, got {count})")
    check_length(len(text) * check_count(count))
    return text * count


def replace_text(text: str, old: str, new: str, most: int = -1) -> str:
    """The text with `new` for each `old`, the first `most` of them (-1: all)."""
    check_length(len(text) + text.count(old) * max(0, len(new) - len(old)))
    return text.replace(old, new, max(-1, most))


def join_texts(parts: list[str], glue: str) -> str:
    """The texts with the glue between them."""
    check_length(sum(map(len, parts)) + len(glue) * len(parts))
    return glue.join(parts)


def unique_key(value: Any) -> Any:
    """What can be looked up, and is the same of values that are equal."""
    if isinstance(value, list):
        return ("list", *map(unique_key, value))
    if isinstance(value, dict):
        return ("map", frozenset((key, unique_key(inner)) for key, inner in value.items()))
    return ("bool", value) if isinstance(value, bool) else value


def _shift_left(a: int, b: int) -> int:
    if b < 0:
        raise ExpressionError(f"invalid operation: negative shift count {b}")
    return wrap_int64(a << b) if b < 64 else 0


def _shift_right(a: int, b: int) -> int:
    if b < 0:
        raise ExpressionError(f"invalid operation: negative shift count {b}")
    return a >> min(b, 64)


def _sort(values: list[Any], order: str = "asc") -> list[Any]:
    return sorted(values, reverse=order == "desc")


BUILTINS: dict[str, Callable[..., Any]] = {
    "asInt": as_int,
    "asFloat": as_float,
    "toJson": go_json,
    "jsonpath": lambda text, path: jsonpath(text, path),
    "len": _length,
    "type": _type,
    "abs": abs,
    "int": as_int,
    "float": as_float,
    "string": go_text,
    "trim": lambda text, what=" \t\n\r\v\f": text.strip(what),
    "trimPrefix": lambda text, what=" ": text.removeprefix(what),
    "trimSuffix": lambda text, what=" ": text.removesuffix(what),
    "upper": lambda text: text.upper(),
    "lower": lambda text: text.lower(),
    "split": _split,
    "splitAfter": _split_after,
    "replace": replace_text,
    "repeat": _repeat,
    "join": _join,
    "indexOf": lambda text, part: text.find(part),
    "lastIndexOf": lambda text, part: text.rfind(part),
    "hasPrefix": lambda text, part: text.startswith(part),
    "hasSuffix": lambda text, part: text.endswith(part),
    "max": lambda *values: max(_numbers(values)),
    "min": lambda *values: min(_numbers(values)),
    "mean": lambda *values: float(sum(_numbers(values))) / max(1, len(_numbers(values))),
    "median": _median,
    "ceil": lambda value: float(math.ceil(value)),
    "floor": lambda value: float(math.floor(value)),
    "round": _round,
    "concat": lambda *lists: list(itertools.chain.from_iterable(lists)),
    "flatten": _flatten,
    "uniq": unique_values,
    "reverse": lambda values: values[::-1],
    "take": lambda values, count: values[: max(0, count)],
    "first": lambda values: values[0] if values else None,
    "last": lambda values: values[-1] if values else None,
    "keys": lambda mapping: list(mapping),
    "values": lambda mapping: list(mapping.values()),
    "toPairs": lambda mapping: [[key, value] for key, value in mapping.items()],
    "fromPairs": lambda pairs: dict(pairs),
    "sort": _sort,
    "get": _get,
    "toJSON": go_pretty_json,
    "fromJSON": from_json,
    "toBase64": lambda text: base64.b64encode(text.encode()).decode(),
    "fromBase64": lambda text: base64.b64decode(text, validate=True).decode(),
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "bitnand": lambda a, b: a & ~b,
    "bitnot": lambda a: ~a,
    "bitshl": _shift_left,
    "bitshr": _shift_right,
    "bitushr": lambda a, b: wrap_int64(_shift_right(a % (1 << 64), b)),
}


CONSTANT_TIME = frozenset({"len", "type", "first", "last", "get", "sprig.hasKey", "sprig.get"})
"""Functions that do not go through what they are given."""


Predicate = Callable[..., Any]


def _matching_indexes(over: list[Any], predicate: Predicate | None) -> list[int]:
    """Indexes of the items for which the predicate holds; raises ExpressionError where it is no boolean."""
    indexes = []
    for index, item in enumerate(over):
        holds = predicate(item, index) if predicate else item
        if not isinstance(holds, bool):
            raise ExpressionError(f"predicate should return boolean (got {go_type(holds)})")
        if holds:
            indexes.append(index)
    return indexes


def _map(over: list[Any], predicate: Predicate | None) -> list[Any]:
    return [predicate(item, index) if predicate else item for index, item in enumerate(over)]


def _reduce(over: list[Any], predicate: Predicate | None, *start: Any) -> Any:
    accumulator, rest = (start[0], over) if start else (over[0] if over else None, over[1:])
    for index, item in enumerate(rest, 0 if start else 1):
        accumulator = predicate(item, index, accumulator) if predicate else accumulator
    return accumulator


def _group_by(over: list[Any], predicate: Predicate | None) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for key, item in zip(_map(over, predicate), over, strict=True):
        groups.setdefault(key, []).append(item)
    return groups


def _sort_by(over: list[Any], predicate: Predicate | None, order: str = "asc") -> list[Any]:
    keys = _map(over, predicate)
    return [over[index] for index in sorted(range(len(over)), key=keys.__getitem__, reverse=order == "desc")]


def _nth(indexes: list[int], over: list[Any], which: int, missing: Any) -> Any:
    return missing if not indexes else over[indexes[which]]


def _sum(values: list[Any]) -> Any:
    total = sum(values)
    return wrap_int64(total) if isinstance(total, int) else total


PREDICATES: dict[str, Callable[..., Any]] = {
    "all": lambda over, p: len(_matching_indexes(over, p)) == len(over),
    "any": lambda over, p: bool(_matching_indexes(over, p)),
    "none": lambda over, p: not _matching_indexes(over, p),
    "one": lambda over, p: len(_matching_indexes(over, p)) == 1,
    "filter": lambda over, p: [over[index] for index in _matching_indexes(over, p)],
    "map": _map,
    "count": lambda over, p: len(_matching_indexes(over, p)),
    "sum": lambda over, p: _sum(_map(over, p)),
    "find": lambda over, p: _nth(_matching_indexes(over, p), over, 0, None),
    "findIndex": lambda over, p: _nth(_matching_indexes(over, p), list(range(len(over))), 0, None),
    "findLast": lambda over, p: _nth(_matching_indexes(over, p), over, -1, None),
    "findLastIndex": lambda over, p: _nth(_matching_indexes(over, p), list(range(len(over))), -1, None),
    "groupBy": _group_by,
    "sortBy": _sort_by,
    "reduce": _reduce,
}

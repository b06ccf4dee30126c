"""Durations as Argo writes them: `10` (seconds), `1.5m`, `1h30m`, after Go's time.ParseDuration; and whole numbers."""

import re
from typing import Any

from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.bounds import int64

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([^0-9.]*)")
LONGEST_S = 9.2e9
"""Nanoseconds of a duration are 64 bits in Go: 292 years."""


class DurationError(ValueError):
    """It is none; in Argo's words."""


def seconds(value: Any) -> float:
    """Of a duration; a bare number counts seconds. Raises DurationError."""
    text = str(value)
    if re.fullmatch(r"[+-]?[0-9]+", text):
        if abs(float(text)) > LONGEST_S:
            raise _wrong(text, f'invalid duration "{text}"')
        return float(text)
    sign, body = (-1.0, text[1:]) if text[:1] == "-" else (1.0, text.removeprefix("+"))
    total, place = 0.0, 0
    while place < len(body):
        part = _PART.match(body, place)
        if part is None or not body:
            raise _wrong(text, f'invalid duration "{text}"')
        if not part[2]:
            raise _wrong(text, f'missing unit in duration "{text}"')
        if part[2] not in _UNITS:
            raise _wrong(text, f'unknown unit "{part[2]}" in duration "{text}"')
        total += float(part[1]) * _UNITS[part[2]]
        place = part.end()
    if not body or total > LONGEST_S:
        raise _wrong(text, f'invalid duration "{text}"')
    return sign * total


def whole(value: Any) -> int:
    """An IntOrString as a number of 64 bits. Raises ExpressionError in Argo's words."""
    try:
        return int64(int(str(value), 10))
    except ValueError:
        raise ExpressionError(f"value '{value}' cannot be resolved to an int") from None


def _wrong(text: str, why: str) -> DurationError:
    return DurationError(f"unable to parse {text} as a duration: time: {why}")

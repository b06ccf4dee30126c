"""Durations as Argo writes them: `10` (seconds), `1.5m`, `1h30m`. After Go's time.ParseDuration."""

import re
from typing import Any

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+\.?\d*|\.\d+)([^\d.]*)")


class DurationError(ValueError):
    """It is none; in Argo's words."""


def seconds(value: Any) -> float:
    """Of a duration; a bare number counts seconds. Raises DurationError."""
    text = str(value)
    if re.fullmatch(r"[+-]?\d+", text):
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
    if not body:
        raise _wrong(text, f'invalid duration "{text}"')
    return sign * total


def _wrong(text: str, why: str) -> DurationError:
    return DurationError(f"unable to parse {text} as a duration: time: {why}")

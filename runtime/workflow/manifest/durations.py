"""Durations as Argo writes them: `10` (seconds), `1.5m`, `1h30m`, after Go's time.ParseDuration; and whole numbers."""

import re
from typing import Any

from everstep.runtime.workflow.expressions import ExpressionError, go_duration
from everstep.runtime.workflow.expressions.bounds import INT_MAX, check_int64

LONGEST_S = INT_MAX / go_duration.SECOND
"""Nanoseconds of a duration are 64 bits in Go: 292 years."""


class DurationError(ValueError):
    """The value is not a duration; in Argo's words."""


def parse_seconds(value: Any) -> float:
    """The seconds of a duration; a bare number counts seconds. Raises DurationError."""
    text = str(value)
    if re.fullmatch(r"[+-]?[0-9]+", text):
        if abs(float(text)) > LONGEST_S:
            raise _duration_error(text, f'invalid duration "{text}"')
        return float(text)
    try:
        return go_duration.parse_duration(text) / go_duration.SECOND
    except ValueError as error:
        raise _duration_error(text, str(error)) from None


def parse_int(value: Any) -> int:
    """An IntOrString as a number of 64 bits. Raises ExpressionError in Argo's words."""
    try:
        return check_int64(int(str(value), 10))
    except ValueError:
        raise ExpressionError(f"value '{value}' cannot be resolved to an int") from None


def _duration_error(text: str, why: str) -> DurationError:
    return DurationError(f"unable to parse {text} as a duration: time: {why}")

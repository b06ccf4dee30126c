"""Go's time.Duration: nanoseconds in 64 bits, read and written as its package `time` does it."""

import re

from everstep.runtime.workflow.expressions.bounds import INT_MAX, INT_MIN

SECOND = 10**9
MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": SECOND, "m": MINUTE, "h": HOUR}
_PART = re.compile(r"(?=\.?[0-9])([0-9]*)\.?([0-9]*)([^0-9.]*)")
_DIGITS = 19
"""No number of 64 bits has more; digits of a fraction beyond them do not count."""


def parse_duration(text: str) -> int:
    """time.ParseDuration: nanoseconds. Raises ValueError with its words."""
    sign, body = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if body == "0":
        return 0
    total, place = 0, 0
    while place < len(body) or not body:
        part = _PART.match(body, place)
        if part is None:
            raise ValueError(f'invalid duration "{text}"')
        whole, fraction, unit = part[1].lstrip("0"), part[2][:_DIGITS], part[3]
        if not unit:
            raise ValueError(f'missing unit in duration "{text}"')
        if unit not in _UNITS:
            raise ValueError(f'unknown unit "{unit}" in duration "{text}"')
        total += int(whole[: _DIGITS + 1] or "0") * _UNITS[unit]
        total += int(fraction or "0") * _UNITS[unit] // 10 ** len(fraction)
        if sign * total not in range(INT_MIN, INT_MAX + 1):
            raise ValueError(f'invalid duration "{text}"')
        place = part.end()
    return sign * total


def format_duration(nanoseconds: int) -> str:
    """Duration.String: `1h0m1.5s`; below a second in the largest unit of which there is one."""
    sign, rest = "-" if nanoseconds < 0 else "", abs(nanoseconds)
    if not rest:
        return "0s"
    if rest < SECOND:
        unit = next(name for name in ("ms", "µs", "ns") if rest >= _UNITS[name])
        return f"{sign}{_decimal(rest, _UNITS[unit])}{unit}"
    hours, minutes = rest // HOUR, rest % HOUR // MINUTE
    text = f"{hours}h" if hours else ""
    text += f"{minutes}m" if hours or minutes else ""
    return f"{sign}{text}{_decimal(rest % MINUTE, SECOND)}s"


def _decimal(count: int, unit: int) -> str:
    """`count / unit`, exactly; the unit is a power of ten."""
    fraction = f"{count % unit:0{len(str(unit)) - 1}d}".rstrip("0") if unit > 1 else ""
    return f"{count // unit}.{fraction}" if fraction else str(count // unit)

"""Single values of a spec as people write them. Each reader raises Wrong for what its field cannot have."""

import re
from collections.abc import Callable
from typing import Any

from everstep.runtime.job.spec import NodeEvent

_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|[KMGT]i?)?")
_UNITS = {"m": 1e-3, **{f"{u}i": 1 << 10 * n for n, u in enumerate("KMGT", 1)}, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


class Wrong(ValueError):  # noqa: N818 (a name that reads well in `except`)
    """A value that its field cannot have; the text says what it can."""


def number(value: Any) -> float:
    """Seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise Wrong("a number of seconds, 0 or more")
    return float(value)


def whole(value: Any) -> int:
    """An int."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise Wrong("a whole number")
    return value


def text(value: Any) -> str:
    """A str."""
    if not isinstance(value, str):
        raise Wrong("a text")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Names: a list, or one text with commas."""
    found = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(part, str) for part in found):
        raise Wrong("a list of names")
    return tuple(part for part in found if part)


def lines(value: Any) -> tuple[str, ...]:
    """Lines of a topology: a list, or one text."""
    found = value.splitlines() if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(line, str) for line in found):
        raise Wrong("lines `access-switch pod-switch ip`")
    return tuple(line.strip() for line in found if line.strip())


def factor(value: Any) -> float:
    """Any number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong("a number")
    return float(value)


def quantity(value: Any) -> float:
    """`4Gi`, `500m`, `1.5`, as Kubernetes writes amounts."""
    found = None if isinstance(value, bool) else _QUANTITY.fullmatch(str(value))
    if not found:
        raise Wrong("an amount like 8, 0.5, 500m, 4Gi")
    return float(found[1]) * _UNITS.get(found[2], 1)


def codes(value: Any) -> tuple[int, ...]:
    """`129,101` or `1-3,7` or a list."""
    parts = value if isinstance(value, list) else str(value).split(",")
    found: list[int] = []
    for part in parts:
        first, dash, last = str(part).strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or not int(first) <= int(last or first) < 256:
            raise Wrong('exit codes from 0 to 255, like "129,101" or "1-3"')
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def events(value: Any) -> tuple[NodeEvent, ...]:
    """Names of NodeEvent."""
    known = {event.value.lower(): event for event in NodeEvent}
    found = [known.get(name.lower()) for name in texts(value)]
    if None in found or not found:
        raise Wrong(f"some of {', '.join(NodeEvent)}")
    return tuple(event for event in found if event)


def one_of(kind: Any) -> Callable[[Any], Any]:
    """A reader of one enum's values, in any case."""

    def read(value: Any) -> Any:
        for member in kind:
            if str(value).lower() == member.value.lower():
                return member
        raise Wrong(f"one of {', '.join(kind)}")

    return read

"""Single values of a spec as people write them. Each reader raises Wrong for what its field cannot have."""

import math
import re
import sys
from collections.abc import Callable
from enum import EnumMeta
from typing import Annotated, Any

import msgspec
from msgspec.structs import FieldInfo

from everstep.runtime.job import pod_template
from everstep.runtime.job.spec import NodeEvent

_QUANTITY = re.compile(r"\+?(\d+\.?\d*|\.\d+)(?:([numkKMGTPE]|[KMGTPE]i)|[eE]([+-]?\d+))?", re.ASCII)
_UNITS = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, **{f"{unit}i": 1 << 10 * n for n, unit in enumerate("KMGTPE", 1)}, "k": 1e3,
    **{unit: 10.0 ** (3 * n) for n, unit in enumerate("KMGTPE", 1)},
}  # fmt: skip
USUAL_PRIORITY = "normal"
"""What CCE's console writes for a job without a PriorityClass."""
Reader = Callable[[Any], Any]


class Wrong(ValueError):  # noqa: N818 (a name that reads well in `except`)
    """A value that its field cannot have; the text says what it can."""


def read(field: FieldInfo, value: Any) -> Any:
    """What the field has when this is written. Raises Wrong."""
    if isinstance(field.type, EnumMeta):
        return _member(field.type, value)
    return (_OWN.get(field.name) or _READERS[field.type])(value)


def quantity(value: Any) -> float:
    """`4Gi`, `500m`, `1.5`, `2147480k`, `1e9`, as Kubernetes writes amounts. What its API answers may be written
    otherwise than what it was asked."""
    match = None if isinstance(value, bool) else _QUANTITY.fullmatch(str(value))
    amount = float(f"{match[1]}e{match[3] or 0}") * _UNITS.get(match[2], 1) if match else math.inf
    if not math.isfinite(amount):
        raise Wrong("an amount like 8, 0.5, 500m, 4Gi")
    return amount


def _as(kind: Any, what: str) -> Reader:
    def convert(value: Any) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise Wrong(what) from None

    return convert


def _texts(what: str, split: Callable[[str], list[str]]) -> Reader:
    """A list, or one text that is split."""
    read_list = _as(tuple[str, ...], what)

    def convert(value: Any) -> tuple[str, ...]:
        items = read_list(split(value) if isinstance(value, str) else value)
        return tuple(part.strip() for part in items if part.strip())

    return convert


def _codes(value: Any) -> tuple[int, ...]:
    """`129,101` or `1-3,7` or a list."""
    codes: list[int] = []
    for part in value if isinstance(value, list) else str(value).split(","):
        first, dash, last = str(part).strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or not int(first) <= int(last or first) < 256:
            raise Wrong('exit codes from 0 to 255, like "129,101" or "1-3"')
        codes += range(int(first), int(last or first) + 1)
    return tuple(codes)


def _events(value: Any) -> tuple[NodeEvent, ...]:
    try:
        return tuple(_member(NodeEvent, name) for name in _NAMES(value) or [""])
    except Wrong:
        raise Wrong(f"some of {', '.join(NodeEvent)}") from None


def _member(kind: Any, value: Any) -> Any:
    """The member of that value, in upper or lower case."""
    for member in kind:
        if str(value).lower() == member.value.lower():
            return member
    raise Wrong(f"one of {', '.join(kind)}")


def _template(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Wrong("a mapping with metadata and spec, as a pod template has them")
    if wrong := list(pod_template.problems(value)):
        raise Wrong(f"a pod template of a role: {'; '.join(wrong)}")
    return value


def _priority_class(value: Any) -> str:
    name = _as(str, "the name of a PriorityClass")(value)
    return "" if name == USUAL_PRIORITY else name


def _bytes(value: Any) -> int:
    return int(quantity(value))


_NAMES = _texts("a list of names", lambda text: text.split(","))
_READERS: dict[Any, Reader] = {
    float: _as(Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)], "a number of seconds, 0 or more"),
    bool: _as(bool, "true or false"), str: _as(str, "a text"),
    int: _as(int, "a whole number"), int | None: _as(int, "a whole number"),
    dict[str, float]: _as(
        dict[str, Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]], "seconds of phases, like {save: 600}"
    ),
    tuple[str, ...]: _NAMES, tuple[int, ...]: _codes, tuple[NodeEvent, ...]: _events,
}  # fmt: skip
_OWN: dict[str, Reader] = {
    "topology": _texts("lines `access-switch pod-switch ip`", str.splitlines),
    "template": _template, "priority_class": _priority_class, "factor": _as(float, "a number"),
    "increment_bytes": _bytes, "limit_bytes": _bytes,
}  # fmt: skip
"""Fields that read otherwise than others of their type."""

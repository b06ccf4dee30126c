"""Semantic versions (semver.org) and the constraints on them of Masterminds/semver, which sprig's functions take.

`>=1.2, <2`, `^1.2 || ~3.4.1`, `1.2.x`, `1 - 2`: alternatives between `||`, all of what stands between commas or spaces.
"""

import re
from typing import Any, NamedTuple

from everstep.runtime.workflow.expressions.errors import ExpressionError

_PART = r"\d{1,18}|x|X|\*"
_WRITTEN = rf"v?({_PART})(?:\.({_PART}))?(?:\.({_PART}))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?"
_VERSION = re.compile(r"v?(\d{1,18})(?:\.(\d{1,18}))?(?:\.(\d{1,18}))?(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")
_RANGE = re.compile(rf"({_WRITTEN})\s+-\s+({_WRITTEN})")
_ONE = re.compile(rf"(=|!=|>=|=>|<=|=<|>|<|~>|~|\^)?\s*{_WRITTEN}\s*[,\s]?\s*")
_SAME = {"=>": ">=", "=<": "<=", "~>": "~"}
_LONGEST = 1000
"""Characters of a constraint."""


class Version(NamedTuple):
    """Ordered as semver.org says, by `order`."""

    major: int
    minor: int
    patch: int
    prerelease: str
    """The pre-release: `beta.2`; empty for a release."""

    @property
    def order(self) -> tuple[Any, ...]:
        """The key by which versions are compared."""
        each = [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in self.prerelease.split(".")]
        return (*self[:3], not self.prerelease, each)


class _Constraint(NamedTuple):
    operator: str
    version: Version
    given_numbers: int
    """How many of its three numbers are given."""


def allows(constraints: str, version: str) -> bool:
    """Whether the version satisfies the constraints. Raises ExpressionError for malformed texts."""
    match = _VERSION.fullmatch(version.strip())
    if not match:
        raise ExpressionError("invalid semantic version")
    have = Version(int(match[1]), int(match[2] or 0), int(match[3] or 0), match[4] or "")
    alternatives = [_parse_constraints(part) for part in constraints[: _LONGEST + 1].split("||")]
    return any(all(_holds(constraint, have) for constraint in some) for some in alternatives)


def _parse_constraints(text: str) -> list[_Constraint]:
    rest = _RANGE.sub(r">=\1,<=\6", text).strip()
    constraints: list[_Constraint] = []
    while rest:
        match = _ONE.match(rest)
        if not match or len(text) > _LONGEST or rest.endswith(","):
            raise ExpressionError(f"improper constraint: {text[:_LONGEST]}")
        rest = rest[match.end() :]
        numbers = [part for part in match.groups()[1:4] if part and part not in "xX*"]
        precision = next((at for at, part in enumerate(match.groups()[1:4]) if not part or part in "xX*"), 3)
        major, minor, patch = (*map(int, numbers[:precision]), 0, 0, 0)[:3]
        operator = match[1] or "="
        constraints.append(
            _Constraint(_SAME.get(operator, operator), Version(major, minor, patch, match[5] or ""), precision)
        )
    if not constraints:
        raise ExpressionError(f"improper constraint: {text}")
    return constraints


def _holds(constraint: _Constraint, have: Version) -> bool:
    """Whether a version satisfies a constraint. A pre-release satisfies only constraints that name a pre-release."""
    operator, version_bound, precision = constraint
    if have.prerelease and not version_bound.prerelease:
        return False
    mine, theirs = (have[:precision], version_bound[:precision]) if precision < 3 else (have.order, version_bound.order)
    since = have.order >= version_bound.order
    compared_parts = _caret_count(version_bound, precision) if operator == "^" else min(precision, 2)
    return {
        "=": mine == theirs,
        "!=": mine != theirs,
        ">": mine > theirs,
        "<": have.order < version_bound.order,
        ">=": since,
        "<=": mine <= theirs,
        "~": since and have[:compared_parts] == version_bound[:compared_parts],
        "^": since and have[:compared_parts] == version_bound[:compared_parts],
    }[operator]


def _caret_count(version_bound: Version, parts: int) -> int:
    """How many numbers `^` keeps: up to the first that is not 0."""
    return min(next((at + 1 for at, number in enumerate(version_bound[:3]) if number), 3), parts)

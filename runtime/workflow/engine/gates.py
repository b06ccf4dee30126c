"""What a call may wait for outside of the run: locks that runs share, and memoized outputs.

The engine only asks. The executor looks, and logs what it found, so that a replay of the log finds the same.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.manifest.durations import DurationError, parse_seconds
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import Library, MissingObjectError

MEMO_KEY = re.compile(r"[-._a-zA-Z0-9]+")


class Lock(NamedTuple):
    """A mutex (`limit` is 1) or a semaphore that `limit` nodes may hold at once."""

    name: str
    """`NAMESPACE/Mutex/NAME` or `NAMESPACE/ConfigMap/NAME/KEY`."""
    limit: int


class Memo(NamedTuple):
    """The key of memoized outputs that an earlier node may have left."""

    cache: str
    key: str
    max_age_s: float | None


class GateResult(NamedTuple):
    """What the executor found when it opened a gate."""

    hit: bool = False
    parameters: list[dict[str, Any]] = []  # noqa: RUF012
    artifacts: list[dict[str, Any]] = []  # noqa: RUF012
    result: str | None = None


def declared_locks(holder: Mapping[str, Any], namespace: str, library: Library) -> list[Lock]:
    """The locks of a template or workflow. Raises ExpressionError for a semaphore without a limit."""
    locks = []
    for mutex in list_at(holder, "synchronization", "mutexes"):
        locks.append(Lock(f"{mutex.get('namespace') or namespace}/Mutex/{mutex.get('name')}", 1))
    for semaphore in list_at(holder, "synchronization", "semaphores"):
        reference = semaphore.get("configMapKeyRef") or {}
        name = f"{semaphore.get('namespace') or namespace}/ConfigMap/{reference.get('name')}/{reference.get('key')}"
        try:
            locks.append(Lock(name, int(library.value("ConfigMap", reference) or "")))
        except (MissingObjectError, ValueError) as error:
            raise ExpressionError(f"failed to initialize semaphore {name} with limit") from error
    return locks


def declared_memo(template: Mapping[str, Any]) -> Memo | None:
    """Where a template's outputs are memoized; None where it asks for none. Raises ExpressionError in Argo's words."""
    memoize = template.get("memoize")
    if not memoize:
        return None
    key = str(memoize.get("key") or "")
    if not MEMO_KEY.fullmatch(key):
        raise ExpressionError(f"invalid cache key: {key}")
    try:
        age = parse_seconds(memoize["maxAge"]) if memoize.get("maxAge") else None
    except DurationError as error:
        raise ExpressionError(f"invalid maxAge: {str(error).partition('as a duration: ')[2]}") from None
    return Memo(str(((memoize.get("cache") or {}).get("configMap") or {}).get("name")), key, age)

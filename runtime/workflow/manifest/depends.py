"""`depends` and `dependencies`: which tasks one waits for, and when it may run ("Enhanced Depends Logic")."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from everstep.runtime.workflow.expressions import ExpressionError, evaluate

STATES = ("Succeeded", "Failed", "Errored", "Skipped", "Omitted", "Daemoned", "AnySucceeded", "AllFailed")
LOOP_STATES = ("AnySucceeded", "AllFailed")
_NEED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9]*)(?:\.([A-Za-z]+))?")


_PLAIN = re.compile(r"\s*[A-Za-z0-9][-A-Za-z0-9]*(\s*&&\s*[A-Za-z0-9][-A-Za-z0-9]*)*\s*")
"""A condition of bare names only, which needs no grammar."""
GOOD_STATES = ("Succeeded", "Skipped", "Daemoned")
"""The states for which a bare name holds."""


class DependsError(ExpressionError):
    """The text cannot be evaluated; in Argo's words."""


@lru_cache(maxsize=65536)
def needs(text: str) -> tuple[tuple[str, str], ...]:
    """(task, state) of everything that a `depends` names; the state is empty for a bare name."""
    return tuple((match[1], match[2] or "") for match in _NEED.finditer(text))


def depends_of(task: Mapping[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> str:
    """A task's condition; `dependencies` is the `&&` of bare names, which `continueOn` of those tasks widens."""
    if task.get("depends"):
        return str(task["depends"])
    return " && ".join(_dependency_condition(name, tasks) for name in task.get("dependencies") or [])


def _dependency_condition(name: str, tasks: Mapping[str, Mapping[str, Any]]) -> str:
    goes_on = (tasks.get(name) or {}).get("continueOn") or {}
    more = [f"{name}.{state}" for key, state in (("error", "Errored"), ("failed", "Failed")) if goes_on.get(key)]
    return f"({name} || {' || '.join(more)})" if more else name


def is_satisfied(text: str, states: Mapping[str, Mapping[str, bool]]) -> bool:
    """Whether the condition holds. `states`: the true states of each task that it names. Raises DependsError."""
    if _PLAIN.fullmatch(text):
        return all(any(states[name].get(state) for state in GOOD_STATES) for name, _ in needs(text))
    expression = _NEED.sub(_expr_need, text)
    environment: dict[str, Any] = {}
    for name, states_of_node in states.items():
        for state in STATES:
            environment[f"{_expr_name(name)}.{state}"] = states_of_node.get(state, False)
    try:
        value = evaluate(expression, environment)
    except ExpressionError as error:
        raise DependsError(f"unable to evaluate expression '{expression}': {error}") from None
    if not isinstance(value, bool):
        raise DependsError(f"unable to cast expression result '{value}' to bool")
    return value


def _expr_name(name: str) -> str:
    """The task's name as an identifier of expr-lang, in which - is minus."""
    return name.replace("-", "_")


def _expr_need(need: re.Match[str]) -> str:
    name = _expr_name(need[1])
    return f"{name}.{need[2]}" if need[2] else f"({name}.Succeeded || {name}.Skipped || {name}.Daemoned)"


class Ancestry:
    """The transitive dependencies of tasks, searched only as far as needed. There must be no cycles."""

    def __init__(self, waits: Mapping[str, set[str]]) -> None:
        self._waits = waits

    def ancestors(self, name: str) -> set[str]:
        """All tasks that a task waits for."""
        return set(self._walk_up(name))

    def is_ancestor(self, name: str, other: str) -> bool:
        """Whether a task waits for the other, directly or through others."""
        return any(ancestor == other for ancestor in self._walk_up(name))

    def _walk_up(self, name: str) -> Iterator[str]:
        """The ancestors of a task, nearest first."""
        visited, queue = {name}, [name]
        for task in queue:
            for need in self._waits.get(task, ()):
                if need in self._waits and need not in visited:
                    visited.add(need)
                    queue.append(need)
                    yield need

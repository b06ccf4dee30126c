"""What Argo's server refuses in the tasks of one DAG: how they declare dependencies, and which tasks they name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from everstep.runtime.workflow.manifest.depends import LOOP_STATES, STATES, depends_of, needs
from everstep.runtime.workflow.manifest.references import has_items
from everstep.runtime.workflow.manifest.schema import Problem, Where, nearest_hint


def style_problems(tasks: Sequence[Mapping[str, Any]], here: Where) -> Iterator[Problem]:
    """Problems of a DAG that mixes `depends` with `dependencies`, continueOn or names that it cannot use."""
    depends = any(task.get("depends") for task in tasks)
    if depends and any(task.get("dependencies") for task in tasks):
        yield Problem(here, "have both depends and dependencies; use depends in all of them")
    uses_depends = depends or any(task.get("dependencies") for task in tasks)
    for index, task in enumerate(tasks):
        if depends and task.get("continueOn"):
            name = task.get("name")
            mend = f"has no effect with depends; say {name}.Failed or {name}.Errored"
            yield Problem((*here, index, "continueOn"), mend)
        if uses_depends and str(task.get("name") or "")[:1].isdigit():
            yield Problem((*here, index, "name"), f"{task['name']!r} begins with a digit, which depends cannot name")


def reference_problems(
    entries: Sequence[Mapping[str, Any]], tasks: Mapping[str, Mapping[str, Any]], here: Where
) -> Iterator[Problem]:
    """Problems of dependencies: the task does not exist, or cannot be in that state."""
    for index, task in enumerate(entries):
        field = (*here, index, "depends" if task.get("depends") else "dependencies")
        for name, state in needs(depends_of(task, tasks)):
            if name not in tasks:
                yield Problem(field, f"there is no task {name}{nearest_hint(name, tasks)}")
            elif state and state not in STATES:
                yield Problem(
                    field, f"{state} is not one of {', '.join(STATES)}{nearest_hint(state, dict.fromkeys(STATES))}"
                )
            elif state in LOOP_STATES and not has_items(tasks[name]):
                yield Problem(field, f"{name}.{state} needs items, and {name} has none")

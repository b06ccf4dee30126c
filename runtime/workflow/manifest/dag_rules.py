"""What Argo's server refuses in the tasks of one DAG: how they declare dependencies, which tasks they name, and what
they read too early."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

from everstep.runtime.workflow.expressions.tags import tags
from everstep.runtime.workflow.manifest.depends import LOOP_STATES, STATES, Ancestry, depends_of, needs
from everstep.runtime.workflow.manifest.fields import list_at
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


def order_problems(
    task: Mapping[str, Any], tasks: Container[str], ancestors: Ancestry, where: Where
) -> Iterator[Problem]:
    """Problems of arguments that are the output of a task which may run later."""
    for kind in ("parameters", "artifacts"):
        for index, entry in enumerate(list_at(task, "arguments", kind)):
            text = str(entry.get("value" if kind == "parameters" else "from") or "").strip()
            texts = tags(text)
            if len(texts) != 1 or text != f"{{{{{texts[0]}}}}}" or not texts[0].strip().startswith("tasks."):
                continue
            producer = texts[0].strip().split(".")[1]
            if producer in tasks and not ancestors.is_ancestor(str(task.get("name")), producer):
                message = f"reads {producer}, which it does not depend on; add {producer} to its depends"
                yield Problem((*where, "arguments", kind, index), message)

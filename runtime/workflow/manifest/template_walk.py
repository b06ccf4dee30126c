"""Every template of a workflow and every task in it, with its place, for the lint."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import Library, MissingObjectError
from everstep.runtime.workflow.manifest.schema import Where


class TemplateAt(NamedTuple):
    """A template and its place."""

    template: Mapping[str, Any]
    where: Where
    inline: bool = False


class TaskAt(NamedTuple):
    """A task or step, in its template."""

    task: Mapping[str, Any]
    where: Where
    holder: TemplateAt
    prefix: str
    """`tasks` or `steps`."""


def templates(spec: Mapping[str, Any]) -> Iterator[TemplateAt]:
    """All templates, including inline ones."""
    for index, template in enumerate(list_at(spec, "templates")):
        yield from _with_inline(TemplateAt(template, ("spec", "templates", index)))


def _with_inline(at: TemplateAt) -> Iterator[TemplateAt]:
    yield at
    for task_at in tasks(at):
        if task_at.task.get("inline"):
            yield from _with_inline(TemplateAt(task_at.task["inline"], (*task_at.where, "inline"), True))


def tasks(at: TemplateAt) -> Iterator[TaskAt]:
    """The tasks of a DAG, or the steps of a steps template."""
    for index, task in enumerate(list_at(at.template, "dag", "tasks")):
        yield TaskAt(task, (*at.where, "dag", "tasks", index), at, "tasks")
    for number, group in enumerate(list_at(at.template, "steps")):
        for index, step in enumerate(group or []):
            yield TaskAt(step, (*at.where, "steps", number, index), at, "steps")


def called_template(task: Mapping[str, Any], spec: Mapping[str, Any], library: Library) -> Mapping[str, Any] | None:
    """What a task, step or hook calls; None when it does not exist."""
    if task.get("templateRef"):
        try:
            return library.template(task["templateRef"])
        except MissingObjectError:
            return None
    if task.get("inline"):
        return task["inline"]
    return next(
        (template for template in list_at(spec, "templates") if template.get("name") == task.get("template")), None
    )


def hooks(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Where]]:
    """(name, hook, its place) of the workflow and of every task."""
    for name, hook in (spec.get("hooks") or {}).items():
        yield name, hook, ("spec", "hooks", name)
    for at in templates(spec):
        for task_at in tasks(at):
            for name, hook in (task_at.task.get("hooks") or {}).items():
                yield name, hook, (*task_at.where, "hooks", name)

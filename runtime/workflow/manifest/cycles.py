"""Templates that call each other, or themselves, for ever."""

from collections.abc import Iterator, Mapping
from typing import Any

from everstep.runtime.workflow.manifest.depends import needs
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.references import has_items
from everstep.runtime.workflow.manifest.schema import Problem, Where

Templates = Mapping[str, Mapping[str, Any]]
TemplateId = tuple[str, str]
"""(home, name) of a template; the home is a WorkflowTemplate, or empty for the workflow's own."""


def problems(spec: Mapping[str, Any], library: Library) -> Iterator[Problem]:
    """A problem for each call of the workflow's own templates that always comes back to its own template."""
    own = {str(template.get("name")): template for template in list_at(spec, "templates")}
    for index, template in enumerate(list_at(spec, "templates")):
        began = ("", str(template.get("name")))
        for where, called_place in _unconditional_calls("", template):
            way = _path_back(called_place, began, own, library)
            if way:
                names = " -> ".join("/".join(filter(None, place)) for place in [began, *way])
                message = f"{names}: calls itself forever; give one of them a when"
                yield Problem(("spec", "templates", index, *where), message)


def _path_back(start: TemplateId, end: TemplateId, own: Templates, library: Library) -> list[TemplateId]:
    """The templates from one to another, both included, along unconditional calls; empty when there is no path."""
    ways, queue = {start: [start]}, [start]
    for place in queue:
        if place == end:
            return ways[place]
        templates = own if not place[0] else _home_templates(place[0], library)
        for _, called_place in _unconditional_calls(place[0], templates.get(place[1]) or {}):
            if called_place not in ways:
                ways[called_place] = [*ways[place], called_place]
                queue.append(called_place)
    return []


def _home_templates(home: str, library: Library) -> Templates:
    cluster, _, name = home.rpartition("/")
    return library.templates({"name": name, "clusterScope": bool(cluster)})


def _unconditional_calls(home: str, template: Mapping[str, Any]) -> Iterator[tuple[Where, TemplateId]]:
    """(where, which template) of the calls that are made unless something fails first."""
    for number, group in enumerate(list_at(template, "steps")):
        for index, step in enumerate(group or []):
            if not _may_be_left_out(step):
                yield from _called_template(("steps", number, index), home, step)
    for index, task in enumerate(list_at(template, "dag", "tasks")):
        bare = not any(state for _, state in needs(str(task.get("depends") or "")))
        bare = bare and "!" not in str(task.get("depends") or "")
        if bare and not template["dag"].get("target") and not _may_be_left_out(task):
            yield from _called_template(("dag", "tasks", index), home, task)


def _may_be_left_out(task: Mapping[str, Any]) -> bool:
    return bool(task.get("when")) or has_items(task)


def _called_template(where: Where, home: str, task: Mapping[str, Any]) -> Iterator[tuple[Where, TemplateId]]:
    reference = task.get("templateRef")
    if reference:
        cluster = "cluster/" if reference.get("clusterScope") else ""
        yield where, (f"{cluster}{reference.get('name')}", str(reference.get("template")))
    elif task.get("template"):
        yield where, (home, str(task["template"]))

"""Lint of calls: arguments that the template does not have, items that lack what is read, hooks, artifacts."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.runtime.workflow.engine.loops import expand_loop
from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.expressions.json_text import read_json
from everstep.runtime.workflow.expressions.tags import tags
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.schema import Problem, nearest_hint
from everstep.runtime.workflow.manifest.template_walk import TaskAt, called_template, hooks, tasks, templates

RawFinding = tuple[str, bool, Problem]


def findings(spec: Mapping[str, Any], library: Library) -> Iterator[RawFinding]:
    """Of every task, step and hook."""
    for at in templates(spec):
        for task_at in tasks(at):
            template = called_template(task_at.task, spec, library)
            if template is not None:
                yield from _argument_findings(task_at, template)
            yield from _loop_findings(task_at)
            yield from _artifact_findings(task_at, spec, library)
            if task_at.task.get("inline") and task_at.task.get("template"):
                yield "inline", False, Problem((*task_at.where, "template"), "has no effect beside inline; keep one")
            if task_at.task.get("inline") and at.inline:
                message = "an inline template inside an inline template; name one of them"
                yield "inline", False, Problem((*task_at.where, "inline"), message)
    for _, hook, where in hooks(spec):
        template = called_template(hook, spec, library)
        template_names = {str(template.get("name")): None for template in list_at(spec, "templates")}
        if template is None:
            template_name = str(hook.get("template"))
            message = f"there is no template {template_name!r}{nearest_hint(template_name, template_names)}"
            yield "hook", True, Problem((*where, "template"), message)
            continue
        parameter_names = {parameter.get("name") for parameter in list_at(hook.get("arguments"), "parameters")}
        if where[1] == "hooks":
            parameter_names |= {parameter.get("name") for parameter in list_at(spec, "arguments", "parameters")}
        for parameter in list_at(template, "inputs", "parameters"):
            if (
                parameter.get("value", parameter.get("default")) is None
                and not parameter.get("valueFrom")
                and parameter.get("name") not in parameter_names
            ):
                yield "hook", True, Problem(where, f"inputs.parameters.{parameter.get('name')} was not supplied")
    for index, entry in enumerate(list_at(spec, "arguments", "parameters")):
        if isinstance(entry.get("value"), Mapping | list):
            here = ("spec", "arguments", "parameters", index, "value")
            yield (
                "argument",
                False,
                Problem(here, "a map or list arrives as an empty string; write it as JSON in quotes"),
            )


def _argument_findings(task_at: TaskAt, template: Mapping[str, Any]) -> Iterator[RawFinding]:
    for kind in ("parameters", "artifacts"):
        inputs_by_name = {str(input_.get("name")): input_ for input_ in list_at(template, "inputs", kind)}
        for index, entry in enumerate(list_at(task_at.task.get("arguments"), kind)):
            here, name = (*task_at.where, "arguments", kind, index), str(entry.get("name"))
            if name not in inputs_by_name:
                title = template.get("name") or "the template"
                message = f"{title} has no input {name!r}{nearest_hint(name, inputs_by_name)}"
                yield "argument", False, Problem((*here, "name"), message)
                continue
            value, enum = entry.get("value"), inputs_by_name[name].get("enum")
            if isinstance(value, Mapping | list):
                message = "a map or list arrives as an empty string; write it as JSON in quotes"
                yield "argument", False, Problem((*here, "value"), message)
            elif kind == "parameters" and enum and "{{" not in str(value) and str(value) not in map(str, enum):
                message = f"{value!r} is not in the input's enum: {', '.join(map(str, enum))}"
                yield "enum", False, Problem((*here, "value"), message)


def _loop_findings(task_at: TaskAt) -> Iterator[RawFinding]:
    task = task_at.task
    sequence = task.get("withSequence")
    if sequence and "{{" not in str(sequence):
        form = str(sequence.get("format") or "%d")
        if not any(verb in form for verb in "dxXobc"):
            here = (*task_at.where, "withSequence", "format")
            yield "items", False, Problem(here, f"{form!r} is not a format for a whole number; use one such as %03d")
    items_parameter = task.get("withParam")
    if items_parameter is not None and "{{" in str(items_parameter):
        return
    if not any(task.get(kind) is not None for kind in ("withItems", "withParam", "withSequence")) or "{{" in str(
        sequence
    ):
        return
    items = task.get("withItems") if items_parameter is None else _json_list(items_parameter)
    if items_parameter is None and any("{{" in json.dumps(item) for item in items or []):
        return
    own = {key: task.get(key) for key in ("name", "withItems", "withParam", "withSequence")}
    try:
        expand_loop(own, {})
        body = {key: value for key, value in task.items() if key in ("arguments", "when")}
        yield from _item_key_findings(task_at, items, body)
    except ExpressionError as error:
        yield "items", True, Problem(task_at.where, str(error).splitlines()[0])


def _item_key_findings(task_at: TaskAt, items: Any, body: Mapping[str, Any]) -> Iterator[RawFinding]:
    """Every item has the keys that are read; a map is read as a whole only by mistake."""
    read = {tag.strip() for tag in tags(body) if not tag.startswith("=")}
    for item in items or []:
        if not isinstance(item, Mapping):
            continue
        if missing := sorted(name for name in read if name.startswith("item.") and name[5:] not in item):
            yield "items", True, Problem(task_at.where, f"{json.dumps(item)} has no {missing[0][5:]}")
            return
        if "item" in read and not any(name.startswith("item.") for name in read):
            yield (
                "items",
                False,
                Problem(task_at.where, "{{item}} is the whole map as JSON; {{item.KEY}} one of its values"),
            )
            return


def _json_list(text: Any) -> Any:
    try:
        return read_json(str(text))
    except ExpressionError:
        return None


def _artifact_findings(task_at: TaskAt, spec: Mapping[str, Any], library: Library) -> Iterator[RawFinding]:
    task_by_name = {str(sibling.task.get("name")): sibling.task for sibling in tasks(task_at.holder)}
    for index, entry in enumerate(list_at(task_at.task.get("arguments"), "artifacts")):
        here, text = (*task_at.where, "arguments", "artifacts", index, "from"), str(entry.get("from") or "")
        if text and "{{" not in text:
            yield "artifact", False, Problem(here, f"a tag has braces: {{{{{text}}}}}")
        elif ".outputs.parameters." in text or ".outputs.result" in text:
            yield "artifact", True, Problem(here, f"{text} is a parameter, not an artifact")
    for index, entry in enumerate(list_at(task_at.task.get("arguments"), "parameters")):
        for tag in tags(str(entry.get("value") or "")):
            parts = tag.strip().split(".")
            if parts[2:4] == ["outputs", "artifacts"] and parts[1] in task_by_name:
                here = (*task_at.where, "arguments", "parameters", index, "value")
                yield (
                    "artifact",
                    False,
                    Problem(here, f"{{{{{tag.strip()}}}}} is an artifact, so this text is not replaced"),
                )

"""What the tags of a manifest may refer to, before anything runs: names of the workflow, items, outputs of tasks, and
what is unknown."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everstep.runtime.workflow.expressions.tags import for_each_text, tags
from everstep.runtime.workflow.expressions.values import parameter_text
from everstep.runtime.workflow.manifest.fields import kind_of, label_of_reference, list_at

PREFIXES = ("item.", "steps.", "inputs.", "outputs.", "pod.", "workflow.", "tasks.")
"""Prefixes of tags that must be known; any other tag is text."""
_ANY_ITEM = "item.*"
GLOBALS = (
    "name", "namespace", "mainEntrypoint", "serviceAccountName", "uid", "creationTimestamp", "scheduledTime",
    "duration", "status", "failures", "priority", "parameters", "parameters.json", "labels", "labels.json",
    "annotations", "annotations.json",
)  # fmt: skip
"""Names that every workflow has, after `workflow.`."""


def global_scope(
    workflow: Mapping[str, Any], spec: Mapping[str, Any], placeholder: Callable[[], str]
) -> dict[str, str]:
    """The `workflow` names: their values, or a new placeholder where only a run can know it.

    `spec`: that of the workflow, merged with its workflowTemplateRef's.
    """
    scope = {f"workflow.{name}": placeholder() for name in GLOBALS}
    metadata = workflow.get("metadata") or {}
    more = spec.get("workflowMetadata") or {}
    for kind in ("labels", "annotations"):
        own = label_of_reference(workflow.get("spec")) if kind == "labels" else {}
        names = {**own, **(metadata.get(kind) or {}), **(more.get(kind) or {})}
        scope |= {f"workflow.{kind}.{name}": str(value) for name, value in names.items()}
    for name in more.get("labelsFrom") or {}:
        scope[f"workflow.labels.{name}"] = placeholder()
    for entry in list_at(spec, "arguments", "parameters"):
        value = entry.get("value")
        scope[f"workflow.parameters.{entry.get('name')}"] = placeholder() if value is None else parameter_text(value)
    return scope


def unknown_tags(value: Any, scope: Mapping[str, Any]) -> Iterator[str]:
    """Names of simple tags with a known prefix that are not in the scope."""
    for tag in tags(value):
        name = tag.strip()
        if tag.startswith("=") or not name.startswith(PREFIXES) or name in scope:
            continue
        if name.startswith(("outputs.", "workflow.creationTimestamp.")) or name in ("steps.name", "tasks.name"):
            continue
        if name.startswith("item.") and _ANY_ITEM in scope:
            continue
        yield name


def unclosed_tags(value: Any) -> Iterator[str]:
    """The beginnings of unclosed tags with a known prefix."""
    texts: list[str] = []
    for_each_text(value, texts.append)
    for text in texts:
        rest = text.rpartition("{{")[2] if "{{" in text else ""
        if rest and "}}" not in rest and rest.strip().startswith(PREFIXES):
            yield rest[:40]


def has_items(entry: Mapping[str, Any]) -> bool:
    """Whether a task or step loops over items."""
    return bool(entry.get("withItems") or entry.get("withParam") or entry.get("withSequence"))


def item_scope(entry: Mapping[str, Any]) -> dict[str, str]:
    """The `item` names that a task or step may read. The API server drops nulls."""
    scope: dict[str, str] = {}
    for item in entry.get("withItems") or []:
        if isinstance(item, Mapping):
            scope |= {f"item.{key}": "" for key in item if item[key] is not None}
        else:
            scope["item"] = ""
        if isinstance(item, list):
            scope |= {f"item[{place}]": "" for place in range(len(item))}
    if entry.get("withParam"):
        scope |= {"item": "", _ANY_ITEM: ""}
    return scope | ({"item": ""} if entry.get("withSequence") else {})


def output_scope(prefix: str, template: Mapping[str, Any] | None, in_loop: bool) -> dict[str, str]:
    """The output names of a task or step that others may read."""
    if template is None:
        return {f"{prefix}.outputs.result": ""}
    scope: dict[str, str] = {}
    if kind_of(template) in ("container", "script", "containerSet", "http"):
        scope |= {f"{prefix}.outputs.result": "", f"{prefix}.exitCode": ""}
    if kind_of(template) == "data":
        scope[f"{prefix}.outputs.result"] = ""
    if template.get("daemon"):
        scope[f"{prefix}.ip"] = ""
    if in_loop:
        scope[f"{prefix}.outputs.parameters"] = ""
    for what in ("parameters", "artifacts"):
        scope |= {f"{prefix}.outputs.{what}.{entry.get('name')}": "" for entry in list_at(template, "outputs", what)}
    return scope


def status_scope(prefix: str) -> dict[str, str]:
    """The names that can be read of every task or step that has run."""
    return {f"{prefix}.{name}": "" for name in ("status", "id", "startedAt", "finishedAt", "hostNodeName", "ip")}

"""An Argo Workflow manifest as data: checked field by field (`schema`), as a whole (`validate`), and as pods.

What this executor does not do is refused by name: `schema` marks it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.workflow import fields, pod_rules, schema, validate
from runtime.workflow.depends import depends_of
from runtime.workflow.expressions.values import parameter_text
from runtime.workflow.fields import listed
from runtime.workflow.library import Library
from runtime.workflow.reading import ReadError, read_text
from runtime.workflow.schema import Problem

GROUP, KIND = "argoproj.io/", "Workflow"
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


class ManifestError(ValueError):
    """The manifest cannot be run: one line with the path and the mend. `problems` has all that was found."""

    def __init__(self, message: str, problems: tuple[Problem, ...] = ()) -> None:
        super().__init__(message)
        self.problems = problems


@dataclass(frozen=True)
class Task:
    """One task of a DAG template."""

    name: str
    template: str
    parameters: Mapping[str, str]
    depends: str
    """Empty: it runs at once."""
    when: str


@dataclass(frozen=True)
class Template:
    """A DAG, or a container. `raw` is as it stands in the manifest."""

    name: str
    raw: Mapping[str, Any]
    tasks: tuple[Task, ...] = ()
    inputs: Mapping[str, str | None] = field(default_factory=dict)
    """Input parameters and their defaults."""

    @property
    def is_dag(self) -> bool:
        """A DAG of tasks, not a pod."""
        return "dag" in self.raw

    @property
    def retry(self) -> Mapping[str, Any] | None:
        """Its retryStrategy."""
        return self.raw.get("retryStrategy")


@dataclass(frozen=True)
class Manifest:
    """A whole workflow."""

    raw: Mapping[str, Any]
    name: str
    """metadata.name; empty when a name is to be generated."""
    generate_name: str
    entrypoint: str
    on_exit: str
    parameters: Mapping[str, str]
    templates: Mapping[str, Template]


def parse(source: Mapping[str, Any] | str) -> Manifest:
    """The manifest. Raises ManifestError: unreadable, inconsistent, or beyond this executor."""
    if isinstance(source, str):
        try:
            documents = read_text(source)
        except ReadError as error:
            raise ManifestError(str(error)) from None
        if len(documents) != 1:
            raise ManifestError(f"has {len(documents)} documents; only one Workflow can be run")
        source = documents[0].value
    found = tuple(problems(source))
    if found:
        raise ManifestError(f"{schema.dotted(found[0].where)}: {found[0].message}", found)
    assert isinstance(source, Mapping)
    metadata, spec = source.get("metadata") or {}, source.get("spec") or {}
    return Manifest(
        source, str(metadata.get("name") or ""), str(metadata.get("generateName") or ""), str(spec["entrypoint"]),
        str(spec.get("onExit") or ""), _values(spec.get("arguments")),
        {one["name"]: _template(one) for one in listed(spec, "templates")},
    )  # fmt: skip


def problems(source: Any) -> Iterator[Problem]:
    """All that stands against running it, the order being: kind, fields and types, references, pods."""
    if not isinstance(source, Mapping):
        yield Problem((), "the manifest is no mapping")
        return
    version, kind = str(source.get("apiVersion") or ""), source.get("kind")
    if not version.startswith(GROUP) or kind != KIND:
        yield Problem(("kind",), f"{version} {kind}: only {GROUP}v1alpha1 {KIND} can be run")
        return
    found = list(schema.problems(source))
    beyond = [one for one in found if one.message == schema.BEYOND]
    mistakes = [one for one in found if one.message != schema.BEYOND] or list(validate.problems(source, Library()))
    yield from [*mistakes, *beyond]
    if not mistakes:
        spec = source.get("spec") or {}
        for index, template in enumerate(listed(spec, "templates")):
            where = ("spec", "templates", index)
            yield from pod_rules.problems(template, spec, where)
            if template.get("container") and not template["container"].get("command"):
                yield Problem((*where, "container", "command"), "is required, as no image is asked for it here")
            yield from _beyond(template, where)


def _beyond(template: Mapping[str, Any], where: schema.Where) -> Iterator[Problem]:
    """What has no field of its own but is not done here."""
    kind = fields.kind_of(template)
    if kind == "dag" and template.get("retryStrategy"):
        yield Problem((*where, "retryStrategy"), f"of a dag: {schema.BEYOND}")
    if kind == "dag" and (template.get("outputs") or {}).get("parameters"):
        yield Problem((*where, "outputs"), f"of a dag: {schema.BEYOND}")
    for index, entry in enumerate(listed(template, "outputs", "artifacts")):
        for place in ("s3", "raw", "http"):
            if entry.get(place):
                yield Problem((*where, "outputs", "artifacts", index, place), schema.BEYOND)


def _values(arguments: Any) -> dict[str, str]:
    return {str(entry["name"]): parameter_text(entry.get("value")) for entry in listed(arguments, "parameters")}


def _template(raw: Mapping[str, Any]) -> Template:
    inputs = {}
    for entry in listed(raw, "inputs", "parameters"):
        value = entry.get("value", entry.get("default"))
        inputs[str(entry["name"])] = None if value is None else parameter_text(value)
    tasks = {str(task["name"]): task for task in listed(raw, "dag", "tasks")}
    return Template(
        raw["name"], raw,
        tuple(Task(name, task["template"], _values(task.get("arguments")), depends_of(task, tasks),
                   str(task.get("when") or "")) for name, task in tasks.items()),
        inputs,
    )  # fmt: skip

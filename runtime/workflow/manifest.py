"""An Argo Workflow manifest as data: checked field by field (`schema`), as a whole (`validate`), and as pods.

What this executor does not do is refused by name: `schema` marks it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runtime.workflow import fields, pod_rules, schema, validate
from runtime.workflow.expressions import ExpressionError
from runtime.workflow.fields import listed
from runtime.workflow.library import Library, NotThereError
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
class Manifest:
    """A whole workflow."""

    raw: Mapping[str, Any]
    """As it was given."""
    spec: Mapping[str, Any]
    """With what it refers to merged in."""
    library: Library
    templates: Mapping[str, Mapping[str, Any]]

    @property
    def name(self) -> str:
        """metadata.name; empty when a name is to be generated."""
        return str((self.raw.get("metadata") or {}).get("name") or "")

    @property
    def generate_name(self) -> str:
        """metadata.generateName."""
        return str((self.raw.get("metadata") or {}).get("generateName") or "")

    @property
    def entrypoint(self) -> str:
        """Name of the template that begins."""
        return str(self.spec.get("entrypoint") or "")

    def template(self, task: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a task, step or hook calls. Raises ExpressionError in Argo's words."""
        if task.get("templateRef"):
            reference = task["templateRef"]
            try:
                return self.library.template(reference)
            except NotThereError:
                name = f"{reference.get('name')}.{reference.get('template')}"
                raise ExpressionError(f"template reference {name} not found") from None
        if task.get("inline"):
            return task["inline"]
        found = self.templates.get(str(task.get("template")))
        if found is None:
            raise ExpressionError(f"template {task.get('template')} not found")
        return found

    def title(self, task: Mapping[str, Any]) -> str:
        """The name of the template that a task calls; empty where it has none."""
        return str(task.get("template") or "")


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
    spec = source.get("spec") or {}
    return Manifest(source, spec, Library(), {str(one["name"]): one for one in listed(spec, "templates")})


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
        if spec.get("parallelism") == 0:
            yield Problem(("spec", "parallelism"), "0 lets nothing begin: on Argo this would wait for ever")
        for index, template in enumerate(listed(spec, "templates")):
            where = ("spec", "templates", index)
            yield from pod_rules.problems(template, spec, where)
            kind = fields.kind_of(template)
            if kind in ("container", "script") and not template[kind].get("command"):
                yield Problem((*where, kind, "command"), "is required, as no image is asked for it here")
            yield from _beyond(template, where)


def _beyond(template: Mapping[str, Any], where: schema.Where) -> Iterator[Problem]:
    """What has no field of its own but is not done here."""
    for index, entry in enumerate(listed(template, "outputs", "artifacts")):
        for place in ("s3", "raw", "http"):
            if entry.get(place):
                yield Problem((*where, "outputs", "artifacts", index, place), schema.BEYOND)

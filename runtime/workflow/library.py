"""What a workflow may refer to besides itself: WorkflowTemplates, ConfigMaps, Secrets from the same or other files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

WORKFLOW_TEMPLATES = ("WorkflowTemplate", "ClusterWorkflowTemplate")
TYPE_LABEL = "workflows.argoproj.io/configmap-type"
KINDS = ("Workflow", *WORKFLOW_TEMPLATES, "ConfigMap", "Secret")


class NotThereError(LookupError):
    """Something that is referred to is in none of the files."""


@dataclass(frozen=True)
class Library:
    """Objects by (kind, name)."""

    objects: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, objects: Iterable[Mapping[str, Any]]) -> "Library":
        """Of the objects of some files; the later of two of one name counts."""
        return cls({(str(one.get("kind")), str((one.get("metadata") or {}).get("name"))): one for one in objects})

    def workflow_template(self, reference: Mapping[str, Any]) -> Mapping[str, Any]:
        """The spec of a WorkflowTemplate. Raises NotThereError."""
        kind = WORKFLOW_TEMPLATES[bool(reference.get("clusterScope"))]
        found = self.objects.get((kind, str(reference.get("name"))))
        if found is None:
            raise NotThereError(f"there is no {kind} {reference.get('name')!r} in these files")
        return found.get("spec") or {}

    def template(self, reference: Mapping[str, Any]) -> Mapping[str, Any]:
        """A template of a WorkflowTemplate. Raises NotThereError."""
        spec = self.workflow_template(reference)
        for template in spec.get("templates") or []:
            if template.get("name") == reference.get("template"):
                return template
        raise NotThereError(f"{reference.get('name')!r} has no template {reference.get('template')!r}")

    def parameter(self, name: str, key: str) -> str:
        """A value for a parameter from a ConfigMap that is labelled as one. Raises NotThereError."""
        found = self.objects.get(("ConfigMap", name)) or {}
        labels = (found.get("metadata") or {}).get("labels") or {}
        if labels.get(TYPE_LABEL) != "Parameter":
            raise NotThereError(
                f"ConfigMap '{name}' does not exist. Please make sure it has the label {TYPE_LABEL}: Parameter to be "
                "detectable by the controller"
            )
        if key not in (found.get("data") or {}):
            raise NotThereError(f"ConfigMap '{name}' does not have the key '{key}'")
        return str(found["data"][key])

    def merged(self, spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The spec with that of its workflowTemplateRef below it; None when that is not there."""
        reference = spec.get("workflowTemplateRef")
        if not reference:
            return spec
        try:
            below = self.workflow_template(reference)
        except NotThereError:
            return None
        return {**below, **spec, "arguments": _arguments(below.get("arguments") or {}, spec.get("arguments") or {})}


def _arguments(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Those of both, by name; the upper ones count."""
    merged: dict[str, list[Any]] = {}
    for kind in ("parameters", "artifacts"):
        named = {entry.get("name"): entry for entry in [*(below.get(kind) or []), *(above.get(kind) or [])]}
        if named:
            merged[kind] = list(named.values())
    return merged

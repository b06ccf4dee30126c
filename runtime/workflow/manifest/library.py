"""What a workflow may refer to besides itself: WorkflowTemplates, ConfigMaps, Secrets from the same or other files."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from everstep.runtime.workflow.manifest.fields import KINDS as KINDS_OF_TEMPLATES
from everstep.runtime.workflow.manifest.fields import kind_of, mapping_at
from everstep.runtime.workflow.manifest.schema import Problem, Where, nearest_hint
from everstep.runtime.workflow.manifest.yaml_source import ReadError, read_text

WORKFLOW_TEMPLATES = ("WorkflowTemplate", "ClusterWorkflowTemplate")
TYPE_LABEL = "workflows.argoproj.io/configmap-type"
REPOSITORIES = "artifact-repositories"
DEFAULT_REPOSITORY = "workflows.argoproj.io/default-artifact-repository"
BY_NAME = ("volumes", "imagePullSecrets")
"""Lists of a spec that a workflow and its workflowTemplateRef have together."""
ONE_BY_ONE = ("hooks", "labelsFrom")
KINDS = ("Workflow", *WORKFLOW_TEMPLATES, "ConfigMap", "Secret")


class MissingObjectError(LookupError):
    """An object that is referred to is in none of the files, or lacks what is asked of it."""

    def problem(self, where: Where) -> Problem:
        """The problem of what refers to it at that place."""
        return Problem(where, str(self))


class AbsentObjectError(MissingObjectError):
    """The object is in none of the files; a cluster may have it."""

    def problem(self, where: Where) -> Problem:
        """The problem of what refers to it, for a run here."""
        return Problem(where, f"{self}; provide it: --with FILE", only="here")


@dataclass(frozen=True)
class Library:
    """Objects by (kind, name), and the commands of images on this machine."""

    objects: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    images: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The command of an image's entry point, by the image's name."""

    def entry_point(self, image: str) -> list[str]:
        """The command of an image, for containers that name none; empty when it was not given."""
        bare = image.rpartition("/")[0] + "/" * ("/" in image) + image.rpartition("/")[2].partition(":")[0]
        return list(self.images.get(image) or self.images.get(bare) or [])

    @classmethod
    def from_objects(
        cls, objects: Iterable[Mapping[str, Any]], images: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> "Library":
        """A library of these objects; of two with one name, the later counts."""
        objects_by_name = {
            (str(object_.get("kind")), str(mapping_at(object_, "metadata").get("name"))): object_ for object_ in objects
        }
        return cls(objects_by_name, images)

    def workflow_template(self, reference: Mapping[str, Any]) -> Mapping[str, Any]:
        """The spec of a WorkflowTemplate. Raises MissingObjectError."""
        kind = WORKFLOW_TEMPLATES[bool(reference.get("clusterScope"))]
        definition = self.objects.get((kind, str(reference.get("name"))))
        if definition is None:
            raise AbsentObjectError(f"there is no {kind} {reference.get('name')!r} in these files")
        return definition.get("spec") or {}

    def templates(self, reference: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """The templates of a templateRef's WorkflowTemplate, by name; none when it is missing."""
        try:
            spec = self.workflow_template(reference)
        except MissingObjectError:
            return {}
        return {str(template.get("name")): template for template in spec.get("templates") or []}

    def template(self, reference: Mapping[str, Any]) -> Mapping[str, Any]:
        """A template of a WorkflowTemplate. Raises MissingObjectError."""
        spec = self.workflow_template(reference)
        for template in spec.get("templates") or []:
            if template.get("name") == reference.get("template"):
                return template
        template_names = {str(template.get("name")): None for template in spec.get("templates") or []}
        template_name = str(reference.get("template"))
        raise MissingObjectError(
            f"{reference.get('name')!r} has no template {template_name!r}{nearest_hint(template_name, template_names)}"
        )

    def value(self, kind: str, reference: Mapping[str, Any]) -> str | None:
        """The value of a key of a ConfigMap or Secret; None when optional and missing. Raises MissingObjectError."""
        values = self.values(kind, reference)
        key = str(reference.get("key"))
        if key in values:
            return values[key]
        if reference.get("optional"):
            return None
        raise MissingObjectError(f"{kind} {reference.get('name')!r} has no key {key!r}{nearest_hint(key, values)}")

    def values(self, kind: str, reference: Mapping[str, Any]) -> dict[str, str]:
        """All values of a ConfigMap or Secret; none when optional and missing. Raises MissingObjectError."""
        definition = self.objects.get((kind, str(reference.get("name"))))
        if definition is None:
            if reference.get("optional"):
                return {}
            raise AbsentObjectError(f"there is no {kind} {reference.get('name')!r} in these files")
        if not isinstance(definition.get("data") or {}, Mapping) or not isinstance(
            definition.get("stringData") or {}, Mapping
        ):
            raise MissingObjectError(f"{kind} {reference.get('name')!r} has data that is not a map")
        values = {str(key): str(value) for key, value in (definition.get("data") or {}).items()}
        if kind == "Secret":
            values = {key: base64.b64decode(value).decode(errors="replace") for key, value in values.items()}
            values |= {str(key): str(value) for key, value in (definition.get("stringData") or {}).items()}
        return values

    def referred_templates(self, value: Any) -> dict[str, Mapping[str, Any]]:
        """The WorkflowTemplates to which a value refers, directly or through others, by kind and name."""
        templates: dict[str, Mapping[str, Any]] = {}
        open_ = [value]
        while open_:
            item = open_.pop()
            if isinstance(item, Mapping):
                for field in ("templateRef", "workflowTemplateRef"):
                    reference = item.get(field)
                    if isinstance(reference, Mapping):
                        kind = WORKFLOW_TEMPLATES[bool(reference.get("clusterScope"))]
                        place = f"{kind} {reference.get('name')}"
                        definition = self.objects.get((kind, str(reference.get("name"))))
                        if definition is not None and place not in templates:
                            templates[place] = definition
                            open_.append(definition)
                open_ += item.values()
            elif isinstance(item, list):
                open_ += item
        return templates

    def parameter(self, name: str, key: str) -> str:
        """A value for a parameter from a ConfigMap that is labelled as one. Raises MissingObjectError."""
        definition = self.objects.get(("ConfigMap", name)) or {}
        labels = mapping_at(definition, "metadata", "labels")
        if labels.get(TYPE_LABEL) != "Parameter":
            raise (MissingObjectError if definition else AbsentObjectError)(
                f"ConfigMap '{name}' does not exist. Please make sure it has the label {TYPE_LABEL}: Parameter to be "
                "detectable by the controller"
            )
        values = mapping_at(definition, "data")
        if key not in values:
            raise MissingObjectError(f"ConfigMap '{name}' does not have the key '{key}'")
        return str(values[key])

    def artifact_repository(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The s3 of a spec's artifactRepositoryRef; empty without one. Raises MissingObjectError in Argo's words."""
        if spec.get("artifactRepositoryRef") is None:
            return {}
        name = str(spec["artifactRepositoryRef"].get("configMap") or REPOSITORIES)
        definition = self.objects.get(("ConfigMap", name)) or {}
        annotations = mapping_at(definition, "metadata", "annotations")
        key = spec["artifactRepositoryRef"].get("key") or annotations.get(DEFAULT_REPOSITORY) or ""
        text = (definition.get("data") or {}).get(key)
        if text is None:
            raise (MissingObjectError if definition else AbsentObjectError)(
                "failed to resolve artifact repository: failed to find any artifact repository for artifact "
                f'repository ref "{name}#{key}"'
            )
        try:
            return dict(read_text(text)[0].value["s3"])
        except (ReadError, IndexError, TypeError, KeyError, ValueError):
            why = f"{name}#{key} has no s3, the one kind that is known here"
            raise MissingObjectError(f"failed to resolve artifact repository: {why}") from None

    def merged_spec(self, spec: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The spec merged over that of its workflowTemplateRef; None when that is missing.

        Maps are merged, lists of named entries by name; a hook or a label's expression is replaced as a whole.
        `suspend` is not inherited.
        """
        reference = spec.get("workflowTemplateRef")
        if not reference:
            return spec
        try:
            below = self.workflow_template(reference)
        except MissingObjectError:
            return None
        spec_merged = _merge_specs({key: value for key, value in below.items() if key != "suspend"}, spec, "")
        return {**spec_merged, "arguments": _merge_arguments(below.get("arguments") or {}, spec.get("arguments") or {})}


def with_defaults(template: Mapping[str, Any], defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """A template merged over spec.templateDefaults: maps are merged, lists of named entries by name.

    Fields that would make it a template of another kind are left out.
    """
    kind = kind_of(template)
    own_defaults = {key: value for key, value in defaults.items() if key not in KINDS_OF_TEMPLATES or key == kind}
    return _merge_named(own_defaults, template)


def _merge_named(below: Any, above: Any) -> Any:
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return {**below, **{key: _merge_named(below.get(key), value) for key, value in above.items()}}
    both = isinstance(below, list) and isinstance(above, list)
    if both and all(isinstance(entry, Mapping) and "name" in entry for entry in [*below, *above]):
        entries_above = {entry["name"]: entry for entry in above}
        return [
            *(_merge_named(entry, entries_above.pop(entry["name"], {})) for entry in below),
            *entries_above.values(),
        ]
    return below if above is None else above


def _merge_specs(below: Any, above: Any, field: str) -> Any:
    """The values of `above` merged over those of `below`."""
    if above is None:
        return below
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        if field in ONE_BY_ONE:
            return {**below, **above}
        return {**below, **{key: _merge_specs(below.get(key), value, key) for key, value in above.items()}}
    if field in BY_NAME and isinstance(below, list) and isinstance(above, list):
        entries_below = {entry.get("name"): entry for entry in below}
        own = [_merge_specs(entries_below.pop(entry.get("name"), None), entry, "") for entry in above]
        return [*own, *entries_below.values()]
    return above


def _merge_arguments(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The arguments of both; of two with one name, that of `above` counts."""
    merged_arguments: dict[str, list[Any]] = {}
    for kind in ("parameters", "artifacts"):
        own = above.get(kind) or []
        own_names = {entry.get("name") for entry in own}
        both = [*own, *(entry for entry in below.get(kind) or [] if entry.get("name") not in own_names)]
        if both:
            merged_arguments[kind] = both
    return merged_arguments


def missing_secrets(holder: Mapping[str, Any], library: Library, where: Where) -> Iterator[Problem]:
    """Secrets that a location names (`usernameSecret: {name, key}`) and that do not exist."""
    for key, value in holder.items():
        if not isinstance(value, Mapping) or "{{" in str(value):
            continue
        if key.endswith("Secret"):
            try:
                library.value("Secret", value)
            except MissingObjectError as error:
                yield error.problem((*where, key))
        else:
            yield from missing_secrets(value, library, (*where, key))

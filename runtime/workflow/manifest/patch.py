"""podSpecPatch: a pod's fields merged over what the template makes, as Kubernetes' strategic merge does it."""

from collections.abc import Mapping
from typing import Any

from everstep.runtime.workflow.expressions import ExpressionError
from everstep.runtime.workflow.manifest import schema
from everstep.runtime.workflow.manifest.yaml_source import ReadError, read_text

PATCH_ERROR = "Error applying PodSpecPatch"
BY_NAME = ("containers", "initContainers", "env", "volumes", "volumeMounts", "ports")
"""Lists that are merged by their items' names; volumeMounts by path."""


def apply_patch(template: Mapping[str, Any], patch: str) -> dict[str, Any]:
    """The template with the patch over its containers and volumes. Raises ExpressionError."""
    try:
        documents = [document.value for document in read_text(patch)]
    except ReadError:
        raise ExpressionError(PATCH_ERROR) from None
    pod = documents[0] if documents else {}
    if not isinstance(pod, Mapping):
        raise ExpressionError(PATCH_ERROR)
    kind = "script" if template.get("script") else "container"
    main = template.get(kind) or {}
    own = {
        "containers": [{**main, "name": "main"}, *(template.get("sidecars") or [])],
        "initContainers": template.get("initContainers") or [],
        "volumes": template.get("volumes") or [],
    }
    changed_fields = {}
    for field, kind_of_field in (("containers", "[Script]"), ("initContainers", "[Container]"), ("volumes", "[any]")):
        containers = pod.get(field) or []
        unknown = "there is no such field"
        if not isinstance(containers, list) or any(
            not problem.message.startswith((unknown, schema.UNSUPPORTED))
            for problem in schema.type_problems(containers, kind_of_field)
        ):
            raise ExpressionError(PATCH_ERROR)
        changed_fields[field] = _merge_lists(own[field], containers, "name")
    first, *sidecars = changed_fields["containers"]
    result = {**template, kind: {key: value for key, value in first.items() if key != "name" or "name" in main}}
    for field, value in (
        ("sidecars", sidecars),
        ("initContainers", changed_fields["initContainers"]),
        ("volumes", changed_fields["volumes"]),
    ):
        if value:
            result[field] = value
    return result


def _merge(below: Any, above: Any, field: str) -> Any:
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return {**below, **{key: _merge(below.get(key), value, key) for key, value in above.items()}}
    if field in BY_NAME and isinstance(below, list) and isinstance(above, list):
        return _merge_lists(below, above, "mountPath" if field == "volumeMounts" else "name")
    return above


def _merge_lists(below: list[Any], above: list[Any], by: str) -> list[Any]:
    entries_above = {entry.get(by): entry for entry in above}
    both = [
        _merge(entry, entries_above.pop(entry.get(by)), "") if entry.get(by) in entries_above else entry
        for entry in below
    ]
    return [*both, *entries_above.values()]

"""What the files of a pod's volumes come from: ConfigMaps, Secrets, the pod itself; and which volumes are refused."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.runtime.workflow.manifest.environment import VOLUME_ONLY_FIELDS, is_known_field, resource_value
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import Library, MissingObjectError
from everstep.runtime.workflow.manifest.schema import UNSUPPORTED, Problem, Where

KINDS = (
    "emptyDir", "ephemeral", "configMap", "secret", "projected", "downwardAPI", "persistentVolumeClaim", "hostPath",
)  # fmt: skip


class VolumeSources(NamedTuple):
    """The sources of volume files."""

    library: Library
    facts: Mapping[str, str]
    """What fieldRef reads of the pod."""
    containers: Sequence[Mapping[str, Any]]
    """Of which resourceFieldRef reads."""


def is_secret(volume: Mapping[str, Any]) -> bool:
    """Whether the volume shows a Secret."""
    return any(part.get("secret") for part in [volume, *list_at(volume, "projected", "sources")])


def volume_files(volume: Mapping[str, Any], pod_sources: VolumeSources) -> Iterator[tuple[str, str]]:
    """Names and texts of what a ConfigMap, a Secret, the pod itself or a projection shows."""
    sources = list_at(volume, "projected", "sources") or [volume]
    for source in sources:
        for field, kind, key in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
            item_entries = source.get(field)
            if item_entries is None:
                continue
            name = item_entries.get(key) or item_entries.get("name")
            values = pod_sources.library.values(kind, {"name": name, "optional": item_entries.get("optional")})
            items = {str(item["key"]): str(item["path"]) for item in list_at(item_entries, "items")}
            for file_name, text in values.items():
                if not items or file_name in items:
                    yield items.get(file_name, file_name), text
        for item in list_at(source, "downwardAPI", "items"):
            yield str(item["path"]), _downward_value(item, pod_sources)


def _downward_value(item: Mapping[str, Any], sources: VolumeSources) -> str:
    """The text of a downwardAPI item."""
    if item.get("fieldRef"):
        return sources.facts.get(str(item["fieldRef"].get("fieldPath")), "")
    reference = item.get("resourceFieldRef") or {}
    containers = (
        container for container in sources.containers if container.get("name") == reference.get("containerName")
    )
    return resource_value(reference, next(containers, {}))


def _volume_items(volume: Mapping[str, Any]) -> Iterator[Any]:
    """The items of its ConfigMaps and Secrets."""
    for source in (volume, *list_at(volume, "projected", "sources")):
        for field in ("configMap", "secret"):
            yield from list_at(source, field, "items")


def _is_file(item: Any) -> bool:
    return isinstance(item, Mapping) and all(isinstance(item.get(name), str) for name in ("key", "path"))


def problems(volumes: Sequence[Mapping[str, Any]], library: Library, where: Where) -> Iterator[Problem]:
    """Volumes of an unsupported kind, missing ConfigMaps and Secrets."""
    for index, volume in enumerate(volumes):
        kinds = [kind for kind in volume if kind != "name" and volume[kind] is not None]
        for kind in kinds:
            if kind not in KINDS:
                yield Problem((*where, index, kind), UNSUPPORTED, only="here")
        for item in list_at(volume, "downwardAPI", "items"):
            path = str((item.get("fieldRef") or {}).get("fieldPath") or "metadata.name")
            if path not in VOLUME_ONLY_FIELDS and not is_known_field(path):
                message = f"{path} is not known on this machine"
                yield Problem((*where, index, "downwardAPI"), message, only="here")
        if any(not _is_file(item) for item in _volume_items(volume)):
            yield Problem((*where, index), "each of its items needs a key and a path, both strings")
            continue
        try:
            if "{{" not in str(volume):
                list(volume_files(volume, VolumeSources(library, {}, ())))
        except MissingObjectError as error:
            yield error.problem((*where, index))

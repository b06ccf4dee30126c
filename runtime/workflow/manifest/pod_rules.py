"""What Kubernetes would refuse in a pod: names, quantities, pull policies, mounts. After core/v1's validation."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from everstep.runtime.workflow.manifest.fields import LABEL_VALUE, list_at, mapping_at
from everstep.runtime.workflow.manifest.library import Library, MissingObjectError
from everstep.runtime.workflow.manifest.schema import Problem, Where

ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1), "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6, "G": Decimal(10) ** 9, "T": Decimal(10) ** 12, "P": Decimal(10) ** 15,
    "E": Decimal(10) ** 18, "Ki": Decimal(2) ** 10, "Mi": Decimal(2) ** 20, "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40, "Pi": Decimal(2) ** 50, "Ei": Decimal(2) ** 60,
}  # fmt: skip


def problems(template: Mapping[str, Any], spec: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    """Problems of the pod that a container or script template makes."""
    for kind in ("container", "script"):
        if template.get(kind):
            yield from _container_problems(template[kind], (*where, kind))
            yield from _mount_problems(template, spec, (*where, kind), template[kind], where)
            yield from _request_problems(template.get("podResources") or {}, (*where, "podResources"))
    names = ["main"]
    for kind in ("initContainers", "sidecars"):
        names = ["init"] if kind == "initContainers" else ["main"]
        for index, container in enumerate(list_at(template, kind)):
            yield from _container_problems(container, (*where, kind, index))
            if not container.get("name"):
                yield Problem((*where, kind, index), "needs a name")
            elif container["name"] in names:
                yield Problem((*where, kind, index, "name"), f"{container['name']!r} appears twice")
            names.append(str(container.get("name")))
    for key, value in mapping_at(template, "metadata", "labels").items():
        if not LABEL_VALUE.fullmatch(str(value)) and "{{" not in str(value):
            yield Problem((*where, "metadata", "labels", key), f"{value!r} is not a valid label value")
    places_taken: dict[str, str] = {}
    for index, entry in enumerate(list_at(template, "inputs", "artifacts")):
        here, path = (*where, "inputs", "artifacts", index), str(entry.get("path") or "")
        if path and path in places_taken:
            yield Problem((*here, "path"), f"{path} is already the path of {places_taken[path]}")
        places_taken[path] = str(entry.get("name"))
        places = [place for place in ("raw", "s3", "http", "git") if entry.get(place)]
        if len(places) > 1:
            yield Problem(here, f"has {' and '.join(places)}; keep one")


def volume_problems(spec: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    """Problems of the volumes of the whole workflow."""
    for index, volume in enumerate(list_at(spec, "volumes")):
        if not DNS_LABEL.fullmatch(str(volume.get("name") or "")):
            yield Problem(
                (*where, "volumes", index, "name"), f"{volume.get('name')!r} is not a valid name; use a-z, 0-9 and -"
            )
    for index, claim in enumerate(list_at(spec, "volumeClaimTemplates")):
        if not mapping_at(claim, "metadata").get("name"):
            yield Problem((*where, "volumeClaimTemplates", index, "metadata"), "needs a name")


def _container_problems(container: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    for index, variable in enumerate(list_at(container, "env")):
        if not ENV_NAME.fullmatch(str(variable.get("name") or "")):
            here = (*where, "env", index, "name")
            yield Problem(
                here, f"{variable.get('name')!r} is not a valid variable name; use letters, digits, _, - and ."
            )
    policy = container.get("imagePullPolicy")
    if policy and policy not in PULL_POLICIES:
        yield Problem((*where, "imagePullPolicy"), f"{policy} is not one of {', '.join(PULL_POLICIES)}")
    yield from _request_problems(container.get("resources") or {}, (*where, "resources"))


def _request_problems(resources: Mapping[str, Any], where: Where) -> Iterator[Problem]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    for name, amount in requests.items():
        if name in limits and quantity(amount) > quantity(limits[name]):
            yield Problem((*where, "requests", name), f"{amount} is above its limit of {limits[name]}")


def quantity(text: Any) -> Decimal:
    """The number of a quantity (`500m`, `2`, `1Gi`, `1e3`); 0 for a text that is not one."""
    match = re.fullmatch(r"([+-]?[\d.]+)(?:([a-zA-Z]{1,2})|[eE]([+-]?\d+))?", str(text))
    if match is None:
        return Decimal(0)
    return Decimal(match[1]) * (Decimal(10) ** int(match[3]) if match[3] else _SUFFIXES.get(match[2] or "", Decimal(1)))


def _mount_problems(template: Mapping[str, Any], spec: Mapping[str, Any], where: Where, container: Mapping[str, Any],
             of: Where) -> Iterator[Problem]:  # fmt: skip
    claims = {str(mapping_at(claim, "metadata").get("name")) for claim in list_at(spec, "volumeClaimTemplates")}
    volume_names = {
        str(volume.get("name")) for volume in [*list_at(spec, "volumes"), *list_at(template, "volumes")]
    } | claims
    for index, mount in enumerate(list_at(container, "volumeMounts")):
        if str(mount.get("name")) not in volume_names:
            yield Problem((*where, "volumeMounts", index, "name"), f"there is no volume {mount.get('name')!r}")
    for index, volume in enumerate(list_at(template, "volumes")):
        if not DNS_LABEL.fullmatch(str(volume.get("name") or "")):
            yield Problem(
                (*of, "volumes", index, "name"), f"{volume.get('name')!r} is not a valid name; use a-z, 0-9 and -"
            )


def http_problems(http: Mapping[str, Any], library: Library, where: Where) -> Iterator[Problem]:
    """Problems of an http template: no URL, missing Secrets."""
    if not http.get("url"):
        yield Problem((*where, "url"), "is required")
    for index, entry in enumerate(list_at(http, "headers")):
        reference = (entry.get("valueFrom") or {}).get("secretKeyRef")
        if reference and "{{" not in str(entry):
            try:
                library.value("Secret", reference)
            except MissingObjectError as error:
                yield error.problem((*where, "headers", index, "valueFrom"))

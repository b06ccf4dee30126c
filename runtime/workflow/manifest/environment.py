"""A container's variables and command, as Kubernetes makes them: env, envFrom, `$(NAME)` in texts."""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import Library, MissingObjectError
from everstep.runtime.workflow.manifest.pod_rules import quantity
from everstep.runtime.workflow.manifest.schema import Problem, Where

_REFERENCE = re.compile(r"\$(\$|\(([-._a-zA-Z][-._a-zA-Z0-9]*)\))")
VOLUME_ONLY_FIELDS = ("metadata.labels", "metadata.annotations")
"""Fields that a volume can show but a variable cannot."""
_LABEL = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ContainerCommand(NamedTuple):
    """A container's command and variables."""

    command: list[str]
    environment: dict[str, str]


def container_command(container: Mapping[str, Any], library: Library, facts: Mapping[str, str]) -> ContainerCommand:
    """The command and variables of a container; `facts`: what fieldRef reads. Raises MissingObjectError."""
    variables: dict[str, str] = {}
    for source in list_at(container, "envFrom"):
        prefix = str(source.get("prefix") or "")
        for kind, field in (("ConfigMap", "configMapRef"), ("Secret", "secretRef")):
            if source.get(field):
                values = library.values(kind, source[field])
                variables |= {f"{prefix}{key}": value for key, value in values.items()}
    for variable in list_at(container, "env"):
        value = _variable_value(variable, container, library, facts)
        if value is not None:
            variables[str(variable["name"])] = expand_references(value, variables)
    command = list_at(container, "command") or library.entry_point(str(container.get("image") or ""))
    words = [*command, *list_at(container, "args")]
    return ContainerCommand([expand_references(str(word), variables) for word in words], variables)


def _variable_value(
    variable: Mapping[str, Any], container: Mapping[str, Any], library: Library, facts: Mapping[str, str]
) -> str | None:
    source = variable.get("valueFrom") or {}
    if source.get("configMapKeyRef"):
        return library.value("ConfigMap", source["configMapKeyRef"])
    if source.get("secretKeyRef"):
        return library.value("Secret", source["secretKeyRef"])
    if source.get("fieldRef"):
        return facts.get(str(source["fieldRef"].get("fieldPath")), "")
    if source.get("resourceFieldRef"):
        return resource_value(source["resourceFieldRef"], container)
    return str(variable.get("value") or "")


def expand_references(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` replaced where the name is known; `$$` is a dollar."""
    return _REFERENCE.sub(lambda m: "$" if m[1] == "$" else variables.get(m[2], m[0]), text)


def pod_facts(
    name: str, namespace: str, account: str, uid: str, labels: Mapping[str, Any], annotations: Mapping[str, Any]
) -> dict[str, str]:
    """What fieldRef can read of a pod on this machine."""
    facts = {
        "metadata.name": name, "metadata.namespace": namespace, "metadata.uid": uid, "spec.nodeName": "localhost",
        "spec.serviceAccountName": account, "status.podIP": "127.0.0.1", "status.hostIP": "127.0.0.1",
    }  # fmt: skip
    for kind, values in (("labels", labels), ("annotations", annotations)):
        facts |= {f"metadata.{kind}['{key}']": str(value) for key, value in values.items()}
        # Only a volume can show all of them.
        facts[f"metadata.{kind}"] = "\n".join(f"{key}={json.dumps(str(values[key]))}" for key in sorted(values))
    return facts


def is_known_field(path: str) -> bool:
    """Whether a variable can read that field."""
    return _LABEL.fullmatch(path) is not None or (
        path in pod_facts("", "", "", "", {}, {}) and path not in VOLUME_ONLY_FIELDS
    )


def resource_value(reference: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    """What a resourceFieldRef reads of a container, in units of the divisor, rounded up.

    A missing request is the limit; a missing limit is the machine's capacity.
    """
    kind, _, name = str(reference.get("resource")).partition(".")
    resources = container.get("resources") or {}
    amount = (resources.get(kind) or {}).get(name)
    if amount is None and kind == "requests":
        amount = (resources.get("limits") or {}).get(name)
    if amount is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        amount = 0 if kind == "requests" else {"cpu": os.cpu_count() or 1, "memory": memory}.get(name, 0)
    divisor = quantity(reference.get("divisor") or 1) or 1
    return str(math.ceil(quantity(amount) / divisor))


def problems(container: Mapping[str, Any], library: Library, where: Where) -> Iterator[Problem]:
    """Missing ConfigMaps and Secrets: on a cluster the pod would wait for them for ever."""
    for index, variable in enumerate(list_at(container, "env")):
        source = variable.get("valueFrom") or {}
        for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            reference = source.get(field)
            if reference and "{{" not in str(reference):
                try:
                    library.value(kind, reference)
                except MissingObjectError as error:
                    yield error.problem((*where, "env", index, "valueFrom", field))
        path = str((source.get("fieldRef") or {}).get("fieldPath") or "metadata.name")
        if not is_known_field(path):
            message = f"{path} is not known on this machine"
            yield Problem((*where, "env", index, "valueFrom", "fieldRef"), message, only="here")
    for index, source in enumerate(list_at(container, "envFrom")):
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if source.get(field) and "{{" not in str(source[field]):
                try:
                    library.values(kind, source[field])
                except MissingObjectError as error:
                    yield error.problem((*where, "envFrom", index, field))

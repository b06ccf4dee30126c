"""Pods of several containers: init containers, sidecars, containerSets; what the report of `podrun` means."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from everstep.runtime.workflow.manifest.fields import list_at

KILLED_CODES = (137, 143)
"""Exit codes of a sidecar that was signalled after main ended: SIGKILL and SIGTERM are no failure."""


class ContainerExit(NamedTuple):
    """How one container ended."""

    name: str
    code: int
    blamed: str = ""
    """The container whose failure kept this one from running; empty when it ran."""


def has_several_containers(template: Mapping[str, Any]) -> bool:
    """Whether the pod has more than one container."""
    return any(template.get(kind) for kind in ("initContainers", "sidecars", "containerSet"))


def pod_containers(template: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The pod's containers by kind: `init`, `main` (with their dependencies) and `sidecars`."""
    if template.get("containerSet"):
        mounts = list_at(template, "containerSet", "volumeMounts")
        every = list_at(template, "containerSet", "containers")
        main = [{**one, "volumeMounts": [*list_at(one, "volumeMounts"), *mounts]} for one in every]
    else:
        main = [{**(template.get("container") or template.get("script") or {}), "name": "main"}]
    own = [mount for one in main for mount in list_at(one, "volumeMounts")]
    containers = {"main": main}
    for kind, field in (("init", "initContainers"), ("sidecars", "sidecars")):
        containers[kind] = [
            {**one, "volumeMounts": [*list_at(one, "volumeMounts"), *(own if one.get("mirrorVolumeMounts") else [])]}
            for one in list_at(template, field)
        ]
    return containers


def readiness_probe(template: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The readiness probe of a daemon, its port resolved; None where the daemon is ready at once."""
    container = template.get("container") or template.get("script") or {}
    probe = container.get("readinessProbe") or {}
    place = probe.get("httpGet") or probe.get("tcpSocket")
    if not template.get("daemon") or not place:
        return None
    ports_by_name = {str(one.get("name")): one.get("containerPort") for one in list_at(container, "ports")}
    port = str(ports_by_name.get(str(place.get("port")), place.get("port")))
    kind = "httpGet" if probe.get("httpGet") else "tcpSocket"
    # A name that no port has: nothing listens there, and the daemon is never ready.
    return {**probe, kind: {**place, "port": int(port) if port.isdecimal() else 0}}


def verdict(template: Mapping[str, Any], container_exits: list[ContainerExit]) -> tuple[str, str]:
    """(phase, message) of the pod by its containers. The phase is empty when no container failed."""
    init = {str(one.get("name")) for one in list_at(template, "initContainers")}
    for one in container_exits:
        if one.name in init and one.code:
            return "Failed", f"{one.name}: Error (exit code {one.code})"
    main = [one for one in container_exits if one.name not in init]
    if template.get("containerSet"):
        bad = [one for one in main if one.code and not one.blamed]
    else:
        sidecars = {str(one.get("name")) for one in list_at(template, "sidecars")}
        bad = [one for one in main if one.code and (one.name not in sidecars or one.code not in KILLED_CODES)]
        bad.sort(key=lambda one: one.name != "main")
    return ("Failed", f"{bad[0].name}: Error (exit code {bad[0].code})") if bad else ("", "")

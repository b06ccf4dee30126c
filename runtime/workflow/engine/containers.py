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
        main = [{**container, "volumeMounts": [*list_at(container, "volumeMounts"), *mounts]} for container in every]
    else:
        main = [{**(template.get("container") or template.get("script") or {}), "name": "main"}]
    own = [mount for container in main for mount in list_at(container, "volumeMounts")]
    containers = {"main": main}
    for kind, field in (("init", "initContainers"), ("sidecars", "sidecars")):
        containers[kind] = [
            {
                **container,
                "volumeMounts": [
                    *list_at(container, "volumeMounts"),
                    *(own if container.get("mirrorVolumeMounts") else []),
                ],
            }
            for container in list_at(template, field)
        ]
    return containers


def readiness_probe(template: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The readiness probe of a daemon, its port resolved; None where the daemon is ready at once."""
    container = template.get("container") or template.get("script") or {}
    probe = container.get("readinessProbe") or {}
    place = probe.get("httpGet") or probe.get("tcpSocket")
    if not template.get("daemon") or not place:
        return None
    ports_by_name = {str(port.get("name")): port.get("containerPort") for port in list_at(container, "ports")}
    port = str(ports_by_name.get(str(place.get("port")), place.get("port")))
    kind = "httpGet" if probe.get("httpGet") else "tcpSocket"
    # A name that no port has: nothing listens there, and the daemon is never ready.
    return {**probe, kind: {**place, "port": int(port) if port.isdecimal() else 0}}


def verdict(template: Mapping[str, Any], container_exits: list[ContainerExit]) -> tuple[str, str]:
    """(phase, message) of the pod by its containers. The phase is empty when no container failed."""
    init = {str(container.get("name")) for container in list_at(template, "initContainers")}
    for exit_ in container_exits:
        if exit_.name in init and exit_.code:
            return "Failed", f"{exit_.name}: Error (exit code {exit_.code})"
    main = [exit_ for exit_ in container_exits if exit_.name not in init]
    if template.get("containerSet"):
        bad = [exit_ for exit_ in main if exit_.code and not exit_.blamed]
    else:
        sidecars = {str(sidecar.get("name")) for sidecar in list_at(template, "sidecars")}
        bad = [exit_ for exit_ in main if exit_.code and (exit_.name not in sidecars or exit_.code not in KILLED_CODES)]
        bad.sort(key=lambda exit_: exit_.name != "main")
    return ("Failed", f"{bad[0].name}: Error (exit code {bad[0].code})") if bad else ("", "")

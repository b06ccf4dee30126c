"""A Volcano Job's own volumes, which all its pods mount: claims that are there, or that are made for the job."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from everstep.convert.field_reader import Fields
from everstep.convert.source import Pod, Role, claim_name

_VOLUMES = ("spec", "volumes")
_GONE = (
    "Argo deletes the claim of a workflow that has succeeded; nearest: a claim of your own as volumeClaimName, for "
    "what must stay"
)


def with_volumes(fields: Fields, roles: Sequence[Role]) -> tuple[tuple[Role, ...], tuple[dict[str, Any], ...]]:
    """(the roles, whose pods mount them, claims that the workflow must make). Raises ConvertError."""
    volumes, mounts, made = dict[str, str](), dict[str, str](), list[dict[str, Any]]()
    for number in range(fields.length(*_VOLUMES)):
        path = (*_VOLUMES, number)
        place = fields.take(str, *path, "mountPath")
        if place in mounts:
            raise fields.wrong(f"{place} is taken by another volume; give each a path of its own", *path, "mountPath")
        given, spec = fields.has(*path, "volumeClaimName"), fields.has(*path, "volumeClaim")
        if given == spec:
            which = "both volumeClaimName and" if given else "neither volumeClaimName nor"
            raise fields.wrong(f"{which} volumeClaim; give one of them", *path)
        if given:
            name = fields.take(str, *path, "volumeClaimName")
            volumes[name] = name
        else:
            name = f"claim-{number}"
            made.append({"metadata": {"name": name}, "spec": fields.take(dict, *path, "volumeClaim")})
            volumes[name] = claim_name(name)
            fields.note(_GONE, *path, "volumeClaim")
        mounts[place] = name
    return tuple(replace(role, pod=_with_mounts(role.pod, volumes, mounts)) for role in roles), tuple(made)


def _with_mounts(pod: Pod, volumes: dict[str, str], mounts: dict[str, str]) -> Pod:
    """`volumes`: the claim of each; `mounts`: the volume at each path."""
    own_volumes = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for name, claim in volumes.items()]
    own_mounts = [{"name": name, "mountPath": place} for place, name in mounts.items()]
    if not own_mounts:
        return pod
    return replace(
        pod,
        container={**pod.container, "volumeMounts": [*pod.container.get("volumeMounts", []), *own_mounts]},
        template={**pod.template, "volumes": [*pod.template.get("volumes", []), *own_volumes]},
    )

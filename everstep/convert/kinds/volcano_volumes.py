"""A Volcano Job's own volumes, which all its pods mount: claims that are there, or that are made for the job."""

from collections.abc import Container, Sequence
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
    taken = [volume.get("name") for role in roles for volume in role.pod.template.get("volumes", [])]
    for number in range(fields.length(*_VOLUMES)):
        path = (*_VOLUMES, number)
        place = fields.take(str, *path, "mountPath")
        if place in mounts:
            raise fields.wrong(f"{place} is taken by another volume; give each a path of its own", *path, "mountPath")
        given, spec = fields.has(*path, "volumeClaimName"), fields.has(*path, "volumeClaim")
        if given == spec:
            which = "both volumeClaimName and" if given else "neither volumeClaimName nor"
            raise fields.wrong(f"{which} volumeClaim; give one of them", *path)
        claim = f"claim-{number}"
        if given:
            of_pods = fields.take(str, *path, "volumeClaimName")
        else:
            made.append({"metadata": {"name": claim}, "spec": fields.take(dict, *path, "volumeClaim")})
            of_pods = claim_name(claim)
            fields.note(_GONE, *path, "volumeClaim")
        mounts[place] = volumes.setdefault(of_pods, _free_name(claim, taken))
    return tuple(replace(role, pod=_with_mounts(role.pod, volumes, mounts)) for role in roles), tuple(made)


def _free_name(name: str, taken: Container[object]) -> str:
    """It, or with an ending by which no volume of a pod is called so."""
    return _free_name(f"{name}-job", taken) if name in taken else name


def _with_mounts(pod: Pod, volumes: dict[str, str], mounts: dict[str, str]) -> Pod:
    """`volumes`: the name of the volume of each claim; `mounts`: that of the volume at each path."""
    own_volumes = [{"name": name, "persistentVolumeClaim": {"claimName": claim}} for claim, name in volumes.items()]
    own_mounts = [{"name": name, "mountPath": place} for place, name in mounts.items()]
    if not own_mounts:
        return pod
    return replace(
        pod,
        container={**pod.container, "volumeMounts": [*pod.container.get("volumeMounts", []), *own_mounts]},
        template={**pod.template, "volumes": [*pod.template.get("volumes", []), *own_volumes]},
    )

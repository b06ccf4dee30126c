"""KubeRay's RayJob (ray.io/v1): its entrypoint as the script of a training on the nodes of its worker groups.

A script that drives Ray itself (ray.train, ray.remote) needs a Ray cluster, which an Everstep job is not. The sizes of
the groups are those of KubeRay's WorkerGroupSpec: `replicas` pods, not fewer than `minReplicas` nor more than
`maxReplicas`, each of `numOfHosts` hosts; none while the group is suspended.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from everstep.convert.field_reader import Fields
from everstep.convert.pods import read_pod
from everstep.convert.run_policy import read_run
from everstep.convert.source import Pod, Role, SourceJob
from everstep.runtime.workflow.manifest.yaml_source import FieldPath, ReadError, read_text

_CLUSTER = ("spec", "rayClusterSpec")
_GROUPS, _HEAD = (*_CLUSTER, "workerGroupSpecs"), (*_CLUSTER, "headGroupSpec")
_ENDLESS = 2**31 - 1
"""maxReplicas of a group that names none."""
_MORE = "nearest: replicas of 1 or more"
_HEAD_TRAINS = f"it has no pods, and neither has any other group: so trains the pod of the head alone; {_MORE}"
_LEFT_OUT = f"it has no pods: left out; {_MORE}"
_PACKAGES = "packages and code in the image"
_REFERENCE = r"\$\{[A-Za-z_]\w*\}"
_BEGINS = (
    "Ray's autoscaler would begin it when asked; here it begins with one node; nearest: everstep scale RUN --nodes N"
)


@dataclass(frozen=True)
class _Group:
    """Sizes of a group of workers, in pods."""

    path: FieldPath
    pods: int
    least: int
    most: int
    hosts: int
    """Of each."""


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    text = fields.take(str, "spec", "entrypoint")
    groups = [_read_group(fields, (*_GROUPS, number)) for number in range(fields.length(*_GROUPS))]
    training = [group for group in groups if group.pods]
    if not training and fields.take(bool, *_CLUSTER, "enableInTreeAutoscaling", default=False):
        training = [replace(group, pods=1, least=1) for group in groups if group.most][:1]
        for group in training:
            fields.note(_BEGINS, *group.path)
    for path in (_HEAD, *(group.path for group in groups)):
        if not fields.keys(*path, "rayStartParams"):
            fields.skip(dict, *path, "rayStartParams")
    for group in groups:
        if group.path not in {other.path for other in training}:
            fields.take(dict, *group.path)
            fields.note(_LEFT_OUT if training else _HEAD_TRAINS, *group.path)
    roles = [_role(fields, group, is_one=len(training) == 1) for group in training]
    roles = roles or [Role("worker", 1, 1, read_pod(fields, (*_HEAD, "template")))]
    variables = _variables(fields)
    exports = "".join(_export(name, value) for name, value in variables.items() if _is_filled_in(name, value))
    command = ("sh", "-c", exports + text)  # As Ray starts it.
    own = {name: value.replace("$", "$$") for name, value in variables.items() if not _is_filled_in(name, value)}
    roles = [replace(role, pod=_with_variables(replace(role.pod, command=command), own)) for role in roles]
    arguments: dict[str, object] = {}
    if fields.has("spec", "backoffLimit"):
        arguments["max_relaunches"] = fields.count("spec", "backoffLimit")
    return SourceJob(tuple(roles), arguments, run=read_run(fields, "spec"))


def _read_group(fields: Fields, path: FieldPath) -> _Group:
    least = fields.count(*path, "minReplicas", default=0)
    most = fields.count(*path, "maxReplicas", default=_ENDLESS)
    pods = min(max(fields.count(*path, "replicas", default=0), least), most)
    if fields.take(bool, *path, "suspend", default=False):
        pods = most = 0
    is_elastic = fields.has(*path, "minReplicas")
    return _Group(
        path, pods, min(least, pods) if is_elastic else pods, most,
        fields.count(*path, "numOfHosts", default=1, least=1),
    )  # fmt: skip


def _variables(fields: Fields) -> dict[str, str]:
    """Of the runtime environment; the rest of it is noted. Raises ConvertError."""
    path = ("spec", "runtimeEnvYAML")
    try:
        documents = read_text(fields.take(str, *path, default=""), fields.file)
        environment = (documents[0].value if documents else None) or {}
        variables = environment.get("env_vars") or {}
        if not all(isinstance(text, str) for pair in variables.items() for text in pair):
            raise TypeError
    except (ReadError, AttributeError, TypeError):
        raise fields.wrong("not a mapping in YAML, with texts by their names in env_vars", *path) from None
    if others := [str(name) for name in environment if name != "env_vars"]:
        fields.note(f"{', '.join(others)}: no counterpart; nearest: {_PACKAGES}", *path)
    return variables


def _is_filled_in(name: str, value: str) -> bool:
    """Whether Ray fills in what the pod has for `${NAME}` in a value."""
    return name.isascii() and name.isidentifier() and bool(re.search(_REFERENCE, value, re.ASCII))


def _export(name: str, value: str) -> str:
    """Of a shell, with the value that Ray makes: nothing for a name that is not there, all else as it stands."""
    escaped = re.sub(rf'({_REFERENCE})|[\\"`$]', lambda match: match[1] or f"\\{match[0]}", value, flags=re.ASCII)
    return f'export {name}="{escaped}"; '


def _with_variables(pod: Pod, variables: Mapping[str, str]) -> Pod:
    """They go before the pod's own."""
    kept = [entry for entry in pod.container.get("env", []) if entry.get("name") not in variables]
    env = [*kept, *({"name": name, "value": text} for name, text in variables.items())]
    return replace(pod, container={**pod.container, "env": env}) if variables else pod


def _role(fields: Fields, group: _Group, is_one: bool) -> Role:
    name = fields.take(str, *group.path, "groupName", default="worker")
    policies = {"maxReplicas": group.most * group.hosts} if group.pods < group.most < _ENDLESS else {}
    policies |= {"nodeUnit": group.hosts} if group.hosts > 1 else {}
    return Role(
        "worker" if is_one else name, group.pods * group.hosts, max(1, group.least) * group.hosts,
        read_pod(fields, (*group.path, "template")), policies=policies,
    )  # fmt: skip

"""Baidu CCE's AITrainingJob (kongming.cce.baidubce.com/v1). The job spec has its fields by the same names."""

from dataclasses import replace
from typing import Any

from everstep.convert.field_reader import Fields, number_in
from everstep.convert.nearest import nearest
from everstep.convert.pods import read_pod, read_texts
from everstep.convert.source import Pod, Role, SourceJob
from everstep.convert.ssh_hosts import DISCOVERY, KEYS, outliving_rounds, with_own_files, with_own_server, with_own_ssh
from everstep.runtime.job.spec import LAUNCHER, TENSORFLOW_ROLES
from everstep.runtime.job.spec_values import USUAL_PRIORITY
from everstep.runtime.protocol.rounds import Framework
from everstep.runtime.workflow.manifest.yaml_source import FieldPath

_ROLE = {
    "maxReplicas": int, "restartLimit": int, "restartPolicy": str, "restartScope": str, "restartTimeLimit": int,
    "restartTimeout": int, "completePolicy": str, "failPolicy": str, "faultTolerantPolicy": list,
}  # fmt: skip
_DISCOVERY = "/etc/edl/discover_hosts.sh"
"""Where its discovery plugin puts the script."""
_BARRIER = "--barrier_roles="
_JOB = {
    "completePolicy": str, "failPolicy": str, "cleanPodPolicy": str, "timeLimit": int, "schedulerName": str,
}  # fmt: skip


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    roles = fields.keys("spec", "replicaSpecs")
    if not roles:
        raise fields.wrong("missing: at least one role, such as trainer", "spec", "replicaSpecs")
    tolerant = fields.take(bool, "spec", "faultTolerant", default=True)
    policies = {name: fields.take(kind, "spec", name) for name, kind in _JOB.items() if fields.has("spec", name)}
    policies |= _framework(fields, roles)
    roles_read = [_role(fields, name, roles) for name in roles]
    if policies.get("frameworkType") == Framework.HOROVOD:
        if fields.has("spec", "plugin", "ssh"):
            roles_read = [replace(role, pod=_with_own_keys(fields, role)) for role in roles_read]
        roles_read = [replace(role, pod=outliving_rounds(role.pod)) for role in roles_read]
    if not tolerant:
        roles_read = [replace(role, policies={"restartPolicy": "Never", **role.policies}) for role in roles_read]
    priority = fields.take(str, "spec", "priority", default=USUAL_PRIORITY)
    arguments = {"priority_class": priority} if priority != USUAL_PRIORITY else {}
    return SourceJob(tuple(roles_read), arguments, policies)


def _framework(fields: Fields, roles: list[str]) -> dict[str, Any]:
    """The job spec's frameworkType, if it needs one. Of roles by other names, Horovod and TensorFlow are commands like
    any other."""
    framework = fields.take(str, "spec", "frameworkType", default="")
    fits: dict[str, bool] = {
        Framework.HOROVOD: LAUNCHER in roles and len(roles) > 1,
        Framework.TENSORFLOW: set(roles) <= set(TENSORFLOW_ROLES),
        Framework.PADDLE: True,
    }
    if fits.get(framework):
        if framework == Framework.HOROVOD:
            for name in fields.keys("spec", "plugin"):
                read_texts(fields, ("spec", "plugin", name))
            if fields.has("spec", "plugin", "ssh"):
                fields.note(KEYS, "spec", "plugin", "ssh")
        return {"frameworkType": framework}
    if framework not in ("", Framework.PYTORCH):
        fields.note(f"no counterpart for these roles; nearest: {nearest(('frameworkType',))}", "spec", "frameworkType")
    return {}


def _with_own_keys(fields: Fields, role: Role) -> Pod:
    """With a command that uses the job's keys: the launcher's ssh, or the server of another role."""
    if role.name == LAUNCHER:
        return with_own_ssh(role.pod)
    return with_own_server(fields, role.pod, "spec", "replicaSpecs", role.name)


def _awaited(fields: Fields, path: FieldPath, roles: list[str]) -> list[str]:
    """The roles that the only init container, Baidu's job barrier, waits for; empty if it is another one."""
    place = (*path, "template", "spec", "initContainers")
    if fields.length(*place) != 1:
        return []
    arguments = (*place, 0, "args")
    words = [fields.text_at(*arguments, number) for number in range(fields.length(*arguments))]
    awaited = next((word.removeprefix(_BARRIER).split(",") for word in words if word.startswith(_BARRIER)), [])
    if not awaited or not set(awaited) <= set(roles):
        return []
    fields.take_like("Template", "initContainers", *place)
    return awaited


def _role(fields: Fields, name: str, roles: list[str]) -> Role:
    path = ("spec", "replicaSpecs", name)
    fields.skip(str, *path, "replicaType")
    nodes = fields.count(*path, "replicas", default=1, least=1)
    policies: dict[str, Any] = {
        key: fields.take(kind, *path, key) for key, kind in _ROLE.items() if fields.has(*path, key)
    }
    for rule in policies.get("faultTolerantPolicy", []):
        for key in ("exitCodes", "exceptionalEvent"):  # A list, written as a text or a number.
            if isinstance(rule, dict) and isinstance(condition := rule.get(key), str | int):
                parts = [part.strip() for part in str(condition).split(",")]
                rule[key] = [part if (number := number_in(part)) is None else number for part in parts]
    if _mend_policy(policies):
        fields.note("ExitCode without a rule that names exit codes restarts nothing: Never", *path, "restartPolicy")
    if awaited := _awaited(fields, path, roles):
        policies["waitsFor"] = awaited
    least = fields.count(*path, "minReplicas", default=nodes)
    pod = read_pod(fields, (*path, "template"))
    return Role(
        name,
        nodes,
        least,
        replace(pod, command=with_own_files(pod.command, {_DISCOVERY: DISCOVERY})),
        policies=policies,
    )


def _mend_policy(policies: dict[str, Any]) -> bool:
    """A policy about exit codes alone that no rule names is about none: a job spec says so. Whether it was one."""
    rules = [policies, *policies.get("faultTolerantPolicy", [])]
    if any(isinstance(rule, dict) and rule.get("exitCodes") for rule in rules):
        return False
    if policies.get("restartPolicy") != "ExitCode":
        return False
    policies["restartPolicy"] = "Never"
    return True

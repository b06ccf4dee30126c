"""`convert`: from a manifest's text to the train step's arguments, and what has no counterpart there."""

import json
import posixpath
import re
import shlex
from dataclasses import dataclass, replace
from typing import Any

from everstep.convert.field_reader import ConvertError, Fields, path_text
from everstep.convert.gang import take_gang
from everstep.convert.kinds import KINDS
from everstep.convert.launcher import parse_launch, step_arguments
from everstep.convert.nearest import nearest
from everstep.convert.source import Pod, Role, SourceJob
from everstep.runtime.job.spec_reader import SpecError, spec_of
from everstep.runtime.workflow.manifest.yaml_source import ReadError, read_text
from everstep.steps.train.config import Config
from everstep.steps.train.script import COMMAND

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""A DNS subdomain."""
_IGNORED = (("apiVersion",), ("kind",), ("metadata", "namespace"), ("status",))


@dataclass(frozen=True)
class Conversion:
    """A job as arguments of the train step."""

    name: str
    arguments: dict[str, Any]
    """By the config's fields; `job_spec` is a mapping in the spelling of a job spec."""
    pod: Pod
    """That of rank 0's role. The step runs in its image; each role's whole pod is in the arguments' job spec."""
    notes: tuple[str, ...]
    """What could not be converted, one line each: FILE:LINE: FIELD: what, and the nearest."""


def convert(text: str, file: str) -> Conversion:
    """Raises ConvertError: no YAML, several documents, an unknown kind, a field that is wrong."""
    try:
        documents = read_text(text, file)
    except ReadError as error:
        raise ConvertError(str(error)) from None
    if len(documents) != 1:
        raise ConvertError(f"{file}:1: {len(documents)} documents; give a file with one job")
    if not isinstance(documents[0].value, dict):
        raise ConvertError(f"{file}:1: not a mapping; give the manifest of a job")
    fields = Fields(documents[0])
    kind, version = fields.take(str, "kind"), fields.take(str, "apiVersion")
    if kind not in KINDS:
        raise fields.wrong(f"{kind} is not known; known are {', '.join(KINDS)}", "kind")
    groups, read = KINDS[kind]
    if not version.startswith(groups):
        raise fields.wrong(f"{version} is not known for {kind}; it begins with {groups[0]}", "apiVersion")
    for path in _IGNORED:
        fields.skip(*path)
    job = take_gang(read(fields), file, fields.notes)
    if not _NAME.fullmatch(job.name):
        raise fields.wrong(
            f"{job.name!r} is not a name for Kubernetes: it takes small letters, digits, - and .", "metadata", "name"
        )
    more = fields.notes
    arguments = _arguments(job, fields, more)
    unmatched_fields = [
        f"{file}:{fields.line(path)}: {path_text(path)}: no counterpart; nearest: {nearest(path)}"
        for path in fields.unread()
    ]
    image = f"{file}: image {job.roles[0].pod.image}: it must have Everstep installed; or give your own with --image"
    return Conversion(job.name, arguments, job.roles[0].pod, (*unmatched_fields, *more, image))


def _template(role: Role, image: str) -> dict[str, Any]:
    """A job spec's template of a role: its pod, but for its command, its resources, an image that is the step's, and a
    /dev/shm, as each node has one. Empty: nothing."""
    pod = role.pod
    container = {name: value for name, value in pod.container.items() if name != "resources"}
    container |= {"image": pod.image} if pod.image != image else {}
    spec, metadata = {**pod.template, **pod.spec}, pod.template.get("metadata")
    spec.pop("metadata", None)
    own_memory = {mount.get("name") for mount in pod.memory_mounts()}
    for fields, name in ((container, "volumeMounts"), (spec, "volumes")):
        fields[name] = [entry for entry in fields.get(name, []) if entry.get("name") not in own_memory]
        if not fields[name]:
            del fields[name]
    spec |= {"containers": [container]} if container else {}
    return {**({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}


def _resources(role: Role) -> dict[str, Any]:
    """A node's, in the spelling of a job spec."""
    amounts = role.pod.container.get("resources") or {}
    return {**(amounts.get("requests") or {}), **(amounts.get("limits") or {})}


def _arguments(job: SourceJob, fields: Fields, notes: list[str]) -> dict[str, Any]:
    """The train step's arguments; adds to `notes`. Raises ConvertError."""
    arguments, policies, file = dict(job.arguments), dict(job.policies), fields.file
    roles = list(job.roles)
    if twice := [
        role.name for number, role in enumerate(roles) if role.name in {earlier.name for earlier in roles[:number]}
    ]:
        raise fields.wrong(f"two of its roles are called {twice[0]}; give each a name of its own", "spec")
    commands = {role.name: role.pod.command for role in roles}
    if len(set(commands.values())) > 1 or not _take_launch(roles[0], arguments, file, notes):
        each = {name: shlex.join(command) for name, command in commands.items()}
        arguments |= {"script": COMMAND, "script_args": shlex.quote(json.dumps(each, ensure_ascii=False))}
        notes.append(
            f"{file}: its command does not start torchrun, dlrover-run or python: each worker runs it unchanged"
        )
        empty = [name for name, command in commands.items() if not command]
        notes += [f"{file}: {name}: it has no command, and its image's own is not known here" for name in empty]
    least, most = arguments.pop("min_nodes", None), arguments.pop("nodes", None)
    slots = arguments.pop("workers_per_node", None)
    if len(roles) == 1:
        nodes = roles[0].nodes if most is None else most
        fewest = min(roles[0].min_nodes, nodes) if least is None else least
        if not 1 <= max(1, fewest) <= nodes:
            raise fields.wrong(f"the launcher's --nnodes={least}:{most} is no range of at least one node", "spec")
        roles = [replace(roles[0], nodes=nodes, min_nodes=fewest, slots=slots or roles[0].slots)]
    elif slots:
        roles = [replace(role, slots=slots) for role in roles]
    ranks = sum(role.nodes * role.slots for role in roles)
    if ranks > Config.global_batch:
        arguments["global_batch"] = ranks
    first, *others = roles
    needs_spec = others or policies or first.policies or _resources(first) or _template(first, first.pod.image)
    if not needs_spec and first.name == "worker":
        arguments |= {"nodes": first.nodes, "min_nodes": max(1, first.min_nodes)}
        arguments |= {"workers_per_node": first.slots} if first.slots > 1 else {}
    else:
        arguments["job_spec"] = _job_spec(roles, policies, fields)
    return arguments


def _take_launch(role: Role, arguments: dict[str, Any], file: str, notes: list[str]) -> bool:
    """Take script, arguments and launcher flags from the role's command; False if it starts no script."""
    nodes = {name: str(role.nodes) for name in ("NODE_NUM", "WORKER_NUM", "PET_NNODES", "NNODES")}
    variables: dict[str, str] = {**nodes, "NUM_TRAINERS": str(role.slots)}
    launch = parse_launch(role.pod.command, variables)
    if launch is None:
        return False
    step, flags_left = step_arguments(launch.flags)
    # The step begins in its image's folder, the workers in their pod's.
    script = posixpath.join(role.pod.container.get("workingDir") or "", launch.script)
    arguments |= {**step, "script": script}
    if launch.script_arguments:
        arguments["script_args"] = shlex.join(launch.script_arguments)
    for name, value in flags_left.items():
        nearest_flag = nearest((name,), "the train step's flags")
        notes.append(f"{file}: the launcher's --{name}={value}: no counterpart; nearest: {nearest_flag}")
    if launch.before:
        notes.append(f"{file}: the command's `{launch.before}` is left out; nearest: the image, or `env`")
    return True


def _job_spec(roles: list[Role], policies: dict[str, Any], fields: Fields) -> dict[str, Any]:
    """The roles and policies in the spelling of a job spec. Raises ConvertError where it would be refused."""
    entries = {}
    for role in roles:
        entries[role.name] = {
            "replicas": role.nodes, "minReplicas": max(1, role.min_nodes), "slots": role.slots, **role.policies,
            **({"resources": resources} if (resources := _resources(role)) else {}),
            **({"template": template} if (template := _template(role, roles[0].pod.image)) else {}),
        }  # fmt: skip
    spec = {**policies, "replicaSpecs": entries}
    try:
        spec_of({**spec, "job": "converted"}, fields.file)
    except SpecError as error:
        at, _, what = error.problems[0].removeprefix(f"{fields.file}: ").partition(": ")
        raise fields.wrong_in_spec(at, what) from None
    return spec

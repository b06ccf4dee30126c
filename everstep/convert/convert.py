"""`convert`: from a manifest's text to the train step's arguments, and what has no counterpart there."""

import json
import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from everstep.convert.field_reader import ConvertError, Fields, number_in, path_text
from everstep.convert.gang import CREATE, Group, read_group, take_gang, what_becomes_of
from everstep.convert.kinds import KINDS
from everstep.convert.launcher import CONF, Launch, Place, parse_launch, starter_in, step_arguments
from everstep.convert.launchers.torchrun import NODES, PROCESSES
from everstep.convert.names import read_name, with_role_names
from everstep.convert.nearest import nearest
from everstep.convert.pods import amounts_of, gpus_of, take_all
from everstep.convert.rendezvous import parse_settings, patience_of, without_counterpart
from everstep.convert.shell import for_agent
from everstep.convert.source import Pod, Role, SourceJob, claim_name
from everstep.runtime.display.terminal import as_text
from everstep.runtime.job.spec_reader import SpecError, spec_of
from everstep.runtime.protocol.rounds import Framework
from everstep.runtime.submission.manifest import NEEDED_KEYS, OTHER_KEYS
from everstep.runtime.workflow.manifest.yaml_source import Document, ReadError, read_text
from everstep.steps.train.config import Config
from everstep.steps.train.script import COMMAND

_OF_SERVER = {
    "creationTimestamp": str, "generation": int, "managedFields": list, "resourceVersion": str, "selfLink": str,
    "uid": str,
}  # fmt: skip
"""What `kubectl get -o yaml` shows besides."""
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_GROUP = "PodGroup"
_OF_CONTROLLER = "workflows.argoproj.io/"
"""The prefix of what Argo's controller writes and heeds on a Workflow."""
_USER = (
    "a cluster's pods run as user 1000 without capabilities, not as the image's user; nearest: securityContext of the "
    "pod and of its container"
)
_ONE_MACHINE = (
    "with hostNetwork, nodes of one machine are one host to what starts processes by ssh: all of its processes run in "
    "the pod of one node; nearest: one node a machine, by podAntiAffinity"
)
_BRACES = (
    "{{...}} in its texts is filled in by Argo where it knows the name, such as {{workflow.name}}; nearest: a file in "
    "the image"
)
_INSTEAD = "nearest: a command that is only what it starts, and slots in a job spec"
_SLOTS = "nearest: slots in a job spec"
_PREPARED = (
    "what the command's shell does first is done again when the workers start again, not once a pod; nearest: the image"
)
_FOLDER = (
    "the launcher would append the folder in which it is started to PYTHONPATH; nearest: that variable in `env`, with "
    "what the image has in it"
)
_KEYS = "on a cluster its nodes reach Everstep's store by them, too; nearest: keys of both, also in --store-secret"
_NO_COMMAND = "it has no command, and its image's own is not known here"
_NO_PROGRAM = (
    "it has arguments alone, and what its image, or its runtime, runs with them is not known here: they are taken for "
    "the command; nearest: `command` before them, such as [python, train.py]"
)


@dataclass(frozen=True)
class Conversion:
    """A job as arguments of the train step."""

    name: str
    arguments: dict[str, Any]
    """By the config's fields; `job_spec` is a mapping in the spelling of a job spec."""
    pod: Pod
    """That of rank 0's role. The step runs in its image; each role's whole pod is in the arguments' job spec."""
    metadata: dict[str, dict[str, str]]
    """The job's own labels and annotations."""
    run: dict[str, Any]
    """Fields of the Workflow's spec for the whole run."""
    claims: tuple[dict[str, Any], ...]
    """Templates of the claims that the workflow makes."""
    notes: tuple[str, ...]
    """What could not be converted, one line each: FILE:LINE: FIELD: what, and the nearest."""


def convert(text: str, file: str, image: str = "") -> Conversion:
    """`image`: that of the step, instead of the first role's. Raises ConvertError: no YAML, several documents, an
    unknown kind, a field that is wrong."""
    try:
        document, others = _only_job(read_text(text, file), file)
    except ReadError as error:
        raise ConvertError(str(error)) from None
    fields = Fields(document)
    kind, version = fields.take(str, "kind"), fields.take(str, "apiVersion")
    if kind not in KINDS:
        raise fields.wrong(f"{kind} is not known; known are {', '.join(KINDS)}", "kind")
    versions, read = KINDS[kind]
    if version not in versions:
        raise fields.wrong(f"{version} is not known for {kind}; known is {' or '.join(versions)}", "apiVersion")
    fields.skip(dict, "status")
    for path in (("spec", "suspend"), ("spec", "runPolicy", "suspend")):
        fields.skip_value(False, *path)
    name = read_name(fields)
    groups = [read_group(other.value) for other in others if _kind(other) == _GROUP]
    group = groups[0] if len(groups) == 1 else Group()
    job = with_role_names(read(fields), file, fields.notes)
    job = take_gang(replace(job, metadata=_metadata(fields)), file, fields.notes, group)
    more, pod = fields.notes, job.roles[0].pod
    if not image and not pod.image:
        raise fields.wrong("no image: its runtime's is not known here; name one, or give --image", "spec")
    arguments = _arguments(job, fields, more)
    for other in others:
        what = what_becomes_of(other.value, arguments) if _kind(other) == _GROUP else CREATE
        more.append(f"{file}:{other.line(())}: {_title(other)}: left out; {what}")
    unmatched_fields = [
        f"{file}:{fields.line(path)}: {path_text(path)}: no counterpart; nearest: {nearest(path)}"
        for path in fields.unread()
    ]
    if roles_without := [role.name for role in job.roles if not _has_user(role.pod)]:
        more.append(f"{file}: {', '.join(roles_without)}: {_USER}")
    sharing = [role.name for role in job.roles if role.nodes > 1 and role.pod.template.get("hostNetwork")]
    if sharing and job.policies.get("frameworkType") == Framework.HOROVOD:
        more.append(f"{file}: {', '.join(sharing)}: {_ONE_MACHINE}")
    for role in job.roles:
        names = [entry.get("name") for entry in role.pod.container.get("env", [])]
        if own_keys := [name for name in names if name in (*NEEDED_KEYS, *OTHER_KEYS)]:
            more.append(f"{file}: {role.name}: {', '.join(own_keys)}: {_KEYS}")
    texts = json.dumps(arguments)
    for claim in job.claims:
        texts = texts.replace(claim_name(claim["metadata"]["name"]), "")
    if "{{" in texts:
        more.append(f"{file}: {_BRACES}")
    if not image:
        more.append(f"{file}: image {pod.image}: it must have Everstep installed; or give your own with --image")
    for other_image in dict.fromkeys(role.pod.image for role in job.roles if role.pod.image != pod.image):
        more.append(f"{file}: image {other_image}: it must have Everstep installed, too")
    return Conversion(
        name, arguments, replace(pod, image=image or pod.image), job.metadata, job.run, job.claims,
        tuple(dict.fromkeys(as_text(note) for note in (*unmatched_fields, *more))),
    )  # fmt: skip


def _has_user(pod: Pod) -> bool:
    """A pod's own securityContext takes the place of the step's; a container's does not."""
    return bool(pod.template.get("securityContext")) or "runAsUser" in (pod.container.get("securityContext") or {})


def _metadata(fields: Fields) -> dict[str, dict[str, str]]:
    """The job's labels and annotations, without what a cluster and kubectl have added, and what Argo's controller
    would take for its own, which is noted. Raises ConvertError."""
    for name, kind in _OF_SERVER.items():
        fields.skip(kind, "metadata", name)
    metadata = take_all(fields, "Metadata", ("labels", "annotations"), ("metadata",))
    for name, some in metadata.items():
        for key in filter(_is_controllers, some):
            fields.note("no counterpart; nearest: none, it is the workflow controller's own", "metadata", name, key)
    kept = {
        name: {key: text for key, text in some.items() if key != _LAST_APPLIED and not _is_controllers(key)}
        for name, some in metadata.items()
    }
    return {name: some for name, some in kept.items() if some}


def _is_controllers(key: str) -> bool:
    return str(key).startswith(_OF_CONTROLLER)


def _only_job(documents: list[Document], file: str) -> tuple[Document, list[Document]]:
    """(the job, the objects beside it). Raises ConvertError."""
    documents = [item for document in documents for item in _items(document)]
    jobs = [document for document in documents if _kind(document) in KINDS] if len(documents) > 1 else documents
    if len(jobs) != 1:
        raise ConvertError(f"{file}:1: {len(documents)} documents, of which {len(jobs)} are jobs; give a file with one")
    if not isinstance(jobs[0].value, dict):
        raise ConvertError(f"{file}:1: not a mapping; give the manifest of a job")
    return jobs[0], [document for document in documents if document is not jobs[0]]


def _items(document: Document) -> list[Document]:
    """The objects of a List, such as `kubectl get` prints it without a name; the document itself if it is none."""
    if _kind(document) != "List" or not isinstance(items := document.value.get("items"), list):
        return [document]
    lines, repeated = document.lines.items(), document.repeated
    return [
        Document(
            item,
            document.file,
            {path[2:]: line for path, line in lines if path[:2] == ("items", number)},
            [(path[2:], line) for path, line in repeated if path[:2] == ("items", number)],
        )
        for number, item in enumerate(items)
    ]


def _kind(document: Document) -> str:
    return str(document.value.get("kind")) if isinstance(document.value, dict) else ""


def _title(document: Document) -> str:
    metadata = document.value.get("metadata") if isinstance(document.value, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return " ".join(word for word in (_kind(document), str(name or "")) if word) or "a document"


def _template(role: Role, image: str) -> dict[str, Any]:
    """A job spec's template of a role: its pod, but for its command, its resources, an image that is the step's, and a
    /dev/shm, as each node has one. Empty: nothing."""
    pod = role.pod
    container = {name: value for name, value in pod.container.items() if name != "resources"}
    container |= {"image": pod.image} if pod.image != image else {}
    spec, metadata = {**pod.template, **pod.spec}, pod.template.get("metadata")
    spec.pop("metadata", None)
    if (container.get("securityContext") or {}).get("runAsUser") == 0:  # The step's pod must not run as root.
        spec.setdefault("securityContext", {"runAsUser": 0})
    own_memory = {mount.get("name") for mount in pod.memory_mounts()}
    for fields, name in ((container, "volumeMounts"), (spec, "volumes")):
        fields[name] = [entry for entry in fields.get(name, []) if entry.get("name") not in own_memory]
        if not fields[name]:
            del fields[name]
    spec |= {"containers": [container]} if container else {}
    return {**({"metadata": metadata} if metadata else {}), **({"spec": spec} if spec else {})}


def _arguments(job: SourceJob, fields: Fields, notes: list[str]) -> dict[str, Any]:
    """The train step's arguments; adds to `notes`. Raises ConvertError."""
    arguments, policies, file = dict(job.arguments), dict(job.policies), fields.file
    roles = list(job.roles)
    if twice := [
        role.name for number, role in enumerate(roles) if role.name in {earlier.name for earlier in roles[:number]}
    ]:
        raise fields.wrong(f"two of its roles are called {twice[0]}; give each a name of its own", "spec")
    launches = [launch for role in roles if (launch := _launch_of(role, job.variables)) and launch.script]
    scripts = {(_path_of(launch), launch.script_arguments) for launch in launches}
    is_one = len(launches) == len(roles) and len(scripts) == len({role.pod.command for role in roles}) == 1
    if is_one and not any(_is_mounted(_path_of(launch), role) for role, launch in zip(roles, launches, strict=True)):
        _take_script(launches[0], arguments)
        of_roles = {role.name: launch for role, launch in zip(roles, launches, strict=True)}
    else:
        of_roles = _take_commands(job, arguments, policies, file, notes)
    arguments["script_settings"] = False  # Another system gives a script its own arguments alone.
    roles = _take_launches(job, of_roles, arguments, policies, fields)
    if len(roles) == 1:
        roles = [replace(roles[0], min_nodes=min(roles[0].min_nodes, roles[0].nodes))]
    ranks = sum(role.nodes * role.slots for role in roles)
    if ranks > Config.global_batch:
        arguments["global_batch"] = ranks
    first, *others = roles
    has_more = amounts_of(first.pod.container) or _template(first, first.pod.image)
    if first.name == "worker" and not (others or policies or first.policies or has_more):
        arguments |= {"nodes": first.nodes, "min_nodes": max(1, first.min_nodes)}
        arguments |= {"workers_per_node": first.slots} if first.slots > 1 else {}
    else:
        arguments["job_spec"] = _job_spec(roles, policies, fields)
    return arguments


def _launch_of(role: Role, of_operator: Mapping[str, str]) -> Launch | None:
    container = role.pod.container
    sizes = dict.fromkeys(("NODE_NUM", "WORKER_NUM", NODES, "NNODES"), str(role.nodes))
    sizes |= dict.fromkeys(("NUM_TRAINERS", *PROCESSES), str(role.slots))
    own = {str(entry.get("name")): str(entry.get("value") or "") for entry in container.get("env", [])}
    variables = {name: text for name, text in {**sizes, **own, **of_operator}.items() if text}
    place = Place(role.nodes, gpus_of(container), str(container.get("workingDir") or ""))
    return parse_launch(role.pod.command, variables, place)


def _as_its_shell_sets(role: Role, launch: Launch) -> Role:
    """The role with the folder and the variables that the shell of its command begins with."""
    container, start = dict(role.pod.container), launch.start
    if start.folder:
        container["workingDir"] = start.folder
    if start.variables:
        kept = [entry for entry in container.get("env", []) if entry.get("name") not in start.variables]
        container["env"] = [*kept, *({"name": name, "value": value} for name, value in start.variables.items())]
    return replace(role, pod=replace(role.pod, container=container))


def _path_of(launch: Launch) -> str:
    """The script's: the step begins in its image's folder, the workers in their pod's."""
    return posixpath.join(launch.start.folder, launch.script)


def _is_mounted(path: str, role: Role) -> bool:
    """Whether it is on a volume of the role, which the step's own pod does not have."""
    mounts = (str(mount.get("mountPath")) for mount in role.pod.container.get("volumeMounts", []))
    return any(f"{posixpath.normpath(path)}/".startswith(posixpath.join(mount, "")) for mount in mounts)


def _take_script(launch: Launch, arguments: dict[str, Any]) -> None:
    """The step's script is the one that all roles run."""
    arguments["script"] = _path_of(launch)
    if launch.script_arguments:
        arguments["script_args"] = shlex.join(launch.script_arguments)


def _take_commands(
    job: SourceJob, arguments: dict[str, Any], policies: Mapping[str, Any], file: str, notes: list[str]
) -> dict[str, Launch]:
    """Each role's workers run what its launcher would start, or its command unchanged. Returns the launches of the
    roles that have one."""
    commands: dict[str, str] = {}
    launches: dict[str, Launch] = {}
    for role in job.roles:
        launch = _launch_of(role, job.variables)
        if launch and (launch.has_launcher or launch.is_prepared):
            commands[role.name], launches[role.name] = shlex.join(launch.program), launch
            continue
        commands[role.name] = for_agent(shlex.join(role.pod.command))
        what = "each worker runs its command unchanged" if role.pod.command else _NO_COMMAND
        what = what if role.pod.has_program else _NO_PROGRAM
        starter = starter_in(role.pod.command)
        if starter and policies.get("frameworkType") != Framework.HOROVOD:
            what += f", in which `{starter}` starts processes of its own, each alone; {_INSTEAD}"
        notes.append(f"{file}: {role.name}: {what}")
    arguments |= {"script": COMMAND, "script_args": shlex.quote(json.dumps(commands, ensure_ascii=False))}
    return launches


def _take_launches(
    job: SourceJob, launches: Mapping[str, Launch], arguments: dict[str, Any], policies: dict[str, Any], fields: Fields
) -> list[Role]:
    """The nodes and workers of a launcher are its role's. Its other flags are the step's, its patience that of the job
    spec: where roles differ, the first one's count. Returns the roles. Raises ConvertError."""
    step, patience, roles = dict[str, Any](), dict[str, Any](), list[Role]()
    file, notes = fields.file, fields.notes
    total = sum(role.nodes for role in job.roles if role.name in launches)
    processes = number_in(job.variables.get(PROCESSES[0], "")) or 1
    for role in job.roles:
        launch = launches.get(role.name)
        if processes > 1 and not (launch and launch.has_launcher):
            notes.append(f"{file}: {role.name}: it runs once a node: torchrun would start {processes}; {_SLOTS}")
        if launch is None:
            roles.append(role)
            continue
        flags, flags_left = step_arguments(launch.flags)
        sizes = {name: flags.pop(name) for name in ("nodes", "min_nodes", "workers_per_node") if name in flags}
        roles.append(_with_sizes(_as_its_shell_sets(role, launch), sizes, total, fields))
        settings = parse_settings(launch.flags.get(CONF, ""))
        for of_all, own in ((step, flags), (patience, patience_of(settings))):
            for name, value in own.items():
                if of_all.setdefault(name, value) != value:
                    what = f"{name} {value}: no counterpart; nearest: {of_all[name]}, that of every role"
                    notes.append(f"{file}: {role.name}: the launcher's {what}")
        notes += _what_is_left(launch, flags_left, settings, file)
    arguments |= step
    if patience:
        policies["patience"] = {**policies.get("patience", {}), **patience}
    return roles


def _with_sizes(role: Role, sizes: Mapping[str, int], total: int, fields: Fields) -> Role:
    """The role with its launcher's nodes and workers. `total`: the nodes of all roles with launchers, which it may
    count instead of its own. Raises ConvertError."""
    role = replace(role, slots=sizes.get("workers_per_node") or role.slots)
    if "nodes" not in sizes:
        return role
    least, most = sizes["min_nodes"], sizes["nodes"]
    flag = f"the launcher's --nnodes={least}:{most}"
    if not 1 <= max(1, least) <= most:
        raise fields.wrong(f"{flag} is no range of at least one node", "spec")
    if total == role.nodes or most <= role.nodes:
        return replace(role, nodes=most, min_nodes=least)
    if (least, most) != (total, total):
        what = f"{flag}: it counts nodes of several roles; nearest: minReplicas of each in a job spec"
        fields.notes.append(f"{fields.file}: {role.name}: {what}")
    return role


def _what_is_left(launch: Launch, flags_left: Mapping[str, str], settings: Mapping[str, str], file: str) -> list[str]:
    """What of a launch has no counterpart, one line each."""
    notes: list[str] = []
    for name, value in flags_left.items():
        nearest_flag = nearest((name,), "the train step's flags")
        notes.append(f"{file}: the launcher's --{name}={value}: no counterpart; nearest: {nearest_flag}")
    for key, what in without_counterpart(settings).items():
        notes.append(f"{file}: the launcher's --{CONF} {key}={settings[key]}: no counterpart; nearest: {what}")
    if launch.lacks_folder:
        notes.append(f"{file}: {_FOLDER}")
    if launch.is_prepared:
        notes.append(f"{file}: {_PREPARED}")
    for word in launch.unknown:
        notes.append(f"{file}: the command's `{word}` needs what is left out; nearest: the variable in `env`")
    if launch.output:
        notes.append(f"{file}: the command's `{launch.output}` is left out; nearest: everstep workflow logs")
    for command in launch.start.others:
        notes.append(f"{file}: the command's `{command}` is left out; nearest: the image, or `env`")
    return notes


def _job_spec(roles: list[Role], policies: dict[str, Any], fields: Fields) -> dict[str, Any]:
    """The roles and policies in the spelling of a job spec. Raises ConvertError where it would be refused."""
    entries = {}
    for role in roles:
        entries[role.name] = {
            "replicas": role.nodes, "minReplicas": max(1, role.min_nodes), "slots": role.slots, **role.policies,
            **({"resources": resources} if (resources := amounts_of(role.pod.container)) else {}),
            **({"template": template} if (template := _template(role, roles[0].pod.image)) else {}),
        }  # fmt: skip
    spec = {**policies, "replicaSpecs": entries}
    try:
        spec_of({**spec, "job": "converted"}, fields.file)
    except SpecError as error:
        at, _, what = error.problems[0].removeprefix(f"{fields.file}: ").partition(": ")
        raise fields.wrong_in_spec(at, what) from None
    return spec

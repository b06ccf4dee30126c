"""Two roles of which the launcher starts processes on the hosts of the other one: by horovodrun or mpirun.

horovodrun with --host-discovery-script follows changes by itself, so it outlives rounds. Anything else, such as mpirun,
has its hosts once and for all: each round starts it anew, and it needs all of them.
"""

import re
from dataclasses import replace

from everstep.convert.field_reader import Fields, number_in
from everstep.convert.source import Role
from everstep.convert.ssh_hosts import (
    DISCOVERY,
    KEYS,
    SERVER,
    outliving_rounds,
    with_mpi_hosts,
    with_own_server,
    with_own_ssh,
)
from everstep.runtime.job.spec import LAUNCHER
from everstep.runtime.workflow.manifest.yaml_source import FieldPath

_ELASTIC = "--host-discovery-script"
_LIMIT = r"--{}-(?:np|num-proc)[ =]+(\d+)"
_NOT_ELASTIC = (
    "mpirun does not follow changes: the job needs all of its hosts, and each round starts the command anew with them, "
    f"by python -m everstep.mpi_hosts; nearest: horovodrun with {_ELASTIC} ${DISCOVERY}, which goes on with fewer"
)


def with_launcher(
    fields: Fields, launcher: Role, hosts: Role, places: tuple[FieldPath, FieldPath], keys: FieldPath
) -> tuple[Role, Role]:
    """The two as roles of a job with `frameworkType: horovod`. `places`: where each stands; `keys`: where the manifest
    tells of ssh."""
    fields.note(KEYS, *keys)
    text = " ".join(launcher.pod.command)
    if not hosts.pod.command:  # What its operator, or its image, starts is sshd.
        hosts = replace(hosts, pod=replace(hosts.pod, command=SERVER))
    else:
        hosts = replace(hosts, pod=with_own_server(fields, hosts.pod, *places[1]))
    hosts = replace(
        hosts, pod=outliving_rounds(hosts.pod), policies={**hosts.policies, "completePolicy": "None"}
    )  # fmt: skip
    pod = with_own_ssh(launcher.pod)
    if _ELASTIC in text:
        return replace(launcher, name=LAUNCHER, pod=outliving_rounds(pod)), _between_its_limits(hosts, text)
    fields.note(_NOT_ELASTIC, *places[0])
    return replace(launcher, name=LAUNCHER, pod=with_mpi_hosts(pod)), replace(hosts, min_nodes=hosts.nodes)


def _between_its_limits(hosts: Role, text: str) -> Role:
    """With as few and as many nodes as horovodrun has in its text; it does not say: as it was."""
    limits = {name: re.search(_LIMIT.format(name), text) for name in ("min", "max")}
    counts = {name: number_in(match[1]) or 0 for name, match in limits.items() if match}
    nodes = {name: -(-count // hosts.slots) for name, count in counts.items()}
    least = min(max(1, nodes.get("min", hosts.min_nodes)), hosts.nodes)
    most = {"maxReplicas": nodes["max"]} if nodes.get("max", 0) > hosts.nodes else {}
    return replace(hosts, min_nodes=least, policies={**hosts.policies, **most})

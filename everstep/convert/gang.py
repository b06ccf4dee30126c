"""A gang scheduler's marks on a job's pods.

The train step marks its own nodes, and is itself in no gang: with these marks its pod would wait for nodes that it has
yet to make.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from everstep.convert.field_reader import number_in
from everstep.convert.source import Role, SourceJob
from everstep.runtime.platform.gang import Gang
from everstep.runtime.platform.kubernetes.scheduling import (
    COSCHEDULING_NAME,
    GROUP_NAME,
    KOORDINATOR_MINIMUM,
    KOORDINATOR_NAME,
    KOORDINATOR_QUEUE,
    KUEUE_QUEUE,
)

_GANGS = {
    KOORDINATOR_NAME: Gang.KOORDINATOR, KOORDINATOR_MINIMUM: Gang.KOORDINATOR, COSCHEDULING_NAME: Gang.COSCHEDULING,
    KUEUE_QUEUE: Gang.KUEUE, GROUP_NAME: Gang.VOLCANO,
}  # fmt: skip
CREATE, _MADE = "create it as before", "--gang makes one for the job, of --min-nodes nodes"
"""What becomes of an object beside the job, and of a gang's."""
_QUEUES = (KOORDINATOR_QUEUE, KUEUE_QUEUE)


@dataclass(frozen=True)
class Group:
    """A PodGroup in the same file."""

    minimum: int | None = None
    """How many pods it admits together; None: it does not say."""
    queue: str = ""
    """Volcano's."""


def read_group(manifest: Any) -> Group:
    """Of a PodGroup's manifest, whatever is in it."""
    spec = _spec_of(manifest)
    minimum, queue = spec.get("minMember"), spec.get("queue")
    counts = isinstance(minimum, int) and not isinstance(minimum, bool) and minimum > 0
    return Group(minimum if counts else None, queue if isinstance(queue, str) else "")


def what_becomes_of(manifest: Any, arguments: dict[str, Any]) -> str:
    """Of a PodGroup beside the job, with the train step's arguments: the step makes one with some of its fields, if it
    makes any."""
    if "gang" not in arguments:
        return CREATE
    roles = arguments.get("job_spec", {}).get("replicaSpecs", {}).values()
    least = sum(role["minReplicas"] for role in roles) or arguments["min_nodes"]
    carried = {"minMember": least, "queue": arguments.get("queue")}
    left = [str(name) for name, value in _spec_of(manifest).items() if value != carried.get(name)]
    return f"{_MADE}; not carried: {', '.join(left)}" if left else _MADE


def _spec_of(manifest: Any) -> dict[str, Any]:
    spec = manifest.get("spec") if isinstance(manifest, dict) else None
    return spec if isinstance(spec, dict) else {}


def take_gang(job: SourceJob, file: str, notes: list[str], group: Group = Group()) -> SourceJob:
    """The job with `--gang`, `--queue` and `--min-nodes` instead of such marks; adds to `notes`."""
    marks: dict[str, str] = {}
    metadata = _without_marks(job.metadata, marks)  # Kueue's queue stands there.
    roles = [_take_marks(role, marks) for role in job.roles]
    gangs = {_GANGS[name] for name in marks if name in _GANGS}
    if not gangs:
        return job
    arguments: dict[str, Any] = {"gang": str(min(gangs)), **job.arguments}
    if queues := [marks[name] for name in _QUEUES if name in marks]:
        arguments["queue"] = queues[0]
    elif group.queue and arguments["gang"] == Gang.VOLCANO:
        arguments["queue"] = group.queue
    roles = _with_minimum(roles, group.minimum)
    if minimum := marks.get(KOORDINATOR_MINIMUM):
        roles = _with_minimum(roles, number_in(minimum))
        notes.append(
            f"{file}: {KOORDINATOR_MINIMUM}={minimum}: no counterpart; nearest: the gang is of --min-nodes nodes"
        )
    return replace(job, roles=tuple(roles), arguments=arguments, metadata=metadata)


def _with_minimum(roles: Sequence[Role], minimum: int | None) -> list[Role]:
    """Of several roles each keeps its own: the minimum counts the pods of all."""
    if len(roles) > 1 or minimum is None:
        return list(roles)
    return [replace(role, min_nodes=max(1, min(minimum, role.nodes))) for role in roles]


def _take_marks(role: Role, marks: dict[str, str]) -> Role:
    """The role without its pod's marks, which are added to `marks`."""
    kept = _without_marks(role.pod.template.get("metadata", {}), marks)
    template = {name: value for name, value in role.pod.template.items() if name != "metadata"}
    return replace(role, pod=replace(role.pod, template={**template, **({"metadata": kept} if kept else {})}))


def _without_marks(metadata: dict[str, dict[str, Any]], marks: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Labels and annotations without such marks, which are added to `marks`."""
    kept: dict[str, dict[str, Any]] = {}
    for name, values in metadata.items():
        own_marks = {key: str(value) for key, value in values.items() if key in _GANGS or key in _QUEUES}
        marks |= own_marks
        if rest := {key: value for key, value in values.items() if key not in own_marks}:
            kept[name] = rest
    return kept

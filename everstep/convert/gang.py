"""A gang scheduler's marks on a job's pods.

The train step marks its own nodes, and is itself in no gang: with these marks its pod would wait for nodes that it has
yet to make.
"""

from collections.abc import Sequence
from dataclasses import replace
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
_QUEUES = (KOORDINATOR_QUEUE, KUEUE_QUEUE)


def take_gang(job: SourceJob, file: str, notes: list[str], group_minimum: int | None = None) -> SourceJob:
    """The job with `--gang`, `--queue` and `--min-nodes` instead of such marks; adds to `notes`.

    `group_minimum`: that of a PodGroup in the same file, if there is one.
    """
    marks: dict[str, str] = {}
    metadata = _without_marks(job.metadata, marks)  # Kueue's queue stands there.
    roles = [_take_marks(role, marks) for role in job.roles]
    gangs = {_GANGS[name] for name in marks if name in _GANGS}
    if not gangs:
        return job
    arguments: dict[str, Any] = {"gang": str(min(gangs)), **job.arguments}
    if queues := [marks[name] for name in _QUEUES if name in marks]:
        arguments["queue"] = queues[0]
    if group_minimum is not None:
        roles = _with_minimum(roles, group_minimum)
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

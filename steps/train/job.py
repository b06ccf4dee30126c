"""The job that a training step's flags and its job spec describe together."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from everstep.steps.entry import StepError

if TYPE_CHECKING:
    from everstep.runtime.job.spec import JobSpec
    from everstep.runtime.job.spec_reader import Said

ROLE = "worker"
"""The role that the flags are about."""
_PATHS = {
    "nodes": ("replicaSpecs", ROLE, "replicas"),
    "min_nodes": ("replicaSpecs", ROLE, "minReplicas"),
    "workers_per_node": ("replicaSpecs", ROLE, "slots"),
    "max_relaunches": ("patience", "maxRelaunches"),
    "max_restarts": ("patience", "maxRestarts"),
    "replacement_wait_s": ("patience", "replacementWait"),
    "keep_last": ("keepLast",),
    "keep_every": ("keepEvery",),
}
"""Flags that say what a spec can say too."""


class Flags(Protocol):
    """What a step's flags say of its job; a dataclass, whose defaults say nothing beside a spec."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def job(self) -> str: ...
    @property
    def job_spec(self) -> str: ...
    @property
    def nodes(self) -> int: ...
    @property
    def min_nodes(self) -> int: ...
    @property
    def workers_per_node(self) -> int: ...
    @property
    def max_relaunches(self) -> int: ...
    @property
    def max_restarts(self) -> int: ...
    @property
    def replacement_wait_s(self) -> float: ...
    @property
    def keep_last(self) -> int: ...
    @property
    def keep_every(self) -> int: ...
    def hosts_to_avoid(self) -> tuple[str, ...]: ...


def job_of(config: Flags) -> "JobSpec":
    """What the master is given. Raises StepError: the spec cannot be read, is wrong, or says otherwise than a flag.

    With a spec, a flag that is as by default says nothing.
    """
    from everstep.runtime.job.spec import JobSpec, Patience, RoleSpec
    from everstep.runtime.job.spec_reader import SpecError, spec_of

    if not config.job_spec:
        patience = Patience(
            replacement_wait_s=config.replacement_wait_s,
            max_relaunches=config.max_relaunches,
            max_restarts=config.max_restarts,
        )
        roles = {ROLE: RoleSpec(config.nodes, config.min_nodes, config.workers_per_node)}
        avoided, last, every = config.hosts_to_avoid(), config.keep_last, config.keep_every
        return JobSpec(config.job, roles, patience, avoided, keep_last=last, keep_every=every)
    text, name = _read_spec(config.job_spec)
    try:
        spec = spec_of(text, name, _flag_values(config))
    except SpecError as error:
        raise StepError("; ".join(error.problems)) from None
    avoided = dict.fromkeys([*spec.avoid_hosts, *config.hosts_to_avoid()])
    return _replace(spec, avoid_hosts=tuple(avoided))


def ranks(spec: "JobSpec") -> int:
    """Workers of all roles, when every node that is asked for is there."""
    return sum(role.nodes * role.slots for role in spec.roles.values())


def _read_spec(given: str) -> tuple[str, str]:
    """(the spec's text, its name in messages). A value that begins with `{`, or has several lines, is the text."""
    if given.lstrip().startswith("{") or "\n" in given:
        return given, "--job-spec"
    try:
        return Path(given).read_text(), given
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise StepError(f"--job-spec {given}: {why}; give a YAML file, or the spec itself as JSON") from None


def _flag_values(config: Flags) -> "list[Said]":
    from everstep.runtime.job.spec_reader import Said

    usual = {field.name: field.default for field in dataclasses.fields(config)}
    said = [Said("--job", ("job",), config.job, firm=config.job != usual["job"])]
    said.append(Said("a step that makes its nodes", ("placement",), "platform"))
    for field, path in _PATHS.items():
        value: Any = getattr(config, field)
        if value != usual[field]:
            said.append(Said(f"--{field.replace('_', '-')}", path, value))
    return said


def _replace(spec: "JobSpec", **changes: Any) -> "JobSpec":
    from msgspec.structs import replace

    return replace(spec, **changes)

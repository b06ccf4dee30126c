"""The job that a training step's flags and its job spec describe together."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from everstep.steps.entry import StepError

if TYPE_CHECKING:
    from everstep.runtime.job.spec import JobSpec
    from everstep.runtime.job.spec_reader import FlagValue

ROLE = "worker"
"""The role that the flags describe."""
_PATHS = {
    "nodes": ("replicaSpecs", ROLE, "replicas"),
    "min_nodes": ("replicaSpecs", ROLE, "minReplicas"),
    "workers_per_node": ("replicaSpecs", ROLE, "slots"),
    "spare_nodes": ("replicaSpecs", ROLE, "spareNodes"),
    "max_relaunches": ("patience", "maxRelaunches"),
    "max_restarts": ("patience", "maxRestarts"),
    "replacement_wait_s": ("patience", "replacementWait"),
    "peer_copies": ("peerCopies",),
    "keep_last": ("keepLast",),
    "keep_every": ("keepEvery",),
    "priority_class": ("priority",),
    "certify_interval": ("certifyInterval",),
    "straggler_policy": ("stragglers",),
    "loss_spike": ("lossSpike",),
    "skip_batches": ("skipBatches",),
    "certify_replay": ("certifyReplay",),
}
"""Flags for values that a spec can set, too."""


class Flags(Protocol):
    """A step's flags about its job: a dataclass, whose default values say nothing if there is a spec."""

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
    def spare_nodes(self) -> int: ...
    @property
    def max_relaunches(self) -> int: ...
    @property
    def max_restarts(self) -> int: ...
    @property
    def replacement_wait_s(self) -> float: ...
    @property
    def peer_copies(self) -> int: ...
    @property
    def keep_last(self) -> int: ...
    @property
    def keep_every(self) -> int: ...
    @property
    def certify_interval(self) -> int: ...
    @property
    def priority_class(self) -> str: ...
    @property
    def straggler_policy(self) -> str: ...
    @property
    def loss_spike(self) -> float: ...
    @property
    def skip_batches(self) -> int: ...
    @property
    def certify_replay(self) -> bool: ...
    def hosts_to_avoid(self) -> tuple[str, ...]: ...
    def hosts_in_order(self) -> tuple[str, ...]: ...
    def job_name(self) -> str: ...


def job_of(config: Flags) -> "JobSpec":
    """The spec for the master. Raises StepError: the spec cannot be read, is wrong, or contradicts a flag.

    If there is a spec, a flag with its default value says nothing.
    """
    from everstep.runtime.job.spec import JobSpec, Patience, RoleSpec, StragglerPolicy
    from everstep.runtime.job.spec_reader import SpecError, spec_of

    if not config.job_spec:
        patience = Patience(
            replacement_wait_s=config.replacement_wait_s,
            max_relaunches=config.max_relaunches,
            max_restarts=config.max_restarts,
        )
        role = RoleSpec(config.nodes, config.min_nodes, config.workers_per_node, spare_nodes=config.spare_nodes)
        roles = {ROLE: role}
        return JobSpec(
            config.job_name(),
            roles,
            patience,
            config.hosts_to_avoid(),
            host_order=config.hosts_in_order(),
            peer_copies=config.peer_copies,
            keep_last=config.keep_last,
            keep_every=config.keep_every,
            certify_interval=config.certify_interval,
            stragglers=StragglerPolicy(config.straggler_policy),
            loss_spike=config.loss_spike,
            skip_batches=config.skip_batches,
            certify_replay=config.certify_replay,
        )
    text, name = _read_spec(config.job_spec)
    try:
        spec = spec_of(text, name, _flag_values(config))
    except SpecError as error:
        raise StepError("; ".join(error.problems)) from None
    hosts_avoided = dict.fromkeys([*spec.avoid_hosts, *config.hosts_to_avoid()])
    return _replace(spec, avoid_hosts=tuple(hosts_avoided), host_order=config.hosts_in_order() or spec.host_order)


def ranks(spec: "JobSpec") -> int:
    """Workers of all roles when every requested node is there."""
    return sum(role.nodes * role.slots for role in spec.roles.values())


def _read_spec(value: str) -> tuple[str, str]:
    """(the spec's text, its name in messages). A value that begins with `{` or has several lines is the text itself."""
    if value.lstrip().startswith("{") or "\n" in value:
        return value, "--job-spec"
    try:
        return Path(value).read_text(), f"--job-spec {value}"
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise StepError(f"--job-spec {value}: {why}; give a YAML file, or the spec itself as JSON") from None


def _flag_values(config: Flags) -> "list[FlagValue]":
    from everstep.runtime.job.spec_reader import FlagValue

    usual = {field.name: field.default for field in dataclasses.fields(config)}
    flags = [FlagValue("--job", ("job",), config.job_name(), firm=bool(config.job))]
    flags.append(FlagValue("a step that makes its nodes", ("placement",), "platform"))
    for field, path in _PATHS.items():
        value: Any = getattr(config, field)
        if value != usual[field]:
            flags.append(FlagValue(f"--{field.replace('_', '-')}", path, value))
    return flags


def _replace(spec: "JobSpec", **changes: Any) -> "JobSpec":
    from msgspec.structs import replace

    return replace(spec, **changes)

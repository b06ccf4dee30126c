"""The spec that a job's own master leaves in the store for an agent that stands in for it.

A stand-in creates and deletes no node: it takes the nodes for ones that join by themselves. What only concerns the
platform is left out, the pods' templates among it, which may have what is not for the store.
"""

import msgspec
from msgspec.structs import replace

from everstep.runtime.job.spec import (
    CleanPodPolicy,
    FaultRule,
    JobSpec,
    Oom,
    Placement,
    Resources,
    RestartScope,
    RoleSpec,
)
from everstep.runtime.store import Store


def leave_spec(store: Store, spec: JobSpec) -> None:
    """Write it. Raises StoreError."""
    store.put(_key(spec.job), msgspec.json.encode(without_platform(spec)))


def read_spec(store: Store, job: str) -> JobSpec:
    """The spec that a master left. Raises NoSuchKey if none did, StoreError."""
    return msgspec.json.decode(store.get(_key(job)), type=JobSpec)


def without_platform(spec: JobSpec) -> JobSpec:
    """The spec for nodes that nobody creates. Nobody waits for a replacement, as none comes."""
    return replace(
        spec,
        placement=Placement.JOINED,
        patience=replace(spec.patience, replacement_wait_s=0.0),
        roles={name: _role_without_platform(role) for name, role in spec.roles.items()},
        hosts="",
        avoid_hosts=(),
        host_order=(),
        oom=Oom(),
        clean_pod_policy=CleanPodPolicy.ALL,
        priority_class="",
        scheduler_name="",
    )


def _role_without_platform(role: RoleSpec) -> RoleSpec:
    return replace(
        role,
        scale_out_timeout_s=0.0,
        restart_time_limit_s=0.0,
        spare_nodes=0,
        waits_for=(),
        priority=0,
        resources=Resources(),
        restart_scope=RestartScope.POD,
        fault_rules=tuple(_rule_in_place(rule) for rule in role.fault_rules),
        template={},
    )


def _rule_in_place(rule: FaultRule) -> FaultRule:
    return replace(rule, restart_scope=RestartScope.POD)


def _key(job: str) -> str:
    return f"jobs/{job}/stand-in.json"

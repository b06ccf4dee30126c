"""The contradictions in a job spec, found once, where the spec enters."""

import re
from collections.abc import Iterator

import msgspec

from everstep.runtime.job.spec import (
    LAUNCHER,
    TENSORFLOW_ROLES,
    CleanPodPolicy,
    EndingPolicy,
    JobSpec,
    Oom,
    Patience,
    Placement,
    RestartPolicy,
    RestartScope,
    RoleSpec,
)
from everstep.runtime.job.topology import TopologyError, switches
from everstep.runtime.protocol.rounds import Framework

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_ROLE = re.compile(r"[a-z][a-z0-9]{0,30}")


def problems(spec: JobSpec) -> list[str]:
    """The contradictions in the spec, one line each, `path: what`; empty if the job can run."""
    each = (line for name in spec.roles for line in _of_role(spec, name))
    return [*_of_job(spec), *each, *_of_waiting(spec), *_of_framework(spec)]


def _of_job(spec: JobSpec) -> Iterator[str]:
    if not _NAME.fullmatch(spec.job):
        yield f"job: {spec.job!r} is not a valid job name; use letters, digits and . _ -, a letter or digit first"
    if not spec.roles:
        yield "roles: a job needs at least one role"
    elif all(role.complete_policy is EndingPolicy.NONE for role in spec.roles.values()):
        yield "complete_policy: it is None for every role, so the job could never succeed"
    if spec.complete_policy is EndingPolicy.NONE:
        yield "complete_policy: None would never let the job succeed; use All, Any or Rank0"
    if spec.keep_last < 0 or spec.keep_every < 0:
        yield f"keep_last, keep_every: {min(spec.keep_last, spec.keep_every)} is negative"
    if not spec.time_limit_s >= 0:
        yield f"time_limit_s: {spec.time_limit_s} is not a number of 0 or more"
    for name in ("certify_interval", "skip_batches", "peer_copies"):
        if getattr(spec, name) < 0:
            yield f"{name}: {getattr(spec, name)} is negative"
    if spec.loss_spike and not spec.loss_spike > 1:
        yield f"loss_spike: {spec.loss_spike:g} times the median is not a spike; give more than 1, or 0"
    if (spec.loss_spike or spec.skip_batches or spec.certify_replay) and not spec.certify_interval:
        yield "loss_spike, skip_batches, certify_replay: they need certified states; set certify_interval, too"
    if spec.keep_every and not spec.keep_last:
        yield "keep_every: with keep_last 0 every checkpoint is kept; leave one of them out"
    for field in msgspec.structs.fields(Patience):
        value = getattr(spec.patience, field.name)
        if not value >= 0:
            yield f"patience.{field.name}: {value} is not a number of 0 or more"
    if spec.patience.silence_s == 0:
        yield "patience.silence_s: with 0 every node would be lost at once"
    if not spec.hang.timeout_s > 0:
        yield f"hang.timeout_s: {spec.hang.timeout_s:g} is not above 0"
    if not spec.hang.start_timeout_s > 0:
        yield f"hang.start_timeout_s: {spec.hang.start_timeout_s:g} is not above 0"
    if not spec.oom.factor > 1:
        yield f"oom.factor: {spec.oom.factor:g} does not increase the memory; use more than 1"
    if spec.oom.increment_bytes < 1 or spec.oom.limit_bytes < 1:
        yield "oom: increment_bytes and limit_bytes must be above 0"
    if spec.oom != Oom() and not any(role.resources.memory_bytes for role in spec.roles.values()):
        yield "oom: no role says how much memory its nodes have"
    if spec.placement is Placement.JOINED and spec.clean_pod_policy is not CleanPodPolicy.ALL:
        yield "clean_pod_policy: nodes that join by themselves (placement joined) cannot be removed"
    if spec.placement is Placement.JOINED and spec.avoid_hosts:
        yield "avoid_hosts: nodes that join by themselves (placement joined) cannot be placed"
    if spec.placement is Placement.JOINED and spec.hosts not in ("", JobSpec().hosts):
        yield "hosts: nodes that join by themselves (placement joined) cannot be placed"
    if spec.placement is Placement.JOINED and (spec.priority_class or spec.scheduler_name):
        field = "priority_class" if spec.priority_class else "scheduler_name"
        yield f"{field}: nodes that join by themselves (placement joined) are not pods of this job"
    try:
        switches(spec.topology)
    except TopologyError as error:
        yield f"topology: line {error}"


def _of_framework(spec: JobSpec) -> Iterator[str]:
    if spec.framework is Framework.TENSORFLOW:
        for name, role in spec.roles.items():
            if name not in TENSORFLOW_ROLES:
                yield f"roles.{name}: framework tensorflow has the roles {', '.join(TENSORFLOW_ROLES)}"
            if role.slots != 1:
                yield f"roles.{name}.slots: a node is one task of TensorFlow's cluster; use more nodes instead"
        if "chief" in spec.roles and spec.roles["chief"].most > 1:
            yield "roles.chief.nodes: TensorFlow's cluster has one chief"
    if spec.framework is Framework.HOROVOD and not (LAUNCHER in spec.roles and len(spec.roles) > 1):
        yield f"framework: horovod needs a role {LAUNCHER}, which runs horovodrun, and another one for its hosts"


def _of_role(spec: JobSpec, name: str) -> Iterator[str]:
    role, at = spec.roles[name], f"roles.{name}"
    if not _ROLE.fullmatch(name):
        yield f"{at}: {name!r} is not a valid role name; use lower-case letters and digits, a letter first"
    for field in ("nodes", "min_nodes", "slots", "node_unit"):
        if getattr(role, field) < 1:
            yield f"{at}.{field}: {getattr(role, field)}; must be at least 1"
            return
    if role.min_nodes > role.nodes:
        yield f"{at}.min_nodes: {role.min_nodes} is more than nodes, {role.nodes}"
    elif role.least > role.nodes:
        yield f"{at}.node_unit: no multiple of {role.node_unit} lies between {role.min_nodes} and {role.nodes} nodes"
    if role.max_nodes and role.max_nodes < role.nodes:
        yield f"{at}.max_nodes: {role.max_nodes} is less than nodes, {role.nodes}"
    for field in ("spare_nodes", "restart_time_limit_s", "restart_timeout_s", "scale_out_timeout_s", "restart_limit"):
        if (getattr(role, field) or 0) < 0:
            yield f"{at}.{field}: {getattr(role, field)} is negative"
    if role.resources.cpu < 0 or role.resources.memory_bytes < 0 or any(n < 0 for n in role.resources.others.values()):
        yield f"{at}.resources: an amount is negative"
    if role.resources.memory_bytes > spec.oom.limit_bytes:
        yield f"{at}.resources: its memory is more than oom.limit_bytes, {spec.oom.limit_bytes}"
    if role.restart_policy is RestartPolicy.EXIT_CODE and not any(rule.exit_codes for rule in role.fault_rules):
        yield f"{at}.restart_policy: {role.restart_policy.value} needs a fault rule with exit codes"
    if role.restart_policy is RestartPolicy.NEVER and role.restart_limit and not role.fault_rules:
        yield f"{at}.restart_limit: has no effect with the restart policy Never"
    for number, rule in enumerate(role.fault_rules):
        if bool(rule.exit_codes) == bool(rule.events):
            yield f"{at}.fault_rules[{number}]: give it either exit codes or events"
        if rule.events and rule.restart_policy is RestartPolicy.EXIT_CODE:
            yield f"{at}.fault_rules[{number}]: the restart policy ExitCode is for exit codes, not events"
        if spec.placement is Placement.JOINED and rule.restart_scope is not RestartScope.POD:
            yield f"{at}.fault_rules[{number}]: nodes that join by themselves (placement joined) cannot be replaced"
    if spec.placement is Placement.JOINED:
        pointless = {
            "scale_out_timeout_s", "restart_time_limit_s", "spare_nodes", "waits_for", "priority", "resources",
            "restart_scope", "template",
        }  # fmt: skip
        defaults = RoleSpec(1, 1)
        for field in sorted(pointless):
            if getattr(role, field) != getattr(defaults, field):
                yield f"{at}.{field}: is not possible for nodes that join by themselves (placement joined)"


def _of_waiting(spec: JobSpec) -> Iterator[str]:
    for name, role in spec.roles.items():
        for awaited in role.waits_for:
            if awaited not in spec.roles:
                yield f"roles.{name}.waits_for: the job has no role {awaited!r}, only {', '.join(spec.roles)}"
    started_roles: set[str] = set()
    while True:
        free = {
            n
            for n, role in spec.roles.items()
            if n not in started_roles and set(role.waits_for) & set(spec.roles) <= started_roles
        }
        if not free:
            break
        started_roles |= free
    if circle := [name for name in spec.roles if name not in started_roles]:
        yield f"roles.{circle[0]}.waits_for: {', '.join(circle)} wait for each other"

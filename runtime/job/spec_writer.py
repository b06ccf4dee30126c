"""A spec as the mapping that `reader.spec_of` reads: for specs made in Python that travel as text."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from everstep.runtime.job.spec import FaultRule, Hang, JobSpec, Oom, Patience, Resources, RoleSpec
from everstep.runtime.job.spec_fields import HANG, JOB, OOM, PATIENCE, ROLE, RULE, Fields


def mapping_of(spec: JobSpec) -> Mapping[str, Any]:
    """Plain data in the spelling of the YAML; what is as by default is left out. `reader.spec_of` gives it back."""
    found = _changed(spec, JobSpec(), JOB)
    nested: tuple[tuple[str, msgspec.Struct, msgspec.Struct, Fields], ...] = (
        ("patience", spec.patience, Patience(), PATIENCE),
        ("hang", spec.hang, Hang(), HANG),
        ("oom", spec.oom, Oom(), OOM),
    )
    for name, part, usual, fields in nested:
        if changed := _changed(part, usual, fields):
            found[name] = changed
    return {**found, "replicaSpecs": {name: _role(role) for name, role in spec.roles.items()}}


def _role(role: RoleSpec) -> Mapping[str, Any]:
    found = {"replicas": role.nodes, **_changed(role, RoleSpec(role.nodes, role.nodes), ROLE)}
    if role.resources != Resources():
        amounts = {"cpu": role.resources.cpu, "memory": role.resources.memory_bytes}
        found["resources"] = {**{name: n for name, n in amounts.items() if n}, **role.resources.others}
    if role.fault_rules:
        found["faultTolerantPolicy"] = [_changed(rule, FaultRule(), RULE) for rule in role.fault_rules]
    return found


def _changed(part: msgspec.Struct, usual: msgspec.Struct, fields: Fields) -> dict[str, Any]:
    pairs = ((name, getattr(part, field), getattr(usual, field)) for name, (field, _) in fields.items())
    return {name: _plain(value) for name, value, default in pairs if value != default}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(inside) for inside in value]
    return value.value if isinstance(value, Enum) else value

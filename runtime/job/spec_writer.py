"""A spec as the mapping that `spec_reader` reads: for specs made in Python that travel as text."""

from collections.abc import Mapping
from typing import Any

import msgspec

from everstep.runtime.job.spec import FaultRule, JobSpec, Resources, RoleSpec
from everstep.runtime.job.spec_fields import fields


def mapping_of(spec: JobSpec) -> Mapping[str, Any]:
    """Plain data in the spelling of the YAML; fields at their default are left out. `spec_reader` reads it back."""
    return {**_changes(spec, JobSpec()), "replicaSpecs": {name: _role(role) for name, role in spec.roles.items()}}


def _role(role: RoleSpec) -> Mapping[str, Any]:
    return {"replicas": role.nodes, **_changes(role, RoleSpec(role.nodes, role.nodes))}


def _changes(part: msgspec.Struct, usual: msgspec.Struct) -> dict[str, Any]:
    pairs = ((name, getattr(part, info.name), getattr(usual, info.name)) for name, info in fields(type(part)).items())
    return {name: _plain(value, default) for name, value, default in pairs if value != default}


def _plain(value: Any, usual: Any) -> Any:
    if isinstance(value, Resources):
        amounts = {"cpu": value.cpu, "memory": value.memory_bytes}
        return {**{name: amount for name, amount in amounts.items() if amount}, **value.others}
    if isinstance(value, msgspec.Struct):
        return _changes(value, FaultRule() if isinstance(value, FaultRule) else usual)
    if isinstance(value, tuple):
        return [_plain(inside, None) for inside in value]
    return msgspec.to_builtins(value)

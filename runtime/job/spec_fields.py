"""How the fields of a spec are spelled in YAML: `spec_reader` reads them and `spec_writer` writes them."""

from collections.abc import Mapping
from functools import cache

import msgspec
from msgspec.structs import FieldInfo

_OTHERWISE = {
    "roles": "replicaSpecs", "nodes": "replicas", "min_nodes": "minReplicas", "max_nodes": "maxReplicas",
    "fault_rules": "faultTolerantPolicy", "events": "exceptionalEvent", "cooldown_s": "coolDown",
    "handover_s": "handOver", "priority_class": "priority", "framework": "frameworkType",
}  # fmt: skip
"""Those that AITrainingJob and ElasticJob spell otherwise than in camel case, without the unit."""


@cache
def fields(kind: type[msgspec.Struct]) -> Mapping[str, FieldInfo]:
    """Name in the file -> the struct's field."""
    return {spelling_of(info.name): info for info in msgspec.structs.fields(kind)}


def spelling_of(field: str) -> str:
    """The name in the file of a struct's field."""
    first, *more = field.removesuffix("_s").removesuffix("_bytes").split("_")
    return _OTHERWISE.get(field) or first + "".join(map(str.capitalize, more))

"""docs/reference/job-spec.md: the fields of a job spec, from `runtime/job/spec.py`."""

import ast
import enum
import inspect
import typing

import msgspec

from docs.rendering.source import cell, definition, documented_names, parse
from everstep.flags import field_help
from everstep.runtime.job import spec
from everstep.runtime.job.spec_fields import fields
from everstep.runtime.protocol.rounds import Framework

SOURCE = "runtime/job/spec.py"
STRUCTS = (spec.JobSpec, spec.RoleSpec, spec.Resources, spec.FaultRule, spec.Patience, spec.Hang, spec.Oom)
ENUMS = (
    spec.ReplicaType, spec.RestartPolicy, spec.RestartScope, spec.EndingPolicy, spec.CleanPodPolicy, spec.HangPolicy,
    spec.StragglerPolicy, spec.NodeEvent, Framework,
)  # fmt: skip
_FILLED = {"job", "hosts", "placement"}
"""Fields that the program that runs the job fills."""
_SAYS = {"replicaSpecs": "needed", "replicas": "needed", "minReplicas": "`replicas`", "others": ""}
"""Defaults that only the reader of files knows."""


def _default(name: str, value: object) -> str:
    if name in _SAYS:
        return _SAYS[name]
    if isinstance(value, tuple) and value:
        return f"`{', '.join(map(str, value))}`"
    if isinstance(value, enum.Enum):
        return f"`{value.value}`"
    return f"`{value}`" if isinstance(value, int | float | str) and value != "" else ""


def _name(field: str) -> str:
    return "any other" if field == "others" else f"`{field}`"


def _type(kind: object) -> str:
    if isinstance(kind, type):
        return kind.__name__
    return str(kind).replace("everstep.runtime.job.spec.", "").replace(" | None", "")


def _meaning(kind: type[msgspec.Struct], field: str, type_: object) -> str:
    """The field's own words; else a link to its type's section."""
    if text := field_help(kind, field):
        return cell(text)
    return f"See [{_type(type_)}](#{_type(type_).lower()})." if type_ in (*STRUCTS, *ENUMS) else ""


def _struct(kind: type[msgspec.Struct]) -> str:
    hints = typing.get_type_hints(kind)
    rows = "".join(
        f"| {_name(name)} | {cell(_type(hints[info.name]))} | {_default(name, info.default)} "
        f"| {_meaning(kind, info.name, hints[info.name])} |\n"
        for name, info in fields(kind).items()
        if name not in _FILLED
    )
    head = "| field | type | default | meaning |\n|---|---|---|---|\n"
    return f"## {kind.__name__}\n{inspect.getdoc(kind)}\n\n{head}{rows}\n"


def _enum(kind: type[enum.Enum]) -> str:
    node = definition(parse(f"{kind.__module__.removeprefix('everstep.').replace('.', '/')}.py"), kind.__name__)
    assert isinstance(node, ast.ClassDef)
    rows = "".join(f"| `{ast.literal_eval(v)}` | {cell(text)} |\n" for _, _, v, text in documented_names(node))
    return f"## {kind.__name__}\n{inspect.getdoc(kind)}\n\n| value | meaning |\n|---|---|\n{rows}\n"


def render() -> str:
    """The page."""
    return f"""\
# The job spec

Made from `{SOURCE}` by `make reference`; a test keeps it true. The same structs are `everstep.job` in Python, where
fields are spelled `min_nodes` and times end in `_s`.

A job spec is a YAML file for `--job-spec` of a pipeline, of the train step and of `everstep launch`. An unknown or
contradictory field is refused by its name and line. Sizes may be written as Kubernetes does (`4Gi`, `500m`).

{"".join(map(_struct, STRUCTS))}{"".join(map(_enum, ENUMS))}"""

"""A job's spec from YAML (or from the same as Python dictionaries), in the spelling of AITrainingJob and ElasticJob.

    job: llama
    replicaSpecs:
      worker: {replicas: 3, minReplicas: 1, maxReplicas: 5, slots: 8, resources: {memory: 64Gi, nvidia.com/gpu: 8}}

The structs of `spec` say which fields there are, and of which type. Unknown, misspelt, impossible and contradictory
fields are all refused together, each by name and line; so is a field that a flag says otherwise. The only module of the
brain that needs PyYAML.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, get_args, get_origin

import msgspec
import yaml
from msgspec.structs import FieldInfo, replace

from everstep.runtime.job import pod_template, spec_values
from everstep.runtime.job.spec import JobSpec, Resources, RestartPolicy, RoleSpec
from everstep.runtime.job.spec_fields import fields, spelling_of
from everstep.runtime.job.spec_problems import problems

Path = tuple[str | int, ...]
"""Where something stands, as the file spells it: `("replicaSpecs", "worker", "faultTolerantPolicy", 0)`."""


class FlagValue(NamedTuple):
    """A field that something else says besides the file: a flag."""

    by: str
    """`--nodes`."""
    path: tuple[str, ...]
    """As the file spells it: `("replicaSpecs", "worker", "replicas")`."""
    value: Any
    """As the file would write it."""
    firm: bool = True
    """The file may not say otherwise; else it may, and only what it leaves out is filled in."""


class SpecError(ValueError):
    """What is wrong with a spec, one line each: `file line N: field: what, and how to fix it`."""

    def __init__(self, wrong: list[str]) -> None:
        super().__init__("\n".join(wrong))
        self.problems = wrong


_ELSEWHERE = {
    "plugin": "not needed: with frameworkType: horovod nodes find ssh keys and the discovery script",
}
"""Fields of other systems that a reader of theirs may try here."""


_NEEDED: Mapping[Any, tuple[str, ...]] = {JobSpec: ("job", "replicaSpecs"), RoleSpec: ("replicas",)}


def spec_of(text: str | Mapping[str, Any], name: str = "job.yaml", flags: Iterable[FlagValue] = ()) -> JobSpec:
    """The spec that a YAML text, or a mapping like it, describes together with what else is said. Raises SpecError."""
    reading = _Reading(name, text)
    for entry in flags:
        reading.merge(entry)
    spec = reading.with_memory_limit(reading.with_tolerance(reading.struct(JobSpec, reading.top, ())))
    for problem in () if reading.wrong else problems(spec):
        reading.refuse_contradiction(problem)
    if reading.wrong:
        raise SpecError([problem for _, problem in sorted(reading.wrong, key=lambda match: match[0])])
    return spec


def role_names(text: str, name: str = "job.yaml") -> list[str]:
    """The roles that a YAML text has, whatever else is wrong with it. Raises SpecError where it is no mapping."""
    roles = _Reading(name, text).top.get("replicaSpecs")
    return [*roles] if isinstance(roles, dict) else []


class _Reading:
    """A text as plain data, the line of each field, and what was found wrong so far."""

    def __init__(self, name: str, text: str | Mapping[str, Any]) -> None:
        """Raises SpecError."""
        self._name = name
        self._lines = dict[Path, int]()
        self._flags = dict[Path, str]()
        """What says a field that the file does not say."""
        self.wrong: list[tuple[int, str]] = []
        """Line, 0 for what stands in no file; the problem."""
        self.top = _parse_yaml(text, name, self._lines) if isinstance(text, str) else _plain(text)
        if not isinstance(self.top, dict):
            raise SpecError([f"{name}: a mapping is needed, with job and replicaSpecs"])

    def refuse(self, path: Path, what: str, missing: str = "") -> None:
        """`missing`: the field that is wanted there."""
        self._refuse(self._lines.get(path, 0), self._flags.get(path) or _path_text((*path, missing)), what)

    def _refuse(self, line: int, at: str, what: str) -> None:
        self.wrong.append((line, f"{self._name} line {line}: {at}: {what}" if line else f"{self._name}: {at}: {what}"))

    def refuse_contradiction(self, problem: str) -> None:
        """Refuse one of `spec_problems.problems`, by the names and lines of the file; by the line of the field around
        it, if need be."""
        field, _, what = problem.partition(": ")
        inside: Any = self.top
        path: Path = ()
        for part in _parts(field, inside["replicaSpecs"]):
            name = part if path == ("replicaSpecs",) else spelling_of(part)
            key: Any = int(part) if isinstance(inside, list) else name
            if not isinstance(inside, list) and key not in inside:
                break
            path, inside = (*path, key), inside[key]
            if not isinstance(inside, dict | list):
                break
        if path:
            self.refuse(path, what)
        else:
            self._refuse(0, field, what)

    def merge(self, flag: FlagValue) -> None:
        """Fill in what the file leaves out; refuse what it says otherwise."""
        inside, kind, last = self.top, JobSpec, flag.path[-1]
        for key in flag.path[:-1]:
            if key not in inside and flag.path[0] == "replicaSpecs":
                if key != "replicaSpecs":
                    self.refuse(("replicaSpecs",), f"{flag.by} refers to {key}; there is {', '.join(inside)}")
                return
            inside = inside.setdefault(key, {})
            if not isinstance(inside, dict):
                return  # Refused when it is read.
            kind = RoleSpec if flag.path[0] == "replicaSpecs" else fields(kind)[key].type
        if last not in inside:
            inside[last], self._flags[flag.path] = flag.value, flag.by
        elif flag.firm and _differ(fields(kind)[last], inside[last], flag.value):
            self.refuse(flag.path, f"{inside[last]!r} here, but {flag.by} says {flag.value!r}; say it in one place")

    def with_tolerance(self, spec: JobSpec) -> JobSpec:
        """The spec, whose roles without a restart policy have Never if the job is not `faultTolerant`."""
        if spec.fault_tolerant or self.wrong:
            return spec
        role_texts = self.top["replicaSpecs"]
        never = {
            name: role if "restartPolicy" in role_texts[name] else replace(role, restart_policy=RestartPolicy.NEVER)
            for name, role in spec.roles.items()
        }
        return replace(spec, roles=never)

    def with_memory_limit(self, spec: JobSpec) -> JobSpec:
        """The spec, whose nodes may have at least the memory that their roles ask for, if it does not say a limit."""
        if self.wrong or "limit" in self.top.get("oom", {}):
            return spec
        most = max([spec.oom.limit_bytes, *(role.resources.memory_bytes for role in spec.roles.values())])
        return replace(spec, oom=replace(spec.oom, limit_bytes=most))

    def struct(self, kind: Any, raw: Any, path: Path) -> Any:
        """The struct; where something is wrong, some struct of that kind, and the problem is noted."""
        if not isinstance(raw, dict):
            fields_hint = f"with {', '.join(fields(kind))}" if kind is not Resources else "like {cpu: 2, memory: 4Gi}"
            self.refuse(path, f"a mapping is needed, {fields_hint}")
            raw = {}
        if kind is Resources:
            return self._resources(raw, path)
        values_by_field = dict[str, Any]()
        for key, value in raw.items():
            if (field := fields(kind).get(key)) is None:
                self.refuse((*path, key), _unknown(key, kind))
            elif (value := self._value(field, value, (*path, key))) is not None:
                values_by_field[field.name] = value
        for key in _NEEDED.get(kind, ()):
            if key not in raw and (raw or not path):
                self.refuse(path, "missing", key)
        if kind is RoleSpec:
            values_by_field = {"nodes": 1, "min_nodes": values_by_field.get("nodes", 1), **values_by_field}
            if (
                amounts := pod_template.amounts_of(values_by_field.get("template", {}))
            ) and "resources" not in values_by_field:
                values_by_field["resources"] = self._resources(amounts, (*path, "template"))
        return kind(**values_by_field)

    def _value(self, field: FieldInfo, value: Any, path: Path) -> Any:
        """What the field has; None where that is wrong."""
        inner = next((member for member in get_args(field.type) if _is_struct(member)), None)
        if _is_struct(field.type):
            return self.struct(field.type, value, path)
        if inner is None:
            try:
                return spec_values.read(field, value)
            except spec_values.Wrong as error:
                self.refuse(path, f"{'this' if isinstance(value, dict) else repr(value)} is not {error}")
        elif get_origin(field.type) is tuple and isinstance(value, list):
            return tuple(self.struct(inner, item, (*path, number)) for number, item in enumerate(value))
        elif get_origin(field.type) is dict and isinstance(value, dict):
            return {name: self.struct(inner, item, (*path, name)) for name, item in value.items()}
        else:
            lacks = "a mapping from roles to what they are" if get_origin(field.type) is dict else "a list of rules"
            self.refuse(path, f"{lacks} is needed")
        return None

    def _resources(self, raw: Mapping[str, Any], path: Path) -> Resources:
        amounts = dict[str, float]()
        for key, value in raw.items():
            try:
                amounts[key] = spec_values.quantity(value)
            except spec_values.Wrong as error:
                self.refuse((*path, key), f"{value!r} is not {error}")
        cpu, memory = amounts.pop("cpu", 0.0), int(amounts.pop("memory", 0))
        return Resources(cpu, memory, amounts)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _path_text(path: Path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path if part != "").lstrip(".")


def _parts(field: str, roles: Iterable[str]) -> list[str]:
    """Of a path of the spec; a role's name is one, whatever it has in it."""
    role_paths = [f"roles.{role}" for role in roles if re.match(rf"roles\.{re.escape(role)}(?![^.[])", field)]
    role = max(role_paths, key=len, default="")
    return [*role.split(".", 1)[: 2 if role else 0], *re.findall(r"[^.\[\]]+", field.removeprefix(role))]


def _differ(field: FieldInfo, first: Any, second: Any) -> bool:
    """Does the field read them as different values?"""
    try:
        return spec_values.read(field, first) != spec_values.read(field, second)
    except spec_values.Wrong:
        return first != second


def _unknown(key: str, kind: type[msgspec.Struct]) -> str:
    if key in _ELSEWHERE:
        return _ELSEWHERE[key]
    field_names = fields(kind)
    names = {name.lower(): name for name in field_names}
    names |= {info.name.replace("_", "").removesuffix("s"): name for name, info in field_names.items()}
    close = difflib.get_close_matches(key.replace("_", "").lower(), names, 1, 0.5)
    return "unknown; " + (f"did you mean {names[close[0]]}?" if close else f"known are {', '.join(field_names)}")


def _parse_yaml(text: str, name: str, lines: dict[Path, int]) -> Any:
    """The text as plain data; `lines` gets where each field stands. Raises SpecError."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else _load_node(loader, node, lines, ())
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise SpecError([f"{name} line {line}: {error.problem}"]) from error
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError([f"{name}: {error}"]) from error
    finally:
        loader.dispose()


def _load_node(loader: yaml.SafeLoader, node: yaml.Node, lines: dict[Path, int], path: Path) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_load_node(loader, value, lines, (*path, number)) for number, value in enumerate(node.value)]
    if not isinstance(node, yaml.MappingNode):
        return loader.construct_object(node)
    fields = dict[str, Any]()
    for key, value in node.value:
        name = loader.construct_object(key)
        if not isinstance(name, str) or name in fields:
            what = "appears twice" if isinstance(name, str) else "is not a valid field name"
            raise yaml.MarkedYAMLError(problem=f"{name}: {what}", problem_mark=key.start_mark)
        lines[(*path, name)] = key.start_mark.line + 1
        fields[name] = _load_node(loader, value, lines, (*path, name))
    return fields


def _plain(value: Any) -> Any:
    """A copy, of dicts and lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inside) for key, inside in value.items()}
    return [_plain(inside) for inside in value] if isinstance(value, list | tuple) else value

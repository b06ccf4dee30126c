"""A job's spec from YAML (or from the same as Python dictionaries), in the spelling of AITrainingJob and ElasticJob.

    job: llama
    replicaSpecs:
      worker: {replicas: 3, minReplicas: 1, maxReplicas: 5, slots: 8, resources: {memory: 64Gi, nvidia.com/gpu: 8}}

Unknown, misspelt, impossible and contradictory fields are all refused together, each by name and line; so is a field
that a flag says otherwise. The only module of the brain that needs PyYAML.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import yaml

from everstep.runtime.job import spec_values
from everstep.runtime.job.spec import FaultRule, Hang, JobSpec, Oom, Patience, Resources, RoleSpec, problems
from everstep.runtime.job.spec_fields import HANG, JOB, OOM, PATIENCE, ROLE, RULE, Fields


class Said(NamedTuple):
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
    """What is wrong with a spec, one line each: `file line N: field: what, and how to mend it`."""

    def __init__(self, wrong: list[str]) -> None:
        super().__init__("\n".join(wrong))
        self.problems = wrong


class _Item(NamedTuple):
    """A value and where it stands; line 0: in no file."""

    value: Any
    line: int
    by: str = ""
    """What says it where the file does not."""


class _Reading:
    """What was found so far, and where each field of the spec stands."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.wrong: list[tuple[int, str]] = []
        self._places: dict[str, tuple[str, int]] = {}

    def refuse(self, line: int, text: str) -> None:
        self.wrong.append((line, text))

    def stands(self, field: str, path: str, line: int) -> None:
        self._places[field] = (path, line)

    def contradiction(self, problem: str) -> None:
        """One of `spec.problems`, told with the names and lines of the file."""
        field, _, text = problem.partition(": ")
        known = next((f for f in _shorter(field) if f in self._places), "")
        path, line = self._places.get(known, (field, 0))
        self.refuse(line, f"{path}: {text}")

    def lines(self) -> list[str]:
        at = sorted(self.wrong, key=lambda found: found[0])
        return [f"{self._name} line {line}: {text}" if line else f"{self._name}: {text}" for line, text in at]


def _shorter(field: str) -> list[str]:
    parts = re.split(r"(?=[.\[])", field)
    return ["".join(parts[:end]) for end in range(len(parts), 0, -1)]


_ELSEWHERE = {
    "frameworkType": "not needed: workers find RANK, WORLD_SIZE and MASTER_ADDR in their environment",
    "plugin": "not built: hosts need no ssh and no discovery script here",
    "faultTolerant": "not needed: every job is; say restartPolicy: Never for one that is not",
    "template": "not built: nodes run `everstep`'s agent; give a role its resources",
    "schedulerName": "not built: pods go to the cluster's own scheduler",
    "replicaType": "not needed: the name of the role says it",
    "timeLimit": "not built: give the step's Argo template an activeDeadlineSeconds",
}
"""Fields of other systems that a reader of theirs may try here."""


def spec_of(text: str | Mapping[str, Any], name: str = "job.yaml", said: Iterable[Said] = ()) -> JobSpec:
    """The spec that a YAML text, or a mapping like it, describes together with what else is said. Raises SpecError."""
    reading, top = _Reading(name), _top(text, name)
    for entry in said:
        _merge(reading, top, entry)
    nested = {"patience": PATIENCE, "hang": HANG, "oom": OOM, "replicaSpecs": {}}
    fields = _fields(reading, top, JOB, "", "", nested)
    for key, kind, known in (("patience", Patience, PATIENCE), ("hang", Hang, HANG), ("oom", Oom, OOM)):
        if key in top.value:
            fields[key] = kind(**_fields(reading, top.value[key], known, f"{key}.", f"{key}."))
    roles = top.value.get("replicaSpecs")
    for wanted in ("job", "replicaSpecs"):
        if wanted not in top.value:
            reading.refuse(top.line, f"{wanted}: missing")
    if roles and not isinstance(roles.value, dict):
        reading.refuse(roles.line, "replicaSpecs: a mapping from roles to what they are is needed")
    elif roles:
        reading.stands("roles", "replicaSpecs", roles.line)
        fields["roles"] = {str(role): _role(reading, str(role), item) for role, item in roles.value.items()}
    if not reading.wrong:
        spec = JobSpec(**fields)
        for problem in problems(spec):
            reading.contradiction(problem)
        if not reading.wrong:
            return spec
    raise SpecError(reading.lines())


def role_names(text: str, name: str = "job.yaml") -> list[str]:
    """The roles that a YAML text has, whatever else is wrong with it. Raises SpecError where it is no mapping."""
    roles = _top(text, name).value.get("replicaSpecs")
    return [str(role) for role in roles.value] if roles and isinstance(roles.value, dict) else []


def _top(text: str | Mapping[str, Any], name: str) -> _Item:
    root = _Item(text, 0) if not isinstance(text, str) else _parsed(text, name)
    top = _plain(root)
    if not isinstance(top.value, dict):
        raise SpecError([f"{name}: a mapping is needed, with job and replicaSpecs"])
    return top


def _merge(reading: _Reading, top: _Item, said: Said) -> None:
    """Fill in what the file leaves out; refuse what it says otherwise."""
    inside, above, last = top.value, said.path[:-1], said.path[-1]
    if len(above) > 1 and not _has_role(reading, top, said):
        return
    for key in above:
        inside = inside.setdefault(key, _Item({}, 0)).value
        if not isinstance(inside, dict):
            return  # Refused when it is read.
    known = inside.get(last)
    if known is None:
        inside[last] = _Item(said.value, 0, said.by)
    elif said.firm and _value(said.path, _bare(known)) != _value(said.path, said.value):
        here = f"{'.'.join(said.path)}: {_bare(known)!r}"
        reading.refuse(known.line, f"{here} here, but {said.by} says {said.value!r}; say it in one place")


def _has_role(reading: _Reading, top: _Item, said: Said) -> bool:
    """Is the role there that is spoken of?"""
    roles = top.value.get(said.path[0])
    if roles is None or not isinstance(roles.value, dict):
        return False  # Refused when it is read.
    if said.path[1] not in roles.value:
        reading.refuse(
            roles.line, f"{said.path[0]}: {said.by} is about {said.path[1]}; there is {', '.join(roles.value)}"
        )
    return said.path[1] in roles.value


def _value(path: tuple[str, ...], value: Any) -> Any:
    """What the field reads it as; itself where the field cannot have it."""
    tables: dict[str, Fields] = {"patience": PATIENCE, "hang": HANG, "oom": OOM, "replicaSpecs": ROLE}
    first, last = path[0], path[-1]
    _, read = tables.get(first, JOB)[last]
    try:
        return read(value)
    except spec_values.Wrong:
        return value


def _parsed(text: str, name: str) -> _Item:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        return _Item(None, 1) if node is None else _located(loader, node)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise SpecError([f"{name} line {line}: {error.problem}"]) from error
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError([f"{name}: {error}"]) from error
    finally:
        loader.dispose()


def _located(loader: yaml.SafeLoader, node: yaml.Node) -> _Item:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        found: dict[Any, _Item] = {}
        for key, value in node.value:
            name = loader.construct_object(key)
            if not isinstance(name, str) or name in found:
                what = "stands here twice" if isinstance(name, str) else "is no name for a field"
                raise yaml.MarkedYAMLError(problem=f"{name}: {what}", problem_mark=key.start_mark)
            found[name] = _located(loader, value)._replace(line=key.start_mark.line + 1)
        return _Item(found, line)
    if isinstance(node, yaml.SequenceNode):
        return _Item([_located(loader, value) for value in node.value], line)
    return _Item(loader.construct_object(node), line)


def _plain(item: _Item) -> _Item:
    """The same with every value an _Item, whether it came from a file or from Python."""
    value = item.value
    if isinstance(value, Mapping):
        inside = {str(k): _plain(v if isinstance(v, _Item) else _Item(v, 0)) for k, v in value.items()}
        return item._replace(value=inside)
    if isinstance(value, list | tuple):
        return item._replace(value=[_plain(v if isinstance(v, _Item) else _Item(v, 0)) for v in value])
    return item


def _bare(item: _Item) -> Any:
    if isinstance(item.value, list):
        return [_bare(inside) for inside in item.value]
    return item.value


def _fields(
    reading: _Reading, item: _Item, known: Fields, at: str, field: str, nested: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields of one struct; `at` is the path in the file, `field` that in the spec."""
    nested = nested or {}
    if not isinstance(item.value, dict):
        reading.refuse(item.line, f"{at.rstrip('.')}: a mapping is needed, with {', '.join([*known, *nested])}")
        return {}
    found = {}
    for key, given in item.value.items():
        if key in nested:
            continue
        if key not in known:
            reading.refuse(given.line, f"{at}{key}: {_unknown(key, known, nested)}")
            continue
        name, read = known[key]
        path = given.by or f"{at}{key}"
        reading.stands(f"{field}{name}", path, given.line)
        try:
            found[name] = read(_bare(given))
        except spec_values.Wrong as error:
            reading.refuse(given.line, f"{path}: {_bare(given)!r} is not {error}")
    return found


def _unknown(key: str, known: Fields, nested: Mapping[str, Any]) -> str:
    if key in _ELSEWHERE:
        return _ELSEWHERE[key]
    names = {name.lower(): name for name in [*known, *nested]}
    names |= {field.replace("_", "").removesuffix("s"): name for name, (field, _) in known.items()}
    close = difflib.get_close_matches(key.replace("_", "").lower(), names, 1, 0.5)
    return "unknown; " + (f"did you mean {names[close[0]]}?" if close else f"known are {', '.join([*known, *nested])}")


def _role(reading: _Reading, role: str, item: _Item) -> RoleSpec:
    at, field = f"replicaSpecs.{role}.", f"roles.{role}."
    reading.stands(field.rstrip("."), at.rstrip("."), item.line)
    found = _fields(reading, item, ROLE, at, field, {"resources": {}, "faultTolerantPolicy": {}})
    inside = item.value if isinstance(item.value, dict) else {}
    if inside and "replicas" not in inside:
        reading.refuse(item.line, f"{at}replicas: missing")
    found.setdefault("nodes", 1)
    found.setdefault("min_nodes", found["nodes"])
    if "resources" in inside:
        reading.stands(f"{field}resources", f"{at}resources", inside["resources"].line)
        found["resources"] = _resources(reading, inside["resources"], f"{at}resources.")
    if "faultTolerantPolicy" in inside:
        rules = inside["faultTolerantPolicy"]
        if not isinstance(rules.value, list):
            reading.refuse(rules.line, f"{at}faultTolerantPolicy: a list of rules is needed")
        else:
            found["fault_rules"] = tuple(_rule(reading, rule, at, field, n) for n, rule in enumerate(rules.value))
    return RoleSpec(**found)


def _rule(reading: _Reading, rule: _Item, at: str, field: str, number: int) -> FaultRule:
    path, inside = f"{at}faultTolerantPolicy[{number}]", f"{field}fault_rules[{number}]"
    reading.stands(inside, path, rule.line)
    return msgspec.convert(_fields(reading, rule, RULE, f"{path}.", f"{inside}."), FaultRule)


def _resources(reading: _Reading, item: _Item, at: str) -> Resources:
    if not isinstance(item.value, dict):
        reading.refuse(item.line, f"{at.rstrip('.')}: a mapping is needed, like {{cpu: 2, memory: 4Gi}}")
        return Resources()
    amounts: dict[str, float] = {}
    for key, given in item.value.items():
        try:
            amounts[key] = spec_values.quantity(given.value)
        except spec_values.Wrong as error:
            reading.refuse(given.line, f"{at}{key}: {given.value!r} is not {error}")
    cpu, memory = amounts.pop("cpu", 0.0), int(amounts.pop("memory", 0))
    return Resources(cpu, memory, amounts)

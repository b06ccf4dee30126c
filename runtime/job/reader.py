"""A job's spec from YAML (or from the same as Python dictionaries), in the spelling of AITrainingJob and ElasticJob.

    job: llama
    replicaSpecs:
      worker: {replicas: 3, minReplicas: 1, maxReplicas: 5, slots: 8, resources: {memory: 64Gi, nvidia.com/gpu: 8}}

Unknown, misspelt, impossible and contradictory fields are all refused together, each by name and line. The only
module of the brain that needs PyYAML.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import yaml

from runtime.job import values
from runtime.job.spec import (
    CleanPodPolicy,
    EndingPolicy,
    FaultRule,
    Hang,
    HangPolicy,
    JobSpec,
    Oom,
    Patience,
    Placement,
    Resources,
    RestartPolicy,
    RestartScope,
    RoleSpec,
    StragglerPolicy,
    problems,
)


class SpecError(ValueError):
    """What is wrong with a spec, one line each: `file line N: field: what, and how to mend it`."""

    def __init__(self, wrong: list[str]) -> None:
        super().__init__("\n".join(wrong))
        self.problems = wrong


class _Item(NamedTuple):
    """A value and where it stands; line 0: in no file."""

    value: Any
    line: int


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


_Fields = dict[str, tuple[str, Callable[[Any], Any]]]

_PATIENCE: _Fields = {
    "joinWindow": ("join_window_s", values.number),
    "joinTimeout": ("join_timeout_s", values.number),
    "replacementWait": ("replacement_wait_s", values.number),
    "coolDown": ("cooldown_s", values.number),
    "silence": ("silence_s", values.number),
    "leave": ("leave_s", values.number),
    "handOver": ("handover_s", values.number),
    "dump": ("dump_s", values.number),
    "maxRestarts": ("max_restarts", values.whole),
    "sameError": ("same_error", values.whole),
    "maxRelaunches": ("max_relaunches", values.whole),
    "noProgress": ("no_progress", values.whole),
}
_HANG: _Fields = {"policy": ("policy", values.one_of(HangPolicy)), "timeout": ("timeout_s", values.number)}
_OOM: _Fields = {
    "factor": ("factor", values.factor),
    "increment": ("increment_bytes", lambda value: int(values.quantity(value))),
    "limit": ("limit_bytes", lambda value: int(values.quantity(value))),
}
_RULE: _Fields = {
    "exitCodes": ("exit_codes", values.codes),
    "exceptionalEvent": ("events", values.events),
    "restartPolicy": ("restart_policy", values.one_of(RestartPolicy)),
    "restartScope": ("restart_scope", values.one_of(RestartScope)),
}
_ROLE: _Fields = {
    "replicas": ("nodes", values.whole),
    "minReplicas": ("min_nodes", values.whole),
    "maxReplicas": ("max_nodes", values.whole),
    "slots": ("slots", values.whole),
    "nodeUnit": ("node_unit", values.whole),
    "priority": ("priority", values.whole),
    "waitsFor": ("waits_for", values.texts),
    "restartPolicy": ("restart_policy", values.one_of(RestartPolicy)),
    "restartScope": ("restart_scope", values.one_of(RestartScope)),
    "restartLimit": ("restart_limit", values.whole),
    "restartTimeLimit": ("restart_time_limit_s", values.number),
    "restartTimeout": ("restart_timeout_s", values.number),
    "scaleOutTimeout": ("scale_out_timeout_s", values.number),
    "completePolicy": ("complete_policy", values.one_of(EndingPolicy)),
    "failPolicy": ("fail_policy", values.one_of(EndingPolicy)),
}
_JOB: _Fields = {
    "job": ("job", values.text),
    "placement": ("placement", values.one_of(Placement)),
    "avoidHosts": ("avoid_hosts", values.texts),
    "hosts": ("hosts", values.text),
    "topology": ("topology", values.lines),
    "stragglers": ("stragglers", values.one_of(StragglerPolicy)),
    "hardwareExitCodes": ("hardware_exit_codes", values.codes),
    "completePolicy": ("complete_policy", values.one_of(EndingPolicy)),
    "failPolicy": ("fail_policy", values.one_of(EndingPolicy)),
    "cleanPodPolicy": ("clean_pod_policy", values.one_of(CleanPodPolicy)),
}
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


def spec_of(text: str | Mapping[str, Any], name: str = "job.yaml") -> JobSpec:
    """The spec that a YAML text, or a mapping like it, describes. Raises SpecError."""
    reading = _Reading(name)
    root = _Item(text, 0) if not isinstance(text, str) else _parsed(text, name)
    top = _plain(root)
    if not isinstance(top.value, dict):
        raise SpecError([f"{name}: a mapping is needed, with job and replicaSpecs"])
    nested = {"patience": _PATIENCE, "hang": _HANG, "oom": _OOM, "replicaSpecs": {}}
    fields = _fields(reading, top, _JOB, "", "", nested)
    for key, kind, known in (("patience", Patience, _PATIENCE), ("hang", Hang, _HANG), ("oom", Oom, _OOM)):
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
        return _Item(inside, item.line)
    if isinstance(value, list | tuple):
        return _Item([_plain(v if isinstance(v, _Item) else _Item(v, 0)) for v in value], item.line)
    return item


def _bare(item: _Item) -> Any:
    if isinstance(item.value, list):
        return [_bare(inside) for inside in item.value]
    return item.value


def _fields(
    reading: _Reading, item: _Item, known: _Fields, at: str, field: str, nested: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The fields of one struct; `at` is the path in the file, `field` that in the spec."""
    nested = nested or {}
    if not isinstance(item.value, dict):
        reading.refuse(item.line, f"{at.rstrip('.')}: a mapping is needed, with {', '.join([*known, *nested])}")
        return {}
    found = {}
    for key, (value, line) in item.value.items():
        if key in nested:
            continue
        if key not in known:
            reading.refuse(line, f"{at}{key}: {_unknown(key, known, nested)}")
            continue
        name, read = known[key]
        reading.stands(f"{field}{name}", f"{at}{key}", line)
        try:
            found[name] = read(_bare(_Item(value, line)))
        except values.Wrong as error:
            reading.refuse(line, f"{at}{key}: {_bare(_Item(value, line))!r} is not {error}")
    return found


def _unknown(key: str, known: _Fields, nested: Mapping[str, Any]) -> str:
    if key in _ELSEWHERE:
        return _ELSEWHERE[key]
    names = {name.lower(): name for name in [*known, *nested]}
    names |= {field.replace("_", "").removesuffix("s"): name for name, (field, _) in known.items()}
    close = difflib.get_close_matches(key.replace("_", "").lower(), names, 1, 0.5)
    return "unknown; " + (f"did you mean {names[close[0]]}?" if close else f"known are {', '.join([*known, *nested])}")


def _role(reading: _Reading, role: str, item: _Item) -> RoleSpec:
    at, field = f"replicaSpecs.{role}.", f"roles.{role}."
    reading.stands(field.rstrip("."), at.rstrip("."), item.line)
    found = _fields(reading, item, _ROLE, at, field, {"resources": {}, "faultTolerantPolicy": {}})
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
    return msgspec.convert(_fields(reading, rule, _RULE, f"{path}.", f"{inside}."), FaultRule)


def _resources(reading: _Reading, item: _Item, at: str) -> Resources:
    if not isinstance(item.value, dict):
        reading.refuse(item.line, f"{at.rstrip('.')}: a mapping is needed, like {{cpu: 2, memory: 4Gi}}")
        return Resources()
    amounts: dict[str, float] = {}
    for key, (value, line) in item.value.items():
        try:
            amounts[key] = values.quantity(value)
        except values.Wrong as error:
            reading.refuse(line, f"{at}{key}: {value!r} is not {error}")
    cpu, memory = amounts.pop("cpu", 0.0), int(amounts.pop("memory", 0))
    return Resources(cpu, memory, amounts)

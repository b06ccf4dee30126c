"""The drill: the experiments of a training, one after the other, each with a fault, and the verdict on all.

Put it into your own pipeline with the arguments of your train step:

    drill(after=tokens, nodes=4, iterations=500, dataset=tokens.uri, script="mine.py")
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from everstep.runtime.chaos.injector import BY_CHAOSBLADE, Kind
from everstep.runtime.job.spec import JobSpec
from everstep.runtime.job.spec_writer import mapping_of
from everstep.steps import train, verdict
from everstep.steps.chaos.template import task as chaos_task
from everstep.steps.entry import StepError
from everstep.steps.template import StepTask
from everstep.steps.train.job import ROLE, job_of
from everstep.steps.verdict.config import Experiment

_ENDED = ("Succeeded", "Failed", "Errored", "Skipped", "Omitted")
"""How a task may have ended for the next experiment to begin."""
_DECIDED = ("job_spec", "max_relaunches", "replacement_wait_s")
"""Flags of the train step that the drill merges or decides itself."""


@dataclass(frozen=True)
class Case:
    """An experiment: the fault, how the job differs from that of the reference, and the limits."""

    kind: Kind
    seconds: float
    """How long no new iteration may be done after it, besides a start of nodes."""
    lost: float = 1
    """Iterations that may be computed again; inf: as many as lie between two checkpoints in the store."""
    chaos: dict[str, Any] = field(default_factory=dict)
    """Arguments of the fault's step."""
    role: dict[str, Any] = field(default_factory=dict)
    """Fields of the role in the job's spec."""
    train: dict[str, Any] = field(default_factory=dict)
    """Arguments of the train step."""
    nodes: int = 0
    """How many the training has; 0: as many as the drill."""
    starts: bool = False
    """The training stands still until nodes have started anew: as long as those of the reference took, at most."""
    times: int = 1
    """How many times the drill's iterations it does: new nodes need time to come."""
    same: bool = True


CASES = {
    "pod-preempted": Case(Kind.PREEMPT, 15, starts=True),
    "slow-node": Case(Kind.SLOW, 15, chaos={"share": 0.8}),
    "faulty-at-start": Case(Kind.FAULTY, math.inf, train={"network_check": True}, nodes=3),
    "network-loss": Case(Kind.NETWORK, 20, chaos={"seconds": 90}, same=False),
    "process-crash": Case(Kind.CRASH, 10),
    "out-of-memory": Case(Kind.OOM, 20, role={"resources": {"memory": ""}}, starts=True),
    "three-four-three": Case(Kind.RESIZE, 30, role={"maxReplicas": 4}, nodes=3, times=3, same=False),
    "cpu-overload-90": Case(Kind.CPU, 20, chaos={"share": 0.9}),
    "memory-80": Case(Kind.MEMORY, 20, chaos={"share": 0.8}, role={"resources": {"memory": ""}}),
    "master-lost": Case(Kind.MASTER, 15),
    "store-lost": Case(Kind.STORE, 20),
    "everything-lost": Case(Kind.EVERYTHING, 45, math.inf, starts=True),
}
"""By name, in the order of the drill: the faults of DLRover's chaos experiments with ChaosBlade, then the losses of
what a job keeps outside of its nodes."""


def check_names(only: str) -> list[str]:
    """The experiments of a comma separated list; all if it is empty. Raises StepError for an unknown one."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in CASES]:
        raise StepError(f"--only {', '.join(unknown)}: no such experiment; there are {', '.join(CASES)}")
    return [name for name in CASES if not names or name in names]


def drill(
    *,
    after: StepTask | None = None,
    only: str = "",
    nodes: int = 2,
    min_nodes: int = 1,
    iterations: int = 100,
    node_memory: str = "2Gi",
    seed: int = 0,
    chaosblade: bool = False,
    **arguments: Any,
) -> StepTask:
    """Add the experiments to the DAG (of fail_fast=False); returns the verdict's task. `after`: the task that they
    begin after. `chaosblade`: its operator injects the faults that it can. `node_memory`: where a fault needs a limit
    and the job's spec has none.

    `arguments` are those of the train step, for all trainings, its job_spec among them. How often a node is replaced,
    and how long the others wait for it, the drill decides. It stops, and fails, if an undisturbed training fails or
    leaves no checkpoint. Raises StepError for an unknown experiment, and for arguments that must be known here:
    `persist_interval`, `certify_interval`, `job_spec`.
    """
    names = check_names(only)
    own = _own_spec(arguments.pop("job_spec", ""))
    certified = _number("certify_interval", arguments.get("certify_interval") or own.get("certifyInterval", 0))
    every = _number("persist_interval", arguments.get("persist_interval") or _cadence(iterations, certified))
    common = {"iterations": iterations, "persist_interval": every, **arguments}
    common = {name: value for name, value in common.items() if name not in _DECIDED}
    before: list[StepTask] = []
    references: dict[str, StepTask] = {}
    for name, case in {_reference(CASES[name]): CASES[name] for name in names}.items():
        spec = _spec(own, {}, case.nodes or nodes, min_nodes, "")
        calm = {**common, "iterations": iterations * case.times, **spec}
        references[name] = reference = train.task(f"train-{name}", **calm)
        if before:
            _only_if_comparable(before[0], reference)
        elif after is not None:
            reference.depends = after.name
        before = [reference]
    experiments = []
    for name in names:
        case = CASES[name]
        spec = _spec(own, case.role, case.nodes or nodes, min_nodes, node_memory)
        job = {**common, **case.train, "iterations": iterations * case.times, **spec}
        fault = {"kind": case.kind.value, "target": f"train-{name}", "iterations": iterations, "seed": seed}
        by_operator = {"chaosblade": True} if chaosblade and case.kind in BY_CHAOSBLADE else {}
        beside = [train.task(f"train-{name}", **job), chaos_task(f"chaos-{name}", **fault, **by_operator, **case.chaos)]
        for task in beside:
            _only_if_comparable(references[_reference(case)], _after(before, task))
        before = beside
        experiments.append(_experiment(name, case, every, certified))
    experiments_json = msgspec.json.encode(experiments).decode()
    return _after(before, verdict.task(experiments=experiments_json))


def _experiment(name: str, case: Case, every: int, certified: int) -> Experiment:
    """With states that are certified each so many iterations, only those are restored."""
    lost_limit = 2 * every if math.isinf(case.lost) else int(case.lost) + certified
    seconds = 0.0 if math.isinf(case.seconds) else case.seconds
    return Experiment(name, seconds, lost_limit, case.starts, case.same, _reference(case))


def _reference(case: Case) -> str:
    """The undisturbed training that it is compared with."""
    return "-".join(["reference", *([str(case.nodes)] if case.nodes else []), *(["long"] if case.times > 1 else [])])


def _number(name: str, value: object) -> int:
    """Raises StepError: it is only known when the workflow runs."""
    try:
        return int(str(value))
    except ValueError:
        raise StepError(f"drill: {name} {value}: give a number; the limits of the experiments follow from it") from None


def _cadence(iterations: int, certified: int) -> int:
    """Iterations between two checkpoints: five in a training, all of them certified."""
    every = max(1, iterations // 5)
    return math.ceil(every / certified) * certified if certified else every


def _own_spec(value: object) -> Mapping[str, Any]:
    """The job's spec as the train step gets it, a JobSpec or text, as a mapping. Raises StepError."""
    if not value:
        return {}
    spec = value if isinstance(value, JobSpec) else job_of(train.Config(job_spec=str(value)))
    return {name: inside for name, inside in mapping_of(spec).items() if name != "job"}


def _spec(own: Mapping[str, Any], fields: dict[str, Any], nodes: int, min_nodes: int, memory: str) -> dict[str, Any]:
    """The job's spec, with these fields of the role that trains. Faults of nodes never use up its patience."""
    roles: Mapping[str, Any] = own.get("replicaSpecs", {ROLE: {}})
    trains = ROLE if ROLE in roles else next(iter(roles))
    fields = json.loads(json.dumps(fields).replace('"memory": ""', f'"memory": "{memory}"'))
    role = {**roles[trains], "replicas": nodes, "minReplicas": min(min_nodes, nodes), **fields}
    if "resources" in fields:
        role["resources"] = {**fields["resources"], **roles[trains].get("resources", {})}
    spec = {
        **own,
        "replicaSpecs": {**roles, trains: role},
        "patience": {**own.get("patience", {}), "replacementWait": 120, "maxRelaunches": 10, "coolDown": 1},
    }
    return {"job_spec": json.dumps(spec, separators=(",", ":")), **({"nodes": nodes} if trains == ROLE else {})}


def _only_if_comparable(reference: StepTask, task: StepTask) -> None:
    """Only if the undisturbed training succeeded and left a checkpoint: without one nothing can be shown."""
    task.depends = " && ".join(filter(None, (f"{reference.name}.Succeeded", task.depends)))
    task.when = f"'{reference.checkpoint}' != ''"


def _after(before: list[StepTask], task: StepTask) -> StepTask:
    """The task, once all these have ended, however they did."""
    if before:
        clauses = ("(" + " || ".join(f"{earlier.name}.{how}" for how in _ENDED) + ")" for earlier in before)
        task.depends = " && ".join(clauses)
    return task

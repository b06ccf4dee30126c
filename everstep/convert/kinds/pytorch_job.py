"""Kubeflow's PyTorchJob (kubeflow.org/v1), with or without elasticPolicy. Master and Worker nodes run the same command:
they become one role, whose first node is rank 0."""

from typing import Any

from everstep.convert.field_reader import Fields
from everstep.convert.launchers.torchrun import NODES, PROCESSES
from everstep.convert.pods import read_pod, read_processes
from everstep.convert.rendezvous import patience_of, without_counterpart
from everstep.convert.restarts import read_restarts
from everstep.convert.run_policy import read_run, read_scheduling
from everstep.convert.source import Role, SourceJob

_CONTAINER = "pytorch"
"""The name of the container that its operator looks after."""
_REPLICAS, _ELASTIC, _RUN = ("spec", "pytorchReplicaSpecs"), ("spec", "elasticPolicy"), ("spec", "runPolicy")
_MEETING = {"rdzvBackend": str, "rdzvPort": int, "rdzvHost": str, "rdzvId": str, "standalone": bool}
"""Where its nodes meet, which the train step decides."""


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    names = fields.keys(*_REPLICAS)
    if unknown := [name for name in names if name not in ("Master", "Worker")]:
        raise fields.wrong("a PyTorchJob has Master and Worker", *_REPLICAS, unknown[0])
    if not names:
        raise fields.wrong("missing: Master or Worker", *_REPLICAS)
    counts = {name: fields.count(*_REPLICAS, name, "replicas", default=1) for name in names}
    nodes = fields.count(*_ELASTIC, "maxReplicas", default=fields.count(*_ELASTIC, "max", default=sum(counts.values())))
    least = fields.count(*_ELASTIC, "min", default=nodes, most=nodes)
    least = fields.count(*_ELASTIC, "minReplicas", default=least, most=nodes)
    pods = {name: read_pod(fields, (*_REPLICAS, name, "template"), _CONTAINER) for name in names}
    restarts = {name: read_restarts(fields, (*_REPLICAS, name), "OnFailure") for name in names}
    of_all = "Worker" if "Worker" in names else "Master"
    for name in names:
        if (pods[name], restarts[name]) != (pods[of_all], restarts[of_all]):
            fields.note(f"differs from {of_all}'s: no counterpart; nearest: {of_all}'s for all", *_REPLICAS, name)
    policy = fields.take(str, *_RUN, "cleanPodPolicy", default="")
    policies: dict[str, Any] = {"cleanPodPolicy": policy} if policy else {}
    if patience := _patience(fields):
        policies["patience"] = patience
    arguments: dict[str, object] = {**read_scheduling(fields, _RUN, sum(counts.values()))}
    for path, argument in (((*_ELASTIC, "maxRestarts"), "max_restarts"), ((*_RUN, "backoffLimit"), "max_relaunches")):
        if fields.has(*path):
            arguments[argument] = fields.count(*path)
    for name, kind in _MEETING.items():
        fields.skip(kind, *_ELASTIC, name)
    counted = (*_ELASTIC, "nProcPerNode") if fields.has(*_ELASTIC, "nProcPerNode") else ("spec", "nprocPerNode")
    unsaid = "auto" if "Master" in names else ""  # Its operator tells nothing to Workers alone.
    processes = read_processes(fields, counted, pods[of_all].container, unsaid)
    variables = {NODES: f"{least}:{nodes}" if least < nodes else str(nodes)}
    variables |= dict.fromkeys(PROCESSES, processes) if processes else {}
    role = Role("worker", nodes, least, pods[of_all], policies=restarts[of_all])
    return SourceJob((role,), arguments, policies, variables, run=read_run(fields, *_RUN))


def _patience(fields: Fields) -> dict[str, float]:
    """Of the rendezvous' settings; those without counterpart are noted. Raises ConvertError."""
    places = [(*_ELASTIC, "rdzvConf", number) for number in range(fields.length(*_ELASTIC, "rdzvConf"))]
    if not places:
        fields.skip(list, *_ELASTIC, "rdzvConf")
    settings = {fields.take(str, *place, "key"): fields.take(str, *place, "value") for place in places}
    listed = without_counterpart(settings)
    for place in places:
        if (key := fields.text_at(*place, "key")) in listed:
            fields.note(f"{key}={settings[key]}: no counterpart; nearest: {listed[key]}", *place)
    return patience_of(settings)

"""Kubeflow Trainer's TrainJob (trainer.kubeflow.org/v1alpha1), as far as it does not leave things to its runtime."""

from typing import Any

from everstep.convert.field_reader import Fields
from everstep.convert.launchers.torchrun import NODES, PROCESSES
from everstep.convert.pods import (
    SPEC,
    amounts_of,
    cpus_of,
    gpus_of,
    has_program,
    note_requests,
    read_command,
    read_processes,
    take_all,
)
from everstep.convert.source import Pod, Role, SourceJob
from everstep.runtime.workflow.manifest.yaml_source import FieldPath

_TRAINER, _OVERRIDES = ("spec", "trainer"), ("spec", "podTemplateOverrides")
_PROCESSES = (*_TRAINER, "numProcPerNode")
_NODE = "node"
"""The runtime's job that trains."""
_CONTAINERS = (_NODE, "trainer")
"""The container in it that trains, as runtimes call it."""


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    nodes = fields.count(*_TRAINER, "numNodes", default=1, least=1)
    container = take_all(fields, "Container", ("env",), _TRAINER)
    template, secrets = dict[str, Any](), dict[str, Any]()
    for number in range(fields.length(*_OVERRIDES)):
        path = (*_OVERRIDES, number)
        targets = range(fields.length(*path, "targetJobs"))
        if _NODE in (fields.text_at(*path, "targetJobs", target, "name") for target in targets):
            fields.take(list, *path, "targetJobs")
            template |= take_all(fields, "Template", SPEC, (*path, "spec"))
            secrets |= take_all(fields, "Spec", ["imagePullSecrets"], (*path, "spec"))
            _override(fields, (*path, "spec", "containers"), container)
    if fields.has(*_TRAINER, "resourcesPerNode"):
        container["resources"] = fields.take_like("Container", "resources", *_TRAINER, "resourcesPerNode")
    note_requests(fields, (*_TRAINER, "resourcesPerNode"))
    pod = Pod(
        fields.take(str, *_TRAINER, "image", default=""), read_command(fields, _TRAINER, container), container,
        template, secrets, has_program(fields, _TRAINER),
    )  # fmt: skip
    variables = {NODES: str(nodes), **dict.fromkeys(PROCESSES, _processes(fields, container))}
    return SourceJob((Role("worker", nodes, nodes, pod),), variables=variables)


def _processes(fields: Fields, container: dict[str, Any]) -> str:
    """As its torch plugin has it (pkg/runtime/framework/plugins/torch/torch.go): without GPUs as many as CPUs. Raises
    ConvertError."""
    how = fields.text_at(*_PROCESSES) or "auto"
    if amounts_of(container) and (how == "cpu" or (how == "auto" and not gpus_of(container))):
        fields.skip(str, *_PROCESSES)
        return str(cpus_of(container))
    return read_processes(fields, _PROCESSES, container, "auto")


def _override(fields: Fields, path: FieldPath, container: dict[str, Any]) -> None:
    """Add to `container` what the one at `path` has otherwise. Raises ConvertError."""
    for number in range(fields.length(*path)):
        if fields.text_at(*path, number, "name") not in _CONTAINERS:
            continue
        fields.take(str, *path, number, "name")
        for name, entries in take_all(fields, "Container", ("env", "volumeMounts"), (*path, number)).items():
            given = {entry.get("name") for entry in entries}
            kept = [entry for entry in container.get(name, []) if entry.get("name") not in given]
            container[name] = [*kept, *entries]

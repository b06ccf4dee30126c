"""Kubeflow Trainer's TrainJob (trainer.kubeflow.org/v1alpha1), as far as it does not leave things to its runtime."""

from everstep.convert.field_reader import Fields
from everstep.convert.pods import note_requests, read_command, read_slots, take_all
from everstep.convert.source import Pod, Role, SourceJob

_TRAINER = ("spec", "trainer")


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    nodes = fields.count(*_TRAINER, "numNodes", default=1, least=1)
    container = take_all(fields, "Container", ("env",), _TRAINER)
    if fields.has(*_TRAINER, "resourcesPerNode"):
        container["resources"] = fields.take_like("Container", "resources", *_TRAINER, "resourcesPerNode")
    note_requests(fields, (*_TRAINER, "resourcesPerNode"))
    pod = Pod(fields.take(str, *_TRAINER, "image", default=""), read_command(fields, _TRAINER, container), container)
    slots = read_slots(fields, (*_TRAINER, "numProcPerNode"), container)
    return SourceJob((Role("worker", nodes, nodes, pod, slots),))

"""Kubeflow Trainer's TrainJob (trainer.kubeflow.org/v1alpha1), as far as it does not leave things to its runtime."""

from everstep.convert.field_reader import Fields
from everstep.convert.pods import read_command, take_all
from everstep.convert.source import Pod, Role, SourceJob

_TRAINER = ("spec", "trainer")


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    nodes = fields.count(*_TRAINER, "numNodes", default=1, least=1)
    container = take_all(fields, "Container", ("env",), _TRAINER)
    if fields.has(*_TRAINER, "resourcesPerNode"):
        container["resources"] = fields.take_like("Container", "resources", *_TRAINER, "resourcesPerNode")
    if not fields.has(*_TRAINER, "image"):
        raise fields.wrong("missing: the runtime's image is not known here; name it", *_TRAINER, "image")
    pod = Pod(fields.take(str, *_TRAINER, "image"), read_command(fields, _TRAINER), container)
    slots = fields.count(*_TRAINER, "numProcPerNode", default=1, least=1)
    return SourceJob(fields.take(str, "metadata", "name"), (Role("worker", nodes, nodes, pod, slots),))

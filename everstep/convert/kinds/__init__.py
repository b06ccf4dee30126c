"""One module for each kind of job: `read(fields) -> SourceJob`."""

from collections.abc import Callable, Mapping

from everstep.convert.field_reader import Fields
from everstep.convert.kinds import (
    ai_training_job,
    elastic_job,
    mpi_job,
    pytorch_job,
    ray_job,
    tf_job,
    train_job,
    volcano_job,
)
from everstep.convert.source import SourceJob

KINDS: Mapping[str, tuple[tuple[str, ...], Callable[[Fields], SourceJob]]] = {
    "ElasticJob": (("elastic.iml.github.io/v1alpha1",), elastic_job.read),
    "AITrainingJob": (("kongming.cce.baidubce.com/v1", "kongming.cce.baiudbce.com/v1"), ai_training_job.read),
    "Job": (("batch.volcano.sh/v1alpha1",), volcano_job.read),
    "PyTorchJob": (("kubeflow.org/v1",), pytorch_job.read),
    "MPIJob": (("kubeflow.org/v2beta1", "kubeflow.org/v1"), mpi_job.read),
    "TFJob": (("kubeflow.org/v1",), tf_job.read),
    "TrainJob": (("trainer.kubeflow.org/v1alpha1",), train_job.read),
    "RayJob": (("ray.io/v1", "ray.io/v1alpha1"), ray_job.read),
}
"""Kind -> (its apiVersions that are known, its reader). Baidu's own documentation spells its group in both ways."""

"""One module for each kind of job: `read(fields) -> SourceJob`."""

from collections.abc import Callable, Mapping

from everstep.convert.field_reader import Fields
from everstep.convert.kinds import ai_training_job, elastic_job, pytorch_job, ray_job, tf_job, train_job, volcano_job
from everstep.convert.source import SourceJob

KINDS: Mapping[str, tuple[tuple[str, ...], Callable[[Fields], SourceJob]]] = {
    "ElasticJob": (("elastic.iml.github.io/",), elastic_job.read),
    "AITrainingJob": (("kongming.cce.baidubce.com/", "kongming.cce.baiudbce.com/"), ai_training_job.read),
    "Job": (("batch.volcano.sh/",), volcano_job.read),
    "PyTorchJob": (("kubeflow.org/",), pytorch_job.read),
    "TFJob": (("kubeflow.org/",), tf_job.read),
    "TrainJob": (("trainer.kubeflow.org/",), train_job.read),
    "RayJob": (("ray.io/",), ray_job.read),
}
"""Kind -> (the groups of its apiVersion, its reader). Baidu's own documentation spells its group in both ways."""

"""The preprocess step as an Argo template."""

from functools import cache

from hera.workflows import Container

from everstep.steps.preprocess.config import Config
from everstep.steps.template import StepTask, step_task, step_template


@cache
def template() -> Container:
    """Outputs: `uri` of the dataset, `validation`, the URI of its held-out split, and the page `dataset`."""
    return step_template(
        "preprocess",
        Config,
        title="Tokenize",
        description="Tokenizes the corpus on Spark into Megatron's indexed format.",
        outputs=("uri", "validation"),
        artifacts=("dataset.html",),
        cpu=2,
        memory="3Gi",
        account="{{=inputs.parameters['spark-master'] startsWith 'k8s://' ? '-spark' : ''}}",
    )


def task(name: str = "tokenize", **arguments: object) -> StepTask:
    """A task with the outputs `uri` and `validation` (of the datasets that train and evaluate) and the artifact
    `dataset`. By default every document ends with the end-of-document token."""
    return step_task(template(), name, {"append_eod": True, **arguments})

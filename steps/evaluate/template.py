"""The Hera template of the evaluation."""

from functools import cache

from hera.workflows import Container

from everstep.steps.evaluate.config import Config
from everstep.steps.template import StepTask, step_task, step_template


@cache
def template() -> Container:
    """Outputs: `perplexity`, `model`, `results`."""
    return step_template(
        "evaluate",
        Config,
        title="Evaluate and export",
        description="Perplexity on held-out text beside the untrained model's, a sample, the Hugging Face export.",
        outputs=("perplexity", "model", "results"),
        artifacts=("metrics.json",),
        cpu=2,
        memory="3Gi",
    )


def task(name: str = "evaluate", **arguments: object) -> StepTask:
    """A task with the outputs `perplexity`, `model` (URI of a Hugging Face directory), `results` (JSON: everything that
    was measured or named) and the artifact `metrics`. The first two are empty if they do not apply.
    """
    return step_task(template(), name, arguments)

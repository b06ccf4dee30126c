"""The Hera template of the evaluation."""

from steps.evaluate.config import Config
from steps.template import StepTask, step_task, step_template


def task(name: str = "evaluate", **arguments: object) -> StepTask:
    """A task with the outputs `perplexity`, `model` (URI of a Hugging Face directory) and the artifact `metrics`."""
    template = step_template(
        "evaluate",
        Config,
        title="Evaluate and export",
        description="Perplexity on held-out text beside the untrained model's, a sample, the Hugging Face export.",
        outputs=("perplexity", "model"),
        artifacts=("metrics.json",),
        cpu=2,
        memory="3Gi",
    )
    return step_task(template, name, arguments)

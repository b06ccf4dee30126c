"""The Hera template of the training."""

import json
from functools import cache

from hera.workflows import Container

from everstep.runtime.job.spec import JobSpec
from everstep.runtime.job.spec_writer import mapping_of
from everstep.steps.template import StepTask, step_task, step_template
from everstep.steps.train.config import Config

GAUGES = {
    "loss": "The newest reported loss",
    "restarts": "Rounds that faults or changes of membership broke",
    "goodput": "Share of the nodes' seconds that were productive, 0 to 1",
    "tokens_per_second": "Tokens trained on per second, from the first reported iteration to the last",
}
"""Outputs that Argo exports as metrics; empty where the script reports none."""


@cache
def template() -> Container:
    """Outputs: `checkpoint`, `iterations`, `results`, and those that are metrics."""
    return step_template(
        "train",
        Config,
        title="Train",
        description="Elastic training: continues when workers, nodes or this step die.",
        outputs=("checkpoint", "iterations", "results", *GAUGES),
        gauges=GAUGES,
        fixed_values={"job": "{{workflow.uid}}-{{inputs.parameters.task}}"},
        cpu=2,
        memory="4Gi",
        shared_memory="1Gi",
        account="-train",
        has_token=True,
    )


def task(name: str = "train", **arguments: object) -> StepTask:
    """A task with the outputs `checkpoint` (URI of the last commit; empty if the script saves none), `iterations` and
    `results` (JSON: what the script named with `everstep.results`), and the gauges `loss`, `restarts`, `goodput` and
    `tokens_per_second`, which are empty if the script reports no such thing.

    `job_spec` is the name of a YAML file, or a `JobSpec` (everstep.job). Raises TypeError for an argument that is no
    flag.
    """
    job_spec = arguments.get("job_spec")
    if isinstance(job_spec, JobSpec):
        arguments["job_spec"] = json.dumps(mapping_of(job_spec), separators=(",", ":"))
    return step_task(template(), name, arguments)

"""Each step as an Argo WorkflowTemplate: any workflow can call it by `templateRef`, and people can submit it alone."""

import copy
import re
from collections.abc import Mapping
from typing import Any

from hera.workflows import Container, Parameter, WorkflowTemplate

from everstep.runtime.submission.manifest import ACCOUNT, JOB_TOKEN
from everstep.runtime.submission.needs import VERSION_LABEL
from everstep.steps.check.template import template as check
from everstep.steps.corpus.template import template as corpus
from everstep.steps.evaluate.template import template as evaluate
from everstep.steps.model.template import template as model
from everstep.steps.preprocess.template import template as preprocess
from everstep.steps.report.template import template as report
from everstep.steps.train.template import template as train
from everstep.version import VERSION

STEPS = (model, corpus, preprocess, check, train, evaluate, report)
CALLER_VARIABLE = re.compile(r"\{\{workflow\.(?:parameters\.)?(store|status|failures|duration)\}\}")
"""Variables that another workflow lacks, or has only in its exit handler: here they are inputs."""
DESCRIPTIONS = {
    "store": "URI of the store that the steps share: s3://bucket/prefix",
    "status": "The caller's workflow.status, which only an exit handler knows",
    "failures": "The caller's workflow.failures",
    "duration": "The caller's workflow.duration",
}


def workflow_templates() -> list[dict[str, Any]]:
    """`everstep-<step>` for each step, as manifests without a namespace. Images are those of the step templates."""
    return [_workflow_template(template()) for template in STEPS]


def _workflow_template(template: Container) -> dict[str, Any]:
    """One WorkflowTemplate. The template's inputs are its arguments, so that it can also be submitted alone."""
    own: Any = template.inputs or []
    variables = sorted({name for argument in template.args or [] for name in CALLER_VARIABLE.findall(str(argument))})
    inputs = [*(Parameter(name=name, description=DESCRIPTIONS[name]) for name in reversed(variables)), *own]
    title: Mapping[str, str] = template.annotations or {}
    result = WorkflowTemplate(
        name=f"everstep-{template.name}",
        labels={VERSION_LABEL: VERSION},
        annotations={name: text for name, text in title.items() if name not in (ACCOUNT, JOB_TOKEN)},
        entrypoint=template.name,
        arguments=[_as_argument(input_) for input_ in inputs],
        templates=[_with_inputs(template, [_as_input(input_, names_job=JOB_TOKEN in title) for input_ in inputs])],
    )
    manifest: dict[str, Any] = result.to_dict()
    return manifest


def _as_argument(parameter: Parameter) -> Parameter:
    """With the default as its value: `argo submit --from` takes no defaults for a workflow's own arguments."""
    value = {} if parameter.default is None else {"value": parameter.default}
    return Parameter(name=parameter.name, description=parameter.description, **value)


def _as_input(parameter: Parameter, *, names_job: bool) -> Parameter:
    """Without a default where the task names a job: two calls in one workflow would share that job."""
    if not (names_job and parameter.name == "task"):
        return parameter
    return Parameter(name=parameter.name, description=parameter.description)


def _with_inputs(template: Container, inputs: list[Parameter]) -> Container:
    arguments = [CALLER_VARIABLE.sub(r"{{inputs.parameters.\1}}", str(arg)) for arg in template.args or []]
    result = copy.copy(template)
    result.args, result.inputs = arguments, inputs
    return result

"""Every step as a WorkflowTemplate: for workflows that name it by `templateRef`, in whatever language they are written.

May import hera and the steps' templates.
"""

from typing import Any

from hera.workflows import Container, WorkflowTemplate

from steps.check.template import template as check
from steps.corpus.template import template as corpus
from steps.evaluate.template import template as evaluate
from steps.model.template import template as model
from steps.preprocess.template import template as preprocess
from steps.report.template import template as report
from steps.train.template import template as train

PREFIX = "everstep-"
STEPS = (corpus, model, preprocess, check, train, evaluate, report)
OF_THE_PIPELINE, GIVEN = "{{workflow.parameters.store}}", "{{inputs.parameters.store}}"
STORE = {"name": "store", "description": "URI of the store: s3://bucket/prefix."}


def manifests() -> list[dict[str, Any]]:
    """The WorkflowTemplates `everstep-<step>`, each with one template `<step>`, in the order of a pipeline."""
    return [_alone(template()) for template in STEPS]


def _alone(template: Container) -> dict[str, Any]:
    """Pipelines of ours have a parameter `store`; whoever calls the template alone gives it as an input."""
    made = WorkflowTemplate(name=f"{PREFIX}{template.name}", entrypoint=template.name, templates=[template]).to_dict()
    (only,) = made["spec"]["templates"]
    container = only["container"]
    container["args"] = [word.replace(OF_THE_PIPELINE, GIVEN) for word in container["args"]]
    only["inputs"] = {"parameters": [STORE, *only.get("inputs", {}).get("parameters", ())]}
    made["metadata"]["annotations"] = dict(only["metadata"]["annotations"])
    return made

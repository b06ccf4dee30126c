"""Writes a conversion: an Argo Workflow, or a Hera pipeline with the same train step."""

import json
from pprint import pformat
from typing import Any

from everstep.convert.convert import Conversion
from everstep.steps.reuse import workflow_templates

STORE = "runs/store"
_STEP = "everstep-train"


def workflow_of(conversion: Conversion) -> dict[str, Any]:
    """The Workflow: one task, whose template is the train step's with the job's image, variables and resources."""
    step = next(known for known in workflow_templates() if known["metadata"]["name"] == _STEP)
    (template,) = step["spec"]["templates"]
    _fit(template, conversion)
    values = {**conversion.arguments}
    if "job_spec" in values:
        values["job_spec"] = json.dumps(values["job_spec"], ensure_ascii=False)
    arguments = [{"name": "store", "value": "{{workflow.parameters.store}}"}]
    arguments += [{"name": name.replace("_", "-"), "value": _text(value)} for name, value in values.items()]
    task = {"name": "train", "template": template["name"], "arguments": {"parameters": arguments}}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": f"{conversion.name}-"},
        "spec": {
            "entrypoint": "main",
            "arguments": {"parameters": [{"name": "store", "value": STORE}]},
            **conversion.pod.spec,
            "templates": [{"name": "main", "dag": {"tasks": [task]}}, template],
        },
    }


def _fit(template: dict[str, Any], conversion: Conversion) -> None:
    """Give the step's template what the job's pods have, in place."""
    pod, container = conversion.pod, template["container"]
    container |= {
        "image": pod.image,
        **{name: value for name, value in pod.container.items() if name != "volumeMounts"},
    }
    more = dict(pod.template)
    volumes, mounts = more.pop("volumes", []), pod.container.get("volumeMounts", [])
    # The step has one of its own.
    own = {mount.get("name") for mount in mounts if mount.get("mountPath") == "/dev/shm"}
    sizes = [volume["emptyDir"]["sizeLimit"] for volume in volumes
             if volume.get("name") in own and (volume.get("emptyDir") or {}).get("sizeLimit")]  # fmt: skip
    for volume in template.get("volumes", []):
        if sizes and volume["name"] == "shared-memory":
            volume["emptyDir"]["sizeLimit"] = sizes[0]
    template["volumes"] = [
        *template.get("volumes", []),
        *(volume for volume in volumes if volume.get("name") not in own),
    ]
    own_mounts = [mount for mount in mounts if mount.get("name") not in own]
    container["volumeMounts"] = [*container.get("volumeMounts", []), *own_mounts]
    metadata = more.pop("metadata", {})
    for name, values in metadata.items():
        template.setdefault("metadata", {}).setdefault(name, {}).update(values)
    template |= more


def pipeline_of(conversion: Conversion) -> str:
    """The text of a Hera pipeline with this train step. Its image is given with --image, as for every pipeline."""
    arguments = "".join(f"                {name}={_literal(value)},\n" for name, value in conversion.arguments.items())
    image = json.dumps(conversion.pod.image)  # It comes from a stranger's file: within quotes, no line breaks.
    return f'''"""Train {conversion.name}: made by `everstep convert --to python`."""
# Its image: {image}

import json
from dataclasses import dataclass

from hera.workflows import DAG, Workflow

import everstep
from everstep.steps import train


@dataclass(frozen=True)
class Config:
    """Each field is a flag of this file and a parameter of the workflow."""

    seed: int = 0
    """Decides the random weights and the order of the data."""


def build(config: Config) -> Workflow:
    """The workflow; the same object runs locally and on Argo."""
    with Workflow(
        generate_name="{conversion.name}-", entrypoint="main", arguments=everstep.parameters(config)
    ) as workflow:
        with DAG(name="main"):
            train.task(
                seed=everstep.parameter("seed"),
{arguments}            )
    return workflow


if __name__ == "__main__":
    everstep.submit(build, Config)
'''


def _literal(value: Any) -> str:
    if not isinstance(value, dict):
        return repr(value)
    lines = pformat(value, width=96, sort_dicts=False).splitlines()
    return "json.dumps(\n" + "".join(f"                    {line}\n" for line in lines) + "                )"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

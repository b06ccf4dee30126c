"""Writes a conversion: an Argo Workflow, or a Hera pipeline with the same train step."""

import json
from typing import Any

from everstep.convert.convert import Conversion
from everstep.convert.source import Pod
from everstep.runtime.submission.manifest import POD_GC, TTL, ClusterOptions, fit_templates
from everstep.steps.reuse import workflow_templates

_STEP = "everstep-train"
_LINE, _INDENT, _OWN, _ARGUMENT = 100, 4, 8, 16
"""Of the pipeline's text: how long a line may be, and how far an argument of the Workflow and one of the task
stand from its left."""
_MODELS = ("PersistentVolumeClaim", "TTLStrategy")
_STEPS_OWN = ("imagePullPolicy", "env", "envFrom")


def workflow_of(conversion: Conversion, store: str, cluster: ClusterOptions | None = None) -> dict[str, Any]:
    """The Workflow: one task, whose template is the train step's with the job's image and variables. `cluster`: what a
    cluster gives it; None: it runs on this machine."""
    step = next(known for known in workflow_templates() if known["metadata"]["name"] == _STEP)
    (template,) = step["spec"]["templates"]
    _fit(template["container"], template["volumes"], conversion.pod)
    values = {**conversion.arguments}
    if "job_spec" in values:
        values["job_spec"] = json.dumps(values["job_spec"], ensure_ascii=False)
    arguments = [{"name": "store", "value": "{{workflow.parameters.store}}"}, {"name": "task", "value": "train"}]
    arguments += [{"name": name.replace("_", "-"), "value": _text(value)} for name, value in values.items()]
    task = {"name": "train", "template": template["name"], "arguments": {"parameters": arguments}}
    spec: dict[str, Any] = {
        "entrypoint": "main",
        "arguments": {"parameters": [{"name": "store", "value": store}]},
        **conversion.pod.spec,
        **conversion.run,
        **({"volumeClaimTemplates": list(conversion.claims)} if conversion.claims else {}),
        "templates": [{"name": "main", "dag": {"tasks": [task]}}, template],
    }
    if cluster is not None:
        fit_templates(spec, cluster, conversion.pod.image)
        spec |= {"serviceAccountName": cluster.service_account} if cluster.service_account else {}
        spec |= {"podGC": POD_GC, "ttlStrategy": TTL, **conversion.run}
    metadata = {"generateName": f"{conversion.name}-", **conversion.metadata}
    return {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": metadata, "spec": spec}


def _fit(container: dict[str, Any], volumes: list[dict[str, Any]], pod: Pod) -> None:
    """Give the step's template, in place, what its program needs: the nodes' pods are in the job spec.

    The variables are those that the store may need, and the step's /dev/shm is what its nodes' follows from.
    """
    container |= {"image": pod.image} | {name: pod.container[name] for name in _STEPS_OWN if name in pod.container}
    mounted = {mount.get("name") for mount in pod.memory_mounts()}
    for volume in pod.template.get("volumes", []):
        if volume.get("name") in mounted and (size := (volume.get("emptyDir") or {}).get("sizeLimit")):
            (memory,) = (own for own in volumes if own["name"] == "shared-memory")
            memory["emptyDir"]["sizeLimit"] = size


def pipeline_of(conversion: Conversion) -> str:
    """The text of a Hera pipeline with this train step. Its image is given with --image, as for every pipeline."""
    arguments = "".join(
        f"{' ' * _ARGUMENT}{name}={_argument(value)},\n" for name, value in conversion.arguments.items()
    )
    metadata = "".join(f", {name}={values!r}" for name, values in conversion.metadata.items())
    own = "".join(f",\n{' ' * _OWN}{name}={text}" for name, text in _own_fields(conversion).items())
    used = [model for model in _MODELS if f"{model}(" in own]
    models = f"\nfrom hera.workflows.models import {', '.join(used)}" if used else ""
    image = json.dumps(conversion.pod.image)  # It comes from a stranger's file: within quotes, no line breaks.
    return f'''"""Train {conversion.name}: made by `everstep convert --to python`."""
# Its image: {image}

import json
from dataclasses import dataclass

from hera.workflows import DAG, Workflow{models}

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
        generate_name="{conversion.name}-", entrypoint="main", arguments=everstep.parameters(config){metadata}{own}
    ) as workflow:
        with DAG(name="main"):
            train.task(
                seed=everstep.parameter("seed"),
{arguments}            )
    return workflow


if __name__ == "__main__":
    everstep.submit(build, Config)
'''


def _own_fields(conversion: Conversion) -> dict[str, str]:
    """What the Workflow has besides, each as Python."""
    fields: dict[str, str] = {}
    if secrets := conversion.pod.spec.get("imagePullSecrets"):
        fields["image_pull_secrets"] = repr([str(secret["name"]) for secret in secrets if secret.get("name")])
    if conversion.claims:
        claims = (f"PersistentVolumeClaim(**{_literal(claim, _OWN)})" for claim in conversion.claims)
        fields["volume_claim_templates"] = f"[{', '.join(claims)}]"
    if "activeDeadlineSeconds" in conversion.run:
        fields["active_deadline_seconds"] = repr(conversion.run["activeDeadlineSeconds"])
    if after := conversion.run.get("ttlStrategy"):
        fields["ttl_strategy"] = f"TTLStrategy(seconds_after_completion={after['secondsAfterCompletion']!r})"
    return fields


def _argument(value: Any) -> str:
    literal = _literal(value, _ARGUMENT)
    return f"json.dumps({literal})" if isinstance(value, dict) else literal


def _literal(value: Any, column: int) -> str:
    """As Python, in lines of which the first begins at that column."""
    if len(text := repr(value)) <= _LINE - column or not isinstance(value, dict | list):
        return text
    named = isinstance(value, dict)
    keys = [f"{key!r}: " for key in value] if named else [""] * len(value)
    inner = column + _INDENT
    entries = [
        f"{' ' * inner}{key}{_literal(entry, inner)},\n"
        for key, entry in zip(keys, value.values() if named else value, strict=True)
    ]
    return ("{" if named else "[") + "\n" + "".join(entries) + " " * column + ("}" if named else "]")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

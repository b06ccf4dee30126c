"""What a manifest needs besides to run on a cluster: image, namespace, service account, store credentials, clean-up.

Nothing secret ever stands in it: the store's credentials are named by `secretKeyRef`.
"""

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from everstep.runtime.net.token import token_reference
from everstep.runtime.platform import POD_VARIABLE, STEP_LABEL

DIGEST = "everstep/manifest"
"""Annotation: the digest of what was submitted, so that the same submission is known again."""
ACCOUNT = "everstep/account"
"""Annotation of a template: what its service account's name has after that of the others (files/rbac.yaml)."""
JOB_TOKEN = "everstep/job-token"
"""Annotation of a template: the job whose token its container gets, once there is one."""
TITLE = "workflows.argoproj.io/title"
"""Annotation: what Argo's list of runs shows instead of the name; it therefore contains the name."""
INSTANCE = "workflows.argoproj.io/controller-instanceid"
OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""The end of the name of an object of Kubernetes (a DNS subdomain)."""
"""Where a step may write without being root."""
OWN_POD = {"name": POD_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
"""Variable: by it a train step knows that its nodes are to be pods like its own."""
POD_GC = {"strategy": "OnWorkflowSuccess", "deleteDelayDuration": "300s"}
"""Pods of a failed run stay for whoever looks into it; those of a good one for as long as their logs are fetched."""
POD_SECURITY = {
    "runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
"""Of every pod of a workflow that has only Everstep's own steps; others' images may need root."""
TTL = {"secondsAfterSuccess": 7 * 86400, "secondsAfterFailure": 30 * 86400}
"""How long Argo keeps a run that has ended. Its data in the store stay."""
NEEDED_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
OTHER_KEYS = ("MINIO_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_SESSION_TOKEN")
"""Keys of the store's Secret, named as the variables they become."""


class NotForAClusterError(ValueError):
    """It cannot run on a cluster. One line: what, and how to fix it."""


@dataclass(frozen=True)
class ClusterOptions:
    """What the cluster gives a run."""

    image: str = ""
    """Image of Everstep's own steps; "": as it stands in the manifest."""
    service_account: str = ""
    """Of all pods; a step that needs more rights than others has one of its own, NAME-train or NAME-spark."""
    pull_secrets: tuple[str, ...] = ()
    store_secret: str = ""
    """Secret with the store's variables; "": the pods have them by other means."""
    instance: str = ""
    """Which of several controllers is meant."""
    pull_policy: str = ""
    """imagePullPolicy of Everstep's own steps; "": Kubernetes chooses it."""


def for_argo(
    manifest: Mapping[str, Any], name: str, namespace: str, options: ClusterOptions, own_image: str
) -> dict[str, Any]:
    """A copy that a cluster can run, under that name. Containers with the image `own_image`, and templates with the
    label of a step, are Everstep's.

    Raises NotForAClusterError when a pod could not start or its store could not be reached.
    """
    manifest_copy = copy.deepcopy(dict(manifest))
    spec = manifest_copy["spec"] = without_empty_parameters(manifest_copy["spec"])
    if all(
        container.get("image") == own_image for template in all_templates(spec) for container in containers_of(template)
    ):
        spec.setdefault("securityContext", dict(POD_SECURITY))
    fit_templates(spec, options, own_image)
    if options.service_account:
        spec["serviceAccountName"] = options.service_account
    if options.pull_secrets:
        secrets_by_name = {entry["name"]: entry for entry in spec.get("imagePullSecrets", ())}
        spec["imagePullSecrets"] = list(
            {**secrets_by_name, **{secret: {"name": secret} for secret in options.pull_secrets}}.values()
        )
    spec.setdefault("podGC", dict(POD_GC))
    spec.setdefault("ttlStrategy", dict(TTL))
    metadata = {key: value for key, value in manifest_copy.get("metadata", {}).items() if key != "generateName"}
    if options.instance:
        metadata["labels"] = {**metadata.get("labels", {}), INSTANCE: options.instance}
    annotations = dict(metadata.get("annotations", {}))
    if (title := annotations.get(TITLE)) and name not in title:
        annotations[TITLE] = f"{title} · {name}"
    metadata["annotations"] = {**annotations, DIGEST: spec_digest(spec)}
    return {**manifest_copy, "metadata": {**metadata, "name": name, "namespace": namespace}}


def without_empty_parameters(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec without the workflow parameters that are empty: what refers to them gets the empty text at once.

    One that is also named otherwise than as `{{workflow.parameters.NAME}}` stays: in an expression, for instance.
    """
    arguments = spec.get("arguments") or {}
    parameters = arguments.get("parameters") or []
    other_fields, parameters_kept = {key: value for key, value in spec.items() if key != "arguments"}, list(parameters)
    for parameter in parameters:
        if parameter.get("value") != "" or parameter.keys() - {"name", "value"}:
            continue
        reference = re.compile(rf"{{{{\s*workflow\.parameters\.{re.escape(parameter['name'])}\s*}}}}")
        changed_fields = _map_texts(other_fields, lambda text, reference=reference: reference.sub("", text))
        if not _names_parameter(json.dumps(changed_fields), parameter["name"]):
            other_fields, parameters_kept = changed_fields, [kept for kept in parameters_kept if kept is not parameter]
    return {
        key: {**arguments, "parameters": parameters_kept} if key == "arguments" else other_fields[key]
        for key in spec
    }  # fmt: skip


def _names_parameter(text: str, name: str) -> bool:
    """Whether that parameter, or all of them, are named."""
    return bool(re.search(rf"workflow\.parameters(\.{re.escape(name)}(?![\w-])|[^.\w]|$)", text))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_texts(inside, change) for key, inside in value.items()}
    return [_map_texts(inside, change) for inside in value] if isinstance(value, list) else value


def fit_templates(spec: Mapping[str, Any], options: ClusterOptions, own_image: str) -> None:
    """Give the containers with the image `own_image`, and steps with images of their own, what they need on a cluster,
    in place.

    Raises NotForAClusterError when they could not start.
    """
    steps = [(template, containers) for template in all_templates(spec) if (containers := _own(template, own_image))]
    own = [container for _, containers in steps for container in containers]
    with_own_image = [container for container in own if container.get("image") == own_image]
    if with_own_image and not options.image:
        raise NotForAClusterError(
            f"target argo needs --image: the image of the steps, as the cluster pulls it (they name {own_image!r} only)"
        )
    for container in with_own_image:
        container["image"] = options.image
        if options.pull_policy:
            container["imagePullPolicy"] = options.pull_policy
    for container in own:
        credentials = _credential_variables(options.store_secret) if options.store_secret else ()
        container["env"] = [*container.get("env", ()), dict(OWN_POD), *credentials]
    for template, _ in steps:
        annotations = template.get("metadata", {}).get("annotations") or {}
        more, job = annotations.pop(ACCOUNT, ""), annotations.pop(JOB_TOKEN, "")
        if job:
            _require_usable_names(spec, template)
            template["container"]["env"].append(token_reference(job, optional=True))
        if options.service_account:
            template["serviceAccountName"] = f"{options.service_account}{more}"


def _own(template: Mapping[str, Any], own_image: str) -> list[dict[str, Any]]:
    """Its containers with that image, and a step's main one whatever its image (`everstep.step(image=...)`)."""
    is_step = STEP_LABEL in ((template.get("metadata") or {}).get("labels") or {})
    main = template.get("container") if is_step else None
    return [each for each in containers_of(template) if each.get("image") == own_image or each is main]


def _require_usable_names(spec: Mapping[str, Any], template: Mapping[str, Any]) -> None:
    """A task's name is part of its job's, and that of its Secret's. Raises NotForAClusterError."""
    for task in (task for template in all_templates(spec) for task in tasks_of(template)):
        entries = (task.get("arguments") or {}).get("parameters") or ()
        task_name = next((str(entry.get("value")) for entry in entries if entry["name"] == "task"), "")
        if (
            task.get("template") == template["name"]
            and task_name
            and "{{" not in task_name
            and not OBJECT.fullmatch(task_name)
        ):
            raise NotForAClusterError(
                f"task {task_name}: on a cluster the name of a training has only a-z, 0-9, - and ., "
                "as its Secret has it"
            )


def spec_digest(spec: Mapping[str, Any]) -> str:
    """Of what will run, whatever its name."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def _credential_variables(secret: str) -> list[dict[str, Any]]:
    needed_keys = [{"name": secret, "key": key} for key in NEEDED_KEYS]
    places = [*needed_keys, *({"name": secret, "key": key, "optional": True} for key in OTHER_KEYS)]
    return [{"name": place["key"], "valueFrom": {"secretKeyRef": place}} for place in places]


def all_templates(holder: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every template of a spec, inline templates too."""
    for template in holder.get("templates", ()):
        yield from _with_inline(template)


def _with_inline(template: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield template
    for task in tasks_of(template):
        if inline := task.get("inline"):
            yield from _with_inline(inline)


def tasks_of(template: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The tasks of a DAG, or of all groups of steps."""
    yield from (template.get("dag") or {}).get("tasks", ())
    yield from (step for group in template.get("steps", ()) for step in group)


def containers_of(template: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every container of one template."""
    yield from (template[kind] for kind in ("container", "script") if kind in template)
    yield from (template.get("containerSet") or {}).get("containers", ())
    for kind in ("initContainers", "sidecars"):
        yield from template.get(kind) or ()

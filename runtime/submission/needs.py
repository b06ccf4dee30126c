"""What a workflow needs of the namespace that it is submitted to. Pure: read from its manifest."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from everstep.runtime.job.spec_values import USUAL_PRIORITY, quantity
from everstep.runtime.store.s3_settings import ENDPOINTS
from everstep.runtime.submission.manifest import all_templates, containers_of, tasks_of

_PARAMETER = re.compile(r"\{\{workflow\.parameters\.([A-Za-z0-9_-]+)\}\}")
TRAIN, SPARK = "-train", "-spark"
"""Suffixes of the service accounts whose pods make other pods (files/rbac.yaml)."""
CHAOS = "-chaos"
"""Of the account of drills (files/chaos/rbac.yaml). What it may not do, a drill says of each fault."""
REPORTS = (("argoproj.io", "workflowtaskresults", ("create", "patch")),)
MAKES_NODES = (
    ("", "pods", ("create", "get", "list", "watch", "delete", "patch")),
    ("", "secrets", ("create",)),
    ("", "configmaps", ("create", "get")),
    ("argoproj.io", "workflows", ("get",)),
)
MAKES_EXECUTORS = (("", "pods", ("create", "get", "list", "watch", "delete", "patch", "deletecollection")),)
OWN_TEMPLATES, VERSION_LABEL = "everstep-", "app.kubernetes.io/version"
"""Everstep's WorkflowTemplates: how their names begin, and their label with the version that made them."""
Rights = tuple[tuple[str, str, tuple[str, ...]], ...]
"""(API group, kind, verbs)."""


@dataclass(frozen=True)
class Needs:
    """What must be there."""

    accounts: Mapping[str, Rights] = field(default_factory=dict)
    """Service accounts, and what each must be allowed to do."""
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Secrets, and the keys that each must have."""
    pull_secrets: tuple[str, ...] = ()
    priority_classes: tuple[str, ...] = ()
    gang: str = "none"
    """The scheduler that admits a job's nodes together."""
    templates: tuple[str, ...] = ()
    """WorkflowTemplates of the namespace that are referred to."""
    artifacts: tuple[str, ...] = ()
    """Templates with output artifacts that do not say where they are kept."""
    requests: Mapping[str, float] = field(default_factory=dict)
    """The most that one pod requests: cpu (cores), memory (bytes), and the like."""
    stores: tuple[str, ...] = ()
    """Those of `secrets` that must name an endpoint of S3, too."""
    version: str = ""
    """That Everstep's own WorkflowTemplates must have; "": any."""


def needs_of(manifest: Mapping[str, Any]) -> Needs:
    """The needs of a manifest that `for_argo` has fitted to the cluster."""
    spec = manifest["spec"]
    templates = list(all_templates(spec))
    values = _values(spec, templates)
    classes = [*values.get("priority-class", ()), *values.get("extra-priority-class", ())]
    classes += [name for text in values.get("job-spec", ()) for name in _classes_of(text)]
    gangs = [gang for gang in values.get("gang", ()) if gang != "none"]
    default = spec.get("serviceAccountName") or "default"
    account_names = [template["serviceAccountName"] for template in templates if "serviceAccountName" in template]
    accounts = dict.fromkeys(name for name in [default, *account_names] if "{{" not in name)
    keeps_references = spec.get("artifactRepositoryRef")
    return Needs(
        {name: account_rights(name) for name in accounts},
        _secrets(templates),
        tuple(secret["name"] for secret in spec.get("imagePullSecrets") or ()),
        tuple(dict.fromkeys(classes)),
        gangs[0] if gangs else "none",
        tuple(dict.fromkeys(name for template in templates for name in _references(template))),
        ()
        if keeps_references
        else tuple(template["name"] for template in templates if _has_homeless_artifact(template)),
        _largest_requests(templates),
        stores=_stores(templates),
    )


def account_rights(name: str) -> Rights:
    """What an account of that name must be allowed to do, by its suffix."""
    more = MAKES_NODES if name.endswith(TRAIN) else MAKES_EXECUTORS if name.endswith(SPARK) else ()
    return (*REPORTS, *more)


def _classes_of(job_spec: str) -> Iterator[str]:
    """PriorityClasses that a job spec names, if it is in the manifest itself: its own, and those of its roles' pods."""
    try:
        spec = json.loads(job_spec)
        roles = (spec.get("replicaSpecs") or {}).values()
        class_names = [((role.get("template") or {}).get("spec") or {}).get("priorityClassName") for role in roles]
    except (ValueError, AttributeError):  # The train step refuses it by name and line.
        return
    yield from (name for name in (spec.get("priority"), *class_names) if name and name != USUAL_PRIORITY)


def _values(spec: Mapping[str, Any], templates: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The values that tasks give, by the parameter's name; neither empty ones, nor those known only while it runs."""
    entries = (spec.get("arguments") or {}).get("parameters") or ()
    values_by_name = {entry["name"]: str(entry.get("value") or "") for entry in entries}
    values: dict[str, list[str]] = {}
    for task in (task for template in templates for task in tasks_of(template)):
        for entry in (task.get("arguments") or {}).get("parameters") or ():
            value = _PARAMETER.sub(lambda name: values_by_name.get(name[1], ""), str(entry.get("value") or ""))
            if value and "{{" not in value:
                values.setdefault(entry["name"], []).append(value)
    return values


def _references(template: Mapping[str, Any]) -> Iterator[str]:
    references = [task.get("templateRef") or {} for task in tasks_of(template)]
    yield from (
        reference["name"] for reference in references if "name" in reference and not reference.get("clusterScope")
    )


def _secrets(templates: list[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    keys: dict[str, dict[str, None]] = {}
    for variable in (
        variable for t in templates for container in containers_of(t) for variable in container.get("env") or ()
    ):
        place = (variable.get("valueFrom") or {}).get("secretKeyRef")
        if place and not place.get("optional"):
            keys.setdefault(place["name"], {})[place["key"]] = None
    return {name: tuple(some) for name, some in keys.items()}


def _stores(templates: list[dict[str, Any]]) -> tuple[str, ...]:
    """Secrets from which alone a container has the endpoint of its store."""
    names: set[str] = set()
    for container in (container for template in templates for container in containers_of(template)):
        variables = [variable for variable in container.get("env") or () if variable.get("name") in ENDPOINTS]
        places = [(variable.get("valueFrom") or {}).get("secretKeyRef") or {} for variable in variables]
        sources = {str(place.get("name", "")) for place in places}
        names |= sources if len(sources) == 1 else set()
    return tuple(sorted(names - {""}))


def _has_homeless_artifact(template: Mapping[str, Any]) -> bool:
    places = ("s3", "gcs", "azure", "oss", "hdfs", "http", "git", "artifactory", "raw")
    if template.get("archiveLocation"):
        return False
    artifacts = (template.get("outputs") or {}).get("artifacts") or ()
    return any(not any(place in artifact for place in places) for artifact in artifacts)


def _largest_requests(templates: list[dict[str, Any]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for template in templates:
        for container in containers_of(template):
            for name, amount in ((container.get("resources") or {}).get("requests") or {}).items():
                largest[name] = max(largest.get(name, 0.0), float(quantity(amount)))
    return largest

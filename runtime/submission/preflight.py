"""Is a namespace ready for a workflow? Asked before anything is submitted, all at once, in at most 3 s.

After Kubernetes' API (SelfSubjectAccessReview, LocalSubjectAccessReview, ResourceQuota, the labels of "Pod Security
Admission") and Argo's documents ("Artifact Repository Ref", "Workflow Controller ConfigMap").
"""

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from everstep.runtime.job.spec_values import quantity
from everstep.runtime.platform.kubernetes.api import KubeApi, KubeError
from everstep.runtime.store.s3_settings import ENDPOINTS
from everstep.runtime.submission.needs import CHAOS, OWN_TEMPLATES, VERSION_LABEL, Needs, Rights

WITHIN_S = 3.0
SERVICE = re.compile(r"(?P<name>[a-z0-9-]+)\.(?P<namespace>[a-z0-9-]+)\.svc(\..+)?")
"""The host of a store that is a Service."""
GANG_APIS = {
    "volcano": "apis/scheduling.volcano.sh/v1beta1",
    "coscheduling": "apis/scheduling.x-k8s.io/v1alpha1",
    "kueue": "apis/kueue.x-k8s.io/v1beta2",
}
CONTROLLER_SETTINGS = "workflow-controller-configmap"
CONTROLLER_NAMESPACE = "argo"
"""Where Argo's own manifests install it."""
RBAC = "kubectl apply -n {namespace} -f templates/chart/files/{file}"


class Verdict(StrEnum):
    """What was learned of one need."""

    READY = "ready"
    WRONG = "wrong"
    """The run cannot succeed."""
    DOUBTFUL = "doubtful"
    """It may fail, which cannot be seen from here."""


@dataclass(frozen=True)
class Finding:
    """One line."""

    verdict: Verdict
    what: str
    mend: str = ""

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.what}; {self.mend}" if self.mend else self.what


Check = Callable[[KubeApi], Awaitable[list[Finding]]]


async def examine(api: KubeApi, needs: Needs, within_s: float = WITHIN_S) -> list[Finding]:
    """Every finding, in a fixed order. What is not answered in time, or may not be asked, is doubtful."""
    checks = _checks(needs)
    tasks = [asyncio.create_task(_run(check, api)) for check in checks.values()]
    _, late = await asyncio.wait(tasks, timeout=within_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    findings: list[Finding] = []
    for name, task in zip(checks, tasks, strict=True):
        findings += (
            [_doubt(f"{name}: no answer in {within_s:g} s")]
            if task in late
            else _findings_or_doubt(name, task.result())
        )
    return findings


def _findings_or_doubt(name: str, result: "list[Finding] | KubeError") -> list[Finding]:
    if not isinstance(result, KubeError):
        return result
    if result.status in (HTTPStatus.FORBIDDEN, HTTPStatus.UNAUTHORIZED):
        return [_doubt(f"{name}: you may not read it ({result.status})")]
    return [_doubt(f"{name}: {result.said}")]


async def _run(check: Check, api: KubeApi) -> "list[Finding] | KubeError":
    try:
        return await check(api)
    except KubeError as error:
        return error


def _checks(needs: Needs) -> dict[str, Check]:
    checks: dict[str, Check] = {"your right to submit": _submitter}
    for name, rights in needs.accounts.items():
        checks[f"rights of service account {name}"] = _account(name, rights)
    for name, keys in needs.secrets.items():
        checks[f"secret {name}"] = _secret(name, keys, is_store=name in needs.stores)
    for name in needs.pull_secrets:
        checks[f"image pull secret {name}"] = _pull_secret(name)
    for name in needs.templates:
        checks[f"WorkflowTemplate {name}"] = _template(name, needs.version)
    for name in needs.priority_classes:
        checks[f"PriorityClass {name}"] = _priority_class(name)
    if needs.gang in GANG_APIS:
        checks[f"gang scheduler {needs.gang}"] = _gang(needs.gang)
    checks["quota"] = _quota(needs.requests)
    checks["Pod Security"] = _pod_security
    if needs.artifacts:
        checks["artifact repository"] = _artifact_repository(needs.artifacts)
    return checks


def _ready(what: str) -> list[Finding]:
    return [Finding(Verdict.READY, what)]


def _wrong(what: str, mend: str) -> list[Finding]:
    return [Finding(Verdict.WRONG, what, mend)]


def _doubt(what: str, mend: str = "") -> Finding:
    return Finding(Verdict.DOUBTFUL, what, mend)


async def _find(api: KubeApi, path: str) -> dict[str, Any] | None:
    """The object at that path below the namespace; None if there is none. Raises KubeError."""
    try:
        return await api.read_path(path.format(namespace=api.namespace))
    except KubeError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return None


async def _submitter(api: KubeApi) -> list[Finding]:
    attributes = {"namespace": api.namespace, "group": "argoproj.io", "resource": "workflows", "verb": "create"}
    kind = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    path = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    answer = await api.review(path, {**kind, "spec": {"resourceAttributes": attributes}})
    if (answer.get("status") or {}).get("allowed"):
        return _ready(f"you may create workflows in namespace {api.namespace}")
    return _wrong(f"you may not create workflows in namespace {api.namespace}", "ask for that right, or choose another")


def _account(name: str, rights: Rights) -> Check:
    async def may(api: KubeApi, group: str, kind: str, verb: str) -> bool:
        attributes = {"namespace": api.namespace, "group": group, "resource": kind, "verb": verb}
        user = f"system:serviceaccount:{api.namespace}:{name}"
        answer = await api.review(
            f"apis/authorization.k8s.io/v1/namespaces/{api.namespace}/localsubjectaccessreviews",
            {
                "apiVersion": "authorization.k8s.io/v1", "kind": "LocalSubjectAccessReview",
                "metadata": {"namespace": api.namespace}, "spec": {"user": user, "resourceAttributes": attributes},
            },
        )  # fmt: skip
        return bool((answer.get("status") or {}).get("allowed"))

    async def lacking(api: KubeApi, group: str, kind: str, verbs: Sequence[str]) -> str:
        answers = await asyncio.gather(*(may(api, group, kind, verb) for verb in verbs))
        missing = [verb for verb, allowed in zip(verbs, answers, strict=True) if not allowed]
        return f"{kind} ({', '.join(missing)})" if missing else ""

    async def check(api: KubeApi) -> list[Finding]:
        file = "chaos/rbac.yaml" if name.endswith(CHAOS) else "rbac.yaml"
        what, mend = f"service account {name}", RBAC.format(namespace=api.namespace, file=file)
        if not await _find(api, f"api/v1/namespaces/{{namespace}}/serviceaccounts/{name}"):
            return _wrong(f"{what} does not exist in namespace {api.namespace}", mend)
        missing = await asyncio.gather(*(lacking(api, *right) for right in rights))
        if any(missing):
            return _wrong(f"{what} lacks rights: {'; '.join(filter(None, missing))}", mend)
        return _ready(f"{what}, and its rights")

    return check


def _secret(name: str, keys: Sequence[str], *, is_store: bool) -> Check:
    async def check(api: KubeApi) -> list[Finding]:
        secret = await _find(api, f"api/v1/namespaces/{{namespace}}/secrets/{name}")
        data: Mapping[str, str] = (secret or {}).get("data") or {}
        lacking = [key for key in keys if key not in data]
        if is_store and not any(data.get(key) or key in lacking for key in ENDPOINTS):
            lacking.append("AWS_ENDPOINT_URL")
        if secret is None:
            words = " ".join(f"--from-literal={key}=..." for key in lacking)
            mend = f"kubectl create secret generic {name} -n {api.namespace} {words}"
            return _wrong(f"secret {name} does not exist in namespace {api.namespace}", mend)
        if lacking:
            patch_values = ", ".join(f'"{key}": "..."' for key in lacking)
            patch = f"kubectl patch secret {name} -n {api.namespace} -p '{{\"stringData\": {{{patch_values}}}}}'"
            return _wrong(f"secret {name} lacks {', '.join(lacking)}", patch)
        for key in ENDPOINTS:
            endpoint = base64.b64decode(data.get(key, "")).decode(errors="replace")
            if problem := await _unreachable(api, endpoint):
                return _wrong(f"secret {name}: {key} {endpoint} {problem}", "name the store as pods reach it")
        return _ready(f"secret {name}")

    return check


async def _unreachable(api: KubeApi, endpoint: str) -> str:
    """Why no pod reaches that endpoint; "" where one may, or where the answer may not be read."""
    host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or ""
    if host == "localhost" or host == "::1" or host.startswith("127."):
        return "means each pod itself"
    match = SERVICE.fullmatch(host)
    try:
        return await _without_pods(api, match["name"], match["namespace"]) if match else ""
    except KubeError:
        return ""


async def _without_pods(api: KubeApi, name: str, namespace: str) -> str:
    """What that Service lacks. Raises KubeError."""
    service = await _find(api, f"api/v1/namespaces/{namespace}/services/{name}")
    if service is None:
        return f"names a Service that namespace {namespace} does not have"
    if (service.get("spec") or {}).get("type") == "ExternalName":
        return ""
    label = f"kubernetes.io/service-name%3D{name}"
    path = f"apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={label}"
    endpoints = [
        endpoint for part in (await api.read_path(path)).get("items") or () for endpoint in part.get("endpoints") or ()
    ]
    if any((endpoint.get("conditions") or {}).get("ready") is not False for endpoint in endpoints):
        return ""
    return "names a Service behind which no pod is ready"


def _pull_secret(name: str) -> Check:
    async def check(api: KubeApi) -> list[Finding]:
        secret = await _find(api, f"api/v1/namespaces/{{namespace}}/secrets/{name}")
        mend = f"kubectl create secret docker-registry {name} -n {api.namespace} --docker-server=..."
        if secret is None:
            return _wrong(f"image pull secret {name} does not exist in namespace {api.namespace}", mend)
        if secret.get("type") not in ("kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"):
            return _wrong(f"image pull secret {name} is of type {secret.get('type')}, which holds no login", mend)
        return _ready(f"image pull secret {name}")

    return check


def _template(name: str, wanted_version: str) -> Check:
    async def check(api: KubeApi) -> list[Finding]:
        template = await _find(api, f"apis/argoproj.io/v1alpha1/namespaces/{{namespace}}/workflowtemplates/{name}")
        mend = f"everstep templates --image IMAGE | kubectl apply -n {api.namespace} -f -"
        if template is None:
            return _wrong(f"WorkflowTemplate {name} does not exist in namespace {api.namespace}", mend)
        version = (template["metadata"].get("labels") or {}).get(VERSION_LABEL, "")
        if name.startswith(OWN_TEMPLATES) and version and wanted_version and version != wanted_version:
            return [_doubt(f"WorkflowTemplate {name} is that of version {version}, not {wanted_version}", mend)]
        return _ready(f"WorkflowTemplate {name}")

    return check


def _priority_class(name: str) -> Check:
    async def check(api: KubeApi) -> list[Finding]:
        if await _find(api, f"apis/scheduling.k8s.io/v1/priorityclasses/{name}"):
            return _ready(f"PriorityClass {name}")
        return _wrong(f"PriorityClass {name} does not exist", "`kubectl get priorityclasses` shows those that do")

    return check


def _gang(gang: str) -> Check:
    async def check(api: KubeApi) -> list[Finding]:
        if await _find(api, GANG_APIS[gang]):
            return _ready(f"gang scheduler {gang}")
        return _wrong(f"gang scheduler {gang}: the cluster does not have it", "install it, or leave --gang out")

    return check


def _quota(requests: Mapping[str, float]) -> Check:
    async def check(api: KubeApi) -> list[Finding]:
        answer = await api.read_path(f"api/v1/namespaces/{api.namespace}/resourcequotas")
        findings: list[Finding] = []
        for quota in answer.get("items") or ():
            status = quota.get("status") or {}
            hard, used_amounts = status.get("hard") or {}, status.get("used") or {}
            for name, amount in requests.items():
                key = next((candidate for candidate in (f"requests.{name}", name) if candidate in hard), None)
                if key is None:
                    continue
                most, remaining = (
                    float(quantity(hard[key])),
                    float(quantity(hard[key])) - float(quantity(used_amounts.get(key, 0))),
                )
                label = f"quota {quota['metadata']['name']}: {key}"
                if amount > most:
                    findings += _wrong(
                        f"{label} is {hard[key]}, one pod requests {amount:g}", "raise it, or request less"
                    )
                elif amount > remaining:
                    findings.append(
                        _doubt(f"{label}: {remaining:g} are left, one pod requests {amount:g}", "steps wait for more")
                    )
        return findings or _ready("quota")

    return check


async def _pod_security(api: KubeApi) -> list[Finding]:
    labels = ((await api.read_path(f"api/v1/namespaces/{api.namespace}"))["metadata"]).get("labels") or {}
    level = labels.get("pod-security.kubernetes.io/enforce", "privileged")
    if level != "restricted":
        return _ready(f"Pod Security: {level}")
    settings = await _controller_settings(api)
    if settings is not None and "securityContext" in settings.get("executor", ""):
        return _ready("Pod Security: restricted, and Argo's own containers have a securityContext")
    what = f"Pod Security: namespace {api.namespace} enforces restricted, also for Argo's own init and wait containers"
    mend = (
        f"they need executor.securityContext in {CONTROLLER_SETTINGS}: {{allowPrivilegeEscalation: false, "
        "capabilities: {drop: [ALL]}, runAsNonRoot: true}"
    )
    return [_doubt(what, mend)]


async def _controller_settings(api: KubeApi) -> dict[str, str] | None:
    """The settings of Argo's controller; None where they cannot be seen."""
    for namespace in dict.fromkeys((api.namespace, CONTROLLER_NAMESPACE)):
        try:
            settings = await _find(api, f"api/v1/namespaces/{namespace}/configmaps/{CONTROLLER_SETTINGS}")
        except KubeError:
            continue
        if settings:
            data = settings.get("data") or {}
            return {
                **data,
                "executor": data.get("executor") or data.get("config", ""),
                "config": data.get("config", ""),
            }
    return None


def _artifact_repository(templates: Sequence[str]) -> Check:
    async def check(api: KubeApi) -> list[Finding]:
        if await _find(api, "api/v1/namespaces/{namespace}/configmaps/artifact-repositories"):
            return _ready("artifact repository: the namespace's own")
        settings = await _controller_settings(api)
        what = f"steps {', '.join(templates)} have output artifacts"
        mend = "make a ConfigMap artifact-repositories in the namespace, or give the controller an artifactRepository"
        if settings is None:
            return [_doubt(f"artifact repository: {what}; whether Argo's controller has one cannot be seen from here")]
        if settings.get("artifactRepository") or "artifactRepository" in settings["config"]:
            return _ready("artifact repository: the controller's")
        return _wrong(f"artifact repository: {what}, and there is none", mend)

    return check

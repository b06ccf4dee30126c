"""What is asked of a namespace before a workflow is submitted to it, and what each answer means."""

import base64
import json
import threading
from typing import Any

import pytest

from everstep.cli.main import main
from everstep.errors import BadInput
from everstep.runtime.submission import ClusterOptions, choose, for_argo
from everstep.runtime.submission.custom_resource import CustomResource
from everstep.runtime.submission.needs import Needs, account_rights, needs_of
from everstep.runtime.submission.preflight import Finding, Verdict, examine
from tests.submission.clusters import Cluster
from tests.submission.conftest import Environment

KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
NEEDS = Needs(
    {"everstep-train": account_rights("everstep-train")},
    {"store": KEYS},
    ("login",),
    ("high",),
    "volcano",
    ("everstep-train",),
    ("report",),
    {"cpu": 2.0, "memory": 4e9},
    stores=("store",),
    version="0.0.2",
)


@pytest.fixture
def route(by_kube: Environment, cluster: Cluster) -> CustomResource:
    """A way to a namespace that is ready."""
    cluster.objects = {
        "secrets/store": {"data": secret({**dict.fromkeys(KEYS, "x"), "AWS_ENDPOINT_URL": "https://s3.example"})},
        "secrets/login": {"type": "kubernetes.io/dockerconfigjson"},
        "configmaps/workflow-controller-configmap": {"data": {"artifactRepository": "s3: {bucket: b}"}},
    }
    route = choose("argo", by_kube).route
    assert isinstance(route, CustomResource)
    return route


def secret(values: dict[str, str]) -> dict[str, str]:
    """As a Secret has them."""
    return {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}


def problems(findings: list[Finding]) -> list[tuple[str, str]]:
    """What is not ready."""
    return [(finding.verdict.value, finding.text) for finding in findings if finding.verdict is not Verdict.READY]


def test_nothing_is_said_against_a_namespace_that_is_ready(route: CustomResource) -> None:
    findings = route.examine(NEEDS)
    assert problems(findings) == []
    assert len(findings) == 10


QUOTA = {"metadata": {"name": "q"}, "status": {"hard": {"requests.cpu": "3"}, "used": {"requests.cpu": "2500m"}}}


@pytest.mark.parametrize(
    ("missing", "verdict", "parts"),
    [
        ("create workflows", "wrong", ["you may not create workflows in namespace ml"]),
        ("everstep-train", "wrong", ["service account everstep-train does not exist", "kubectl apply -n ml"]),
        ("create pods", "wrong", ["everstep-train lacks rights: pods (create)", "rbac.yaml"]),
        ("store", "wrong", ["secret store does not exist", "create secret generic store -n ml --from-literal=AWS_ACC"]),
        ("store", "wrong", ["secret store does not exist", "--from-literal=AWS_ENDPOINT_URL=..."]),
        ("login", "wrong", ["image pull secret login does not exist", "docker-registry login"]),
        ("high", "wrong", ["PriorityClass high does not exist"]),
        ("v1beta1", "wrong", ["gang scheduler volcano: the cluster does not have it", "leave --gang out"]),
    ],
)
def test_what_is_missing_is_named_with_its_mend(
    route: CustomResource, cluster: Cluster, missing: str, verdict: str, parts: list[str]
) -> None:
    cluster.missing = {missing}
    (problem, *_) = problems(route.examine(NEEDS))
    assert problem[0] == verdict
    assert all(part in problem[1] for part in parts), problem
    assert "\n" not in problem[1]


@pytest.mark.parametrize(
    ("name", "thing", "verdict", "parts"),
    [
        ("secrets/store", {"data": secret({KEYS[0]: "x"})}, "wrong", ["lacks AWS_SECRET_ACCESS_KEY", "kubectl patch"]),
        (
            "secrets/store",
            {"data": secret({**dict.fromkeys(KEYS, "x"), "MINIO_ENDPOINT": ""})},
            "wrong",
            ["secret store lacks AWS_ENDPOINT_URL; ", '{"AWS_ENDPOINT_URL": "..."}'],
        ),
        (
            "secrets/store",
            {"data": secret({**dict.fromkeys(KEYS, "x"), "AWS_ENDPOINT_URL": "http://localhost:9000"})},
            "wrong",
            ["AWS_ENDPOINT_URL http://localhost:9000 means each pod itself"],
        ),
        (
            "workflowtemplates/everstep-train",
            {"metadata": {"labels": {"app.kubernetes.io/version": "0.0.1"}}},
            "doubtful",
            [
                "everstep-train is that of version 0.0.1, not 0.0.2",
                "everstep templates --image IMAGE | kubectl apply",
            ],
        ),
        ("secrets/login", {"type": "Opaque"}, "wrong", ["of type Opaque, which holds no login"]),
        ("resourcequotas", {"items": [QUOTA]}, "doubtful", ["quota q: requests.cpu: 0.5 are left, one pod requests 2"]),
        (
            "resourcequotas",
            {"items": [{**QUOTA, "status": {"hard": {"memory": "1Gi"}}}]},
            "wrong",
            ["quota q: memory is 1Gi", "raise it"],
        ),
        (
            "namespaces/ml",
            {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
            "doubtful",
            ["enforces restricted", "executor.securityContext"],
        ),
        (
            "configmaps/workflow-controller-configmap",
            {"data": {}},
            "wrong",
            ["artifact repository: steps report have output artifacts, and there is none", "artifact-repositories"],
        ),
    ],
)
def test_what_is_not_as_it_must_be_is_named(
    route: CustomResource, cluster: Cluster, name: str, thing: dict[str, Any], verdict: str, parts: list[str]
) -> None:
    cluster.objects[name] = thing
    (problem,) = problems(route.examine(NEEDS))
    assert problem[0] == verdict
    assert all(part in problem[1] for part in parts), problem


STORE = {**dict.fromkeys(KEYS, "x"), "MINIO_ENDPOINT": "http://minio.storage.svc.cluster.local:9000"}
READY, STARTING = ({"endpoints": [{"conditions": {"ready": ready}}]} for ready in (True, False))


@pytest.mark.parametrize(
    ("slices", "missing", "problem"),
    [
        ([READY], set[str](), ""),
        ([STARTING, READY], set[str](), ""),
        ([STARTING], set[str](), "names a Service behind which no pod is ready"),
        ([], set[str](), "names a Service behind which no pod is ready"),
        ([READY], {"minio"}, "names a Service that namespace storage does not have"),
    ],
)
def test_a_store_that_is_a_service_must_have_pods(
    route: CustomResource, cluster: Cluster, slices: list[dict[str, Any]], missing: set[str], problem: str
) -> None:
    cluster.objects |= {"secrets/store": {"data": secret(STORE)}, "endpointslices": {"items": slices}}
    cluster.missing = missing
    texts = [text for _, text in problems(route.examine(NEEDS))]
    assert len(texts) == bool(problem)
    assert all(problem in text and "name the store as pods reach it" in text for text in texts)


def test_a_service_of_an_external_name_needs_no_pods(route: CustomResource, cluster: Cluster) -> None:
    external = {"spec": {"type": "ExternalName"}}
    cluster.objects |= {"secrets/store": {"data": secret(STORE)}, "services/minio": external}
    cluster.objects["endpointslices"] = {"items": []}
    assert problems(route.examine(NEEDS)) == []


def test_what_nobody_may_look_at_is_doubtful_and_not_wrong(route: CustomResource, cluster: Cluster) -> None:
    cluster.hidden = True
    verdicts = {verdict for verdict, _ in problems(route.examine(NEEDS))}
    assert verdicts == {"doubtful"}


def test_an_answer_that_does_not_come_is_not_waited_for(route: CustomResource, cluster: Cluster) -> None:
    gate = threading.Event()
    cluster.before = gate.wait
    try:
        findings = route.ask(lambda api: examine(api, NEEDS, within_s=0.05))
    finally:
        gate.set()
    assert {finding.verdict for finding in findings} == {Verdict.DOUBTFUL}
    assert findings[0].text == "your right to submit: no answer in 0.05 s"


def test_needs_are_read_from_the_manifest() -> None:
    artifact = {"name": "page", "path": "/tmp/page"}
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}}
    train = {"name": "priority-class", "value": "{{workflow.parameters.class}}"}
    manifest = {
        "spec": {
            "serviceAccountName": "me",
            "imagePullSecrets": [{"name": "login"}],
            "arguments": {"parameters": [{"name": "class", "value": "high"}]},
            "templates": [
                {
                    "name": "a",
                    "outputs": {"artifacts": [artifact]},
                    "container": {"image": "i", "resources": resources},
                },
                {
                    "name": "b",
                    "outputs": {"artifacts": [{**artifact, "s3": {"key": "k"}}]},
                    "serviceAccountName": "me-train",
                },
                {"name": "c", "serviceAccountName": "me{{inputs.parameters.x}}"},
                {
                    "name": "main",
                    "dag": {
                        "tasks": [
                            {
                                "name": "t",
                                "template": "b",
                                "arguments": {"parameters": [train, {"name": "gang", "value": "volcano"}]},
                            },
                            {"name": "u", "templateRef": {"name": "everstep-check", "template": "check"}},
                        ]
                    },
                },
            ],
        }
    }
    needs = needs_of(manifest)
    assert list(needs.accounts) == ["me", "me-train"]
    assert needs.pull_secrets == ("login",)
    assert needs.priority_classes == ("high",)
    assert needs.gang == "volcano"
    assert needs.templates == ("everstep-check",)
    assert needs.artifacts == ("a",)
    assert needs.requests == {"cpu": 0.5, "memory": float(1 << 30)}


def test_the_secret_of_a_store_must_name_its_endpoint_and_other_secrets_need_not() -> None:
    theirs = {"secretKeyRef": {"name": "theirs", "key": KEYS[0]}}
    at_home = {"secretKeyRef": {"name": "at-home", "key": "MINIO_ENDPOINT", "optional": True}}
    variables = [
        [{"name": KEYS[0], "valueFrom": theirs}],
        [{"name": "MINIO_ENDPOINT", "valueFrom": at_home}, {"name": "AWS_ENDPOINT_URL", "value": "http://s3.example"}],
    ]
    templates: list[dict[str, Any]] = [{"name": "own", "container": {"image": "everstep:0"}}]
    templates += [{"name": "theirs", "container": {"image": "busybox", "env": env}} for env in variables]
    options = ClusterOptions("everstep:1", store_secret="keys")
    needs = needs_of(for_argo({"spec": {"templates": templates}}, "x", "ml", options, "everstep:0"))
    assert needs.secrets.keys() == {"keys", "theirs"}
    assert needs.stores == ("keys",)


def test_priority_classes_of_a_job_spec_are_needs_too() -> None:
    pods = {"template": {"spec": {"priorityClassName": "low"}}}
    specs = [{"priority": "high", "replicaSpecs": {"worker": pods}}, {"priority": "normal"}, ["no spec"]]
    tasks = [
        {"name": "t", "template": "a", "arguments": {"parameters": [{"name": "job-spec", "value": json.dumps(spec)}]}}
        for spec in specs
    ]
    assert needs_of({"spec": {"templates": [{"name": "m", "dag": {"tasks": tasks}}]}}).priority_classes == (
        "high",
        "low",
    )


def test_a_workflow_whose_namespace_is_not_ready_is_refused_whole(route: CustomResource, cluster: Cluster) -> None:
    from everstep.cluster import refuse_unready

    cluster.missing = {"default"}
    with pytest.raises(BadInput, match=r"(?s)nothing was submitted:\n  service account default does not exist"):
        refuse_unready(route, {"spec": {"templates": []}})
    assert cluster.submitted == []


def test_the_doctor_shows_all_and_its_exit_code_says_whether_it_is_well(
    route: CustomResource, cluster: Cluster, by_kube: Environment, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in by_kube.items():
        monkeypatch.setenv(name, value)
    words = ["doctor", "--store-secret", "store"]
    assert main(words) == 0
    assert " ✔ service account everstep-train, and its rights\n" in capsys.readouterr().out
    cluster.missing = {"everstep-train"}
    assert main(words) == 2
    assert " ✗ service account everstep-train does not exist in namespace ml; " in capsys.readouterr().out

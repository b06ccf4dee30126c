"""templates/chart/files: whose pods may do what, and who may reach whom. tests/cluster asks a real API server."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from everstep.runtime.platform import NodeRequest
from everstep.runtime.platform.kubernetes.pods import Owner, pod_of
from everstep.runtime.workflow.expressions import evaluate
from everstep.steps.preprocess.masters import Pod, pod_template
from tests.harness import ROOT

FILES = ROOT / "templates/chart/files"
MAY = {
    "everstep": {"workflowtaskresults"},
    "everstep-train": {"workflowtaskresults", "pods", "secrets", "configmaps", "podgroups", "workflows"},
    "everstep-spark": {"workflowtaskresults", "pods"},
    "everstep-chaos": {
        "workflowtaskresults", "pods", "pods/eviction", "pods/exec", "pods/ephemeralcontainers", "pods/log",
        "configmaps",
    },
}  # fmt: skip
"""By service account, the kinds of objects that it may do anything with."""
RIGHTS = ("rbac.yaml", "chaos/rbac.yaml")


def objects(*names: str) -> list[dict[str, Any]]:
    """Of these files."""
    return [object_ for name in names for object_ in yaml.safe_load_all((FILES / name).read_text())]


def rules(account: str) -> Iterator[dict[str, Any]]:
    """All that are bound to that account."""
    there = objects(*RIGHTS)
    for binding in (object_ for object_ in there if object_["kind"] == "RoleBinding"):
        if account in [subject["name"] for subject in binding["subjects"]]:
            (role,) = [
                object_
                for object_ in there
                if object_["kind"] == "Role" and object_["metadata"]["name"] == binding["roleRef"]["name"]
            ]
            yield from role["rules"]


@pytest.mark.parametrize("account", MAY)
def test_each_account_may_do_what_its_step_needs_and_nothing_to_other_kinds(account: str) -> None:
    assert {kind for rule in rules(account) for kind in rule["resources"]} == MAY[account]
    words = {word for rule in rules(account) for key in ("apiGroups", "resources", "verbs") for word in rule[key]}
    assert "*" not in words
    below = {kind for kind in MAY[account] if "/" in kind}
    assert {kind for kind in words if "/" in kind} == below, "logs, exec, evictions"
    assert not below or account == "everstep-chaos"


def test_every_account_that_is_bound_is_made() -> None:
    there = objects(*RIGHTS)
    assert {object_["metadata"]["name"] for object_ in there if object_["kind"] == "ServiceAccount"} == MAY.keys()
    assert {
        subject["name"] for object_ in there if object_["kind"] == "RoleBinding" for subject in object_["subjects"]
    } == MAY.keys()


def test_steps_that_parse_what_others_wrote_run_as_the_account_without_pods_and_secrets() -> None:
    accounts = {}
    for manifest in objects("steps.yaml"):
        (template,) = manifest["spec"]["templates"]
        accounts[template["name"]] = template["serviceAccountName"]
    assert {accounts.pop("train"), accounts.pop("check")} == {"everstep-train"}, "they make pods"
    spark = accounts.pop("preprocess")
    assert set(accounts.values()) == {"everstep"}
    assert accounts.keys() == {"corpus", "model", "evaluate", "report"}
    stem, _, expression = spark.removesuffix("}}").partition("{{=")
    for master, account in (("local[*]", "everstep"), ("spark://h:7077", "everstep"), ("k8s://", "everstep-spark")):
        assert f"{stem}{evaluate(expression, {'inputs': {'parameters': {'spark-master': master}}})}" == account


def test_pods_of_steps_of_jobs_and_of_spark_are_those_that_the_policy_lets_reach_each_other() -> None:
    (policy,) = objects("network.yaml")
    (expression,) = policy["spec"]["podSelector"]["matchExpressions"]
    assert expression["operator"] == "Exists"
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": policy["spec"]["podSelector"]}]}]
    label = expression["key"]
    for manifest in objects("steps.yaml"):
        (template,) = manifest["spec"]["templates"]
        assert template["metadata"]["labels"] == {label: template["name"]}
    request = NodeRequest("worker-0", "worker", "", {}, ())
    template = {"containers": [{"name": "agent"}]}
    node = pod_of(request, "job", Owner("w", "uid"), template)
    assert node["metadata"]["labels"][label] == "train"
    executor = Pod("https://10.0.0.1:443", "ml", "/token", "/ca.crt", "step", "10.1.0.9", template)
    assert yaml.safe_load(pod_template(executor))["metadata"]["labels"] == {label: "preprocess"}

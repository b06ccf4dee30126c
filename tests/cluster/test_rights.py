"""What the pods' service accounts may do: asked of the real API server, verb by verb."""

import itertools

import pytest

from tests.cluster.layout import NAMESPACE
from tests.cluster.lifecycle import Cluster
from tests.cluster.namespace import OF_CHAOS, OF_SPARK, OF_TRAINING, SERVICE_ACCOUNT

VERBS = (
    "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "bind", "escalate",
    "impersonate", "use", "approve", "proxy",
)  # fmt: skip
RESOURCES = (
    ("", "pods"), ("", "pods/log"), ("", "pods/exec"), ("", "pods/eviction"), ("", "pods/attach"),
    ("", "pods/portforward"), ("", "pods/status"), ("", "pods/ephemeralcontainers"), ("", "users"), ("", "groups"),
    ("", "secrets"), ("", "configmaps"),
    ("", "services"), ("", "events"), ("", "serviceaccounts"), ("", "serviceaccounts/token"), ("", "nodes"),
    ("", "persistentvolumeclaims"), ("", "namespaces"), ("apps", "deployments"), ("batch", "jobs"),
    ("rbac.authorization.k8s.io", "roles"), ("rbac.authorization.k8s.io", "rolebindings"),
    ("argoproj.io", "workflows"), ("argoproj.io", "workflowtaskresults"), ("argoproj.io", "workflowtemplates"),
    ("argoproj.io", "workflowtasksets"), ("networking.k8s.io", "networkpolicies"),
    ("rbac.authorization.k8s.io", "clusterroles"), ("certificates.k8s.io", "certificatesigningrequests"),
    ("scheduling.x-k8s.io", "podgroups"), ("kueue.x-k8s.io", "workloads"), ("kueue.x-k8s.io", "localqueues"),
    ("scheduling.volcano.sh", "podgroups"), ("scheduling.volcano.sh", "queues"), ("chaosblade.io", "chaosblades"),
)  # fmt: skip
RESULTS = {"workflowtaskresults": {"create", "patch"}}
PODS = {"get", "list", "watch", "create", "patch", "delete"}
MAY = {
    SERVICE_ACCOUNT: RESULTS,
    OF_SPARK: {**RESULTS, "pods": {*PODS, "deletecollection"}},
    OF_CHAOS: {
        **RESULTS, "pods": {"get", "list", "delete"}, "pods/eviction": {"create"}, "pods/exec": {"get", "create"},
        "pods/ephemeralcontainers": {"patch"}, "pods/log": {"get"}, "configmaps": {"get", "patch"},
    },
    OF_TRAINING: {
        **RESULTS, "pods": PODS, "secrets": {"create"}, "configmaps": {"get", "create"},
        "podgroups": {"get", "create", "delete"}, "workflows": {"get"},
    },
}  # fmt: skip
"""By account and resource: the verbs."""


def allowed_verbs(cluster: Cluster, account: str, namespace: str, name: str = "") -> dict[str, set[str]]:
    """By resource: the verbs that the account may use there, on the object of that name."""
    questions = list(itertools.product(RESOURCES, VERBS))
    reviews = []
    for (group, resource), verb in questions:
        kind, _, below = resource.partition("/")
        wish = {
            "namespace": namespace, "verb": verb, "group": group, "resource": kind, "subresource": below, "name": name,
        }  # fmt: skip
        user = f"system:serviceaccount:{NAMESPACE}:{account}"
        spec = {"user": user, "groups": ["system:authenticated"], "resourceAttributes": wish}
        reviews.append({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
    rights: dict[str, set[str]] = {}
    for review in cluster.kubectl.create(*reviews):
        wish = review["spec"]["resourceAttributes"]
        if review["status"]["allowed"]:
            resource = "/".join(filter(None, (wish["resource"], wish.get("subresource"))))
            rights.setdefault(resource, set()).add(wish["verb"])
    return rights


@pytest.mark.parametrize("account", MAY)
def test_the_account_may_do_what_its_steps_need_and_nothing_else(cluster: Cluster, account: str) -> None:
    assert allowed_verbs(cluster, account, NAMESPACE) == MAY[account]


@pytest.mark.parametrize("account", MAY)
def test_elsewhere_it_may_do_nothing(cluster: Cluster, account: str) -> None:
    assert allowed_verbs(cluster, account, "default") == {}

"""Pods that lose their network, or their way to the store, by a container that is added to them."""

import asyncio
import random
from typing import Any

import pytest

from everstep.runtime.chaos import Fault, Kind, NotPossibleError
from everstep.runtime.chaos.beside_node import BesideNode
from everstep.runtime.platform.kubernetes import KubeApi
from everstep.runtime.submission.kube_config import read_access
from tests.cluster import faults, images
from tests.cluster.argo import ByArgo
from tests.cluster.commands import environment_of, everstep
from tests.cluster.layout import NAMESPACE
from tests.cluster.lifecycle import Cluster
from tests.harness import wait_until

SECONDS = "5"


def cuts_of(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of the containers that were added to it."""
    return [status["state"] for status in pod["status"].get("ephemeralContainerStatuses", ())]


@pytest.mark.usefixtures("controller")
def test_a_run_on_a_cluster_loses_its_store_and_a_node_its_network_and_it_goes_on(by_argo: ByArgo) -> None:
    by_argo.submit_paced("", faults.spec())
    by_argo.wait_iteration(5)
    words = ["--namespace", NAMESPACE, "--yes", "--seconds", SECONDS]

    def lose(*more: str) -> str:
        completed = everstep(by_argo.cluster, "chaos", by_argo.name, *words, *more)
        assert completed.returncode == 0, completed.stderr + by_argo.last_words()
        return completed.stdout

    said = lose("--kind", "store")
    hit = [by_argo.steps()[-1], *by_argo.nodes().values()]
    assert f"in {len(hit)} pods, no connection to 10.90.0.10:9000 (10.90.0.10) for {SECONDS} s" in said
    assert [cuts_of(pod)[0]["terminated"]["exitCode"] for pod in hit] == [0] * len(hit)
    faults.goes_on(by_argo)

    node = sorted(by_argo.nodes())[0]
    assert "no packet leaves or enters the pod: no connection to the master" in lose(
        "--kind", "network", "--node", node
    )
    faults.goes_on(by_argo)
    assert by_argo.in_order()
    by_argo.stop()
    assert by_argo.finish() == "Succeeded", by_argo.last_words()


def test_a_namespace_whose_pods_may_not_change_their_network_refuses_it_with_the_mend(cluster: Cluster) -> None:
    namespace = "strict"
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})

    def has_account() -> object:
        return cluster.kubectl.get("serviceaccount", "default", namespace)

    wait_until(has_account, "the namespace's account", 60)
    container = {"name": "agent", "image": images.PAUSE}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"}, "spec": {"containers": [container]}}
    (made,) = cluster.kubectl.create(pod, namespace=namespace)

    async def lose() -> None:
        access, _ = read_access(environment_of(cluster), namespace)
        async with KubeApi(access) as api:
            await BesideNode(api, random.Random(0)).cut(made, Fault(Kind.NETWORK), "10.90.0.10:9000")

    with pytest.raises(NotPossibleError, match=r'violates PodSecurity "baseline:latest".*NET_ADMIN') as why:
        asyncio.run(lose())
    mend = f"kubectl label --overwrite namespace {namespace} pod-security.kubernetes.io/enforce=privileged"
    assert str(why.value).endswith(mend)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")

"""The platform of a job on a real API server, with the rights of its service account, and its pods on real nodes."""

import asyncio
import json
import secrets
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from everstep.runtime.platform import NodeRequest
from everstep.runtime.platform.kubernetes import Access, KubeApi, KubeError, KubernetesPlatform, Owner
from everstep.runtime.platform.kubernetes.api import bearer_from
from everstep.runtime.platform.kubernetes.platform import shared_token
from everstep.runtime.platform.kubernetes.workflow import is_over_for_good
from tests.cluster import images, layout, plane
from tests.cluster.lifecycle import Cluster
from tests.cluster.namespace import OF_TRAINING, SERVICE_ACCOUNT, STORE_SECRET
from tests.harness import wait_until

DEADLINE_S = 400
HOSTS = [layout.node_name(node) for node in range(1, layout.NODES + 1)]


def template() -> dict:
    """A pod spec in which an agent can run."""
    patch = images.patch()
    (container,) = patch["containers"]
    return {**patch, "containers": [{**container, "name": "agent", "image": images.HOST}]}


def request(name: str, *arguments: str, avoid: list[str] = []) -> NodeRequest:  # noqa: B006 - only read
    """For a node whose agent gets these arguments."""
    return NodeRequest(name, "worker", "", {"EVERSTEP_JOB": "j"}, list(arguments), avoid_hosts=avoid)


@pytest.fixture
def owner(cluster: Cluster) -> Owner:
    """A Workflow that exists."""
    name = f"owner-{secrets.token_hex(3)}"
    spec = {"entrypoint": "main", "templates": [{"name": "main", "suspend": {}}]}
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": name}, "spec": spec}
    (object_made,) = cluster.kubectl.create(workflow)
    return Owner(name, object_made["metadata"]["uid"])


@pytest.fixture
def play(cluster: Cluster, tmp_path: Path) -> Callable[[Callable[[KubeApi], Awaitable[None]]], None]:
    """Runs a story that asks the API as the pods of a pipeline do."""
    token = tmp_path / "token"
    token.write_text(cluster.kubectl("create", "token", OF_TRAINING))
    trusted = ssl.create_default_context(cafile=plane.KEYS / "apiserver.crt")
    access = Access(layout.API, layout.NAMESPACE, bearer_from(token), trusted)

    def play(story: Callable[[KubeApi], Awaitable[None]]) -> None:
        async def run_story() -> None:
            async with asyncio.timeout(DEADLINE_S), KubeApi(access) as api:
                await story(api)

        asyncio.run(run_story())

    return play


def test_pods_are_made_once_told_of_and_gone_with_the_code_of_their_agent(cluster: Cluster, owner: Owner, play) -> None:
    job = f"{owner.uid}-train"

    async def story(api: KubeApi) -> None:
        await shared_token(api, job, owner)
        async with KubernetesPlatform(api, job, owner, template()) as platform:
            assert await platform.observe() == []
            node_made = await platform.create(request("worker-0-0", "--no-such-flag"))
            assert (await platform.create(request("worker-0-0", "--no-such-flag"))).uid == node_made.uid
            (pod,) = cluster.kubectl.list("pods", "everstep/node=worker-0-0")
            assert pod["metadata"]["ownerReferences"][0]["uid"] == owner.uid
            node_end = await anext(platform.node_ends())
            assert (node_end.name, node_end.uid, node_end.exit_code) == ("worker-0-0", node_made.uid, 2)
            with pytest.raises(OSError, match="already exists and has ended"):
                await platform.create(request("worker-0-0"))

    play(story)


def test_a_pod_without_a_host_waits_until_it_is_deleted_and_the_next_master_finds_it(owner: Owner, play) -> None:
    job = f"{owner.uid}-train"

    async def story(api: KubeApi) -> None:
        await shared_token(api, job, owner)
        async with KubernetesPlatform(api, job, owner, template()) as platform:
            node_made = await platform.create(request("worker-0-0", avoid=HOSTS))
            assert node_made.host == ""
        async with KubernetesPlatform(api, job, owner, template()) as platform:
            (node,) = await platform.observe()
            assert (node.name, node.uid) == ("worker-0-0", node_made.uid)
            await platform.delete("worker-0-0", "another-uid")
            await platform.delete("worker-0-0", node_made.uid)
            node_end = await anext(platform.node_ends())
            assert (node_end.uid, node_end.exit_code, node_end.reason) == (node_made.uid, None, "its pod was deleted")

    play(story)


def test_only_the_workflow_that_is_there_will_try_its_step_again(cluster: Cluster, owner: Owner, play) -> None:
    async def story(api: KubeApi) -> None:
        assert not await is_over_for_good(api, owner, 0.0)
        assert await is_over_for_good(api, Owner(owner.name, "another-uid"), 0.0)
        cluster.kubectl("delete", "workflow", owner.name)
        assert await is_over_for_good(api, owner, 0.0)
        for ask in (lambda: api.list("secrets", ""), lambda: api.get("secrets", STORE_SECRET)):
            with pytest.raises(KubeError, match="forbidden"):
                await ask()

    play(story)


def test_what_a_workflow_owns_goes_with_it(cluster: Cluster, owner: Owner, play) -> None:
    job = f"{owner.uid}-train"

    async def story(api: KubeApi) -> None:
        await shared_token(api, job, owner)
        async with KubernetesPlatform(api, job, owner, template()) as platform:
            await platform.create(request("worker-0-0", avoid=HOSTS))
            cluster.kubectl("delete", "workflow", owner.name, "--wait=false")
            assert (await anext(platform.node_ends())).reason == "its pod was deleted"

    play(story)


def test_a_pod_reaches_the_api_and_the_store_without_being_root(cluster: Cluster) -> None:
    look = f"""
import json, os, ssl, urllib.request as web
folder = "/var/run/secrets/kubernetes.io/serviceaccount/"
trust = ssl.create_default_context(cafile=folder + "ca.crt")
found = web.urlopen("https://" + os.environ["KUBERNETES_SERVICE_HOST"] + "/version", context=trust)
print(os.getuid(), json.load(found)["major"], web.urlopen("{layout.STORE}/minio/health/ready").status)
"""
    patch = images.patch()
    (container,) = patch["containers"]
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    name = f"look-{secrets.token_hex(3)}"
    container = {
        **container, "image": images.HOST, "command": ["python", "-c", look], "securityContext": security,
        "workingDir": "/tmp",
    }  # fmt: skip
    spec = {
        **patch, "containers": [container], "restartPolicy": "Never", "serviceAccountName": SERVICE_ACCOUNT,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
    }  # fmt: skip
    cluster.kubectl.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def ended_pod() -> dict | None:
        pod = cluster.kubectl.get("pod", name)
        return pod if pod and pod["status"].get("phase") in ("Succeeded", "Failed") else None

    pod = wait_until(ended_pod, f"the end of {name}", DEADLINE_S, pause_s=1)
    assert pod["status"]["phase"] == "Succeeded", json.dumps(pod["status"]) + cluster.kubectl("logs", name)
    assert cluster.kubectl("logs", name).split() == ["1000", "1", "200"]

"""Checked pods that wait for a training become its nodes."""

import copy
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from everstep.runtime.job.spec import Resources
from everstep.runtime.platform import NodeRequest
from everstep.runtime.platform.kubernetes import Access, KubeApi, KubernetesPlatform, PodRules
from everstep.runtime.platform.kubernetes.held_pods import HELD, LEAST_S, UNTIL, hold, is_suitable
from everstep.runtime.platform.kubernetes.pods import JOB as JOB_LABEL
from everstep.runtime.platform.kubernetes.pods import digest, pod_of
from everstep.runtime.protocol.handover import NodeStart
from tests.platform.pod_api import PodApi
from tests.platform.test_kubernetes_platform import JOB, NODE, OWNER, POD, TEMPLATE, no_wait, request, tell

CHECK = "u-check-01234567"
NOW = 1000.0
SPEC = {
    "containers": [
        {
            "name": "agent", "image": "everstep:1", "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
            "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "4Gi"}},
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        }
    ],
    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "nodeSelector": {"pool": "gpu"},
}  # fmt: skip


def held_pod(host: str = "machine-1", until: float = NOW + 100, spec: dict[str, Any] = SPEC) -> dict[str, Any]:
    """A pod of a check that waits for the job, as the API shows it."""
    held_request = NodeRequest("check-0", "check", "", {"EVERSTEP_JOB": CHECK}, ["--node", "check-0"])
    pod = copy.deepcopy(pod_of(held_request, CHECK, OWNER, spec))
    change = hold(JOB, until)["metadata"]
    pod["metadata"] |= {"uid": "7", "labels": {**pod["metadata"]["labels"], **change["labels"]}}
    pod["metadata"]["annotations"] |= change["annotations"]
    pod["spec"]["nodeName"] = host
    resources = pod["spec"]["containers"][0]["resources"]
    resources["requests"] = {**resources["limits"], **resources["requests"]}  # The API adds them.
    return {**pod, "status": {"phase": "Running"}}


def suits(pod: dict[str, Any], spec: dict[str, Any] = SPEC, **more: Any) -> bool:
    """Whether it suits a node of the job."""
    wish = request(**more)
    return is_suitable(pod, pod_of(wish, JOB, OWNER, spec), wish, NOW)


def test_a_pod_that_has_what_the_node_asks_for_suits() -> None:
    assert suits(held_pod())


@pytest.mark.parametrize(
    "more", [{"avoid_hosts": ["machine-1"]}, {"not_on": "machine-1"}, {"resources": Resources(cpu=3)}]
)
def test_one_on_a_machine_to_avoid_or_of_another_size_does_not(more: dict[str, Any]) -> None:
    assert not suits(held_pod(), **more)


def test_one_whose_time_is_nearly_over_does_not() -> None:
    assert not suits(held_pod(until=NOW + LEAST_S - 1))


def test_one_that_has_ended_or_is_ending_does_not() -> None:
    assert not suits({**held_pod(), "status": {"phase": "Succeeded"}})
    pod = held_pod()
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert not suits(pod)


@pytest.mark.parametrize(
    "change",
    [
        {"nodeSelector": {"pool": "other"}},
        {"tolerations": [{"key": "other", "operator": "Exists"}]},
        {"priorityClassName": "high"},
        {"hostNetwork": True},
        {"hostIPC": True},
        {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}]},
        {"containers": [{**SPEC["containers"][0], "image": "everstep:2"}]},
        {"containers": [{**SPEC["containers"][0], "env": [{"name": "NCCL_DEBUG", "value": "WARN"}]}]},
    ],
)
def test_one_that_is_otherwise_than_the_trainings_pods_does_not(change: dict[str, Any]) -> None:
    assert not suits(held_pod(), {**SPEC, **change})


@asynccontextmanager
async def taking_platform(server: PodApi, url: str, starts: dict[str, NodeStart]) -> AsyncIterator[KubernetesPlatform]:
    """A master's way to its pods, which takes those that were checked."""

    async def leave(pod: str, start: NodeStart) -> None:
        starts[pod] = start

    async with (
        KubeApi(Access(url, server.namespace), no_wait) as api,
        KubernetesPlatform(api, JOB, OWNER, TEMPLATE, rules=PodRules(leave_start=leave)) as kubernetes,
    ):
        yield kubernetes


def waiting(host: str = "machine-1") -> dict[str, Any]:
    """One that suits a platform of TEMPLATE."""
    return held_pod(host, time.time() + 100, TEMPLATE)


def test_the_pod_becomes_the_node_and_is_told_what_to_run() -> None:
    async def story(server: PodApi, url: str) -> None:
        pod = waiting()
        name = pod["metadata"]["name"]
        server.pods[name] = pod
        starts: dict[str, NodeStart] = {}
        async with taking_platform(server, url, starts) as kubernetes:
            node = await kubernetes.create(request())
            assert (node.name, node.uid, node.host) == (NODE, "7", "machine-1")
            assert list(server.pods) == [name], "no pod was created"
            assert await kubernetes.observe() == [node]
            await kubernetes.delete(node.name, node.uid)
            assert server.pods == {}, "it ends by the name that it has"
        labels = pod["metadata"]["labels"]
        assert labels[JOB_LABEL] == digest(CHECK), "before it was taken"
        assert list(starts[name].arguments) == ["--node", NODE, "--host", "machine-1", "--", "a.py", "$(x)"]
        assert starts[name].environment["EVERSTEP_JOB"] == JOB

    tell(story)


def test_a_taken_pod_is_no_longer_held() -> None:
    async def story(server: PodApi, url: str) -> None:
        pod = waiting()
        server.pods[pod["metadata"]["name"]] = pod
        async with taking_platform(server, url, {}) as kubernetes:
            await kubernetes.create(request())
        (after,) = server.pods.values()
        assert HELD not in after["metadata"]["labels"]
        assert UNTIL not in after["metadata"]["annotations"]

    tell(story)


def test_a_pod_that_may_not_be_taken_is_left_and_another_one_is_created() -> None:
    async def story(server: PodApi, url: str) -> None:
        pod = waiting()
        name = pod["metadata"]["name"]
        server.pods[name] = pod
        starts: dict[str, NodeStart] = {}
        async with taking_platform(server, url, starts) as kubernetes:
            await kubernetes.create(request("worker-1-0", avoid_hosts=["machine-1"]))
            server.refuse = [(403, 'pods "x" is forbidden: User "u" cannot patch')]
            await kubernetes.create(request())
            assert sorted(server.pods) == sorted([name, POD, POD.replace("worker-0", "worker-1")])
            assert starts == {}

    tell(story)


def test_nodes_beyond_the_checked_pods_are_created() -> None:
    async def story(server: PodApi, url: str) -> None:
        pod = waiting()
        server.pods[pod["metadata"]["name"]] = pod
        async with taking_platform(server, url, {}) as kubernetes:
            first = await kubernetes.create(request())
            second = await kubernetes.create(request("worker-1-0"))
            assert (
                {node.name for node in await kubernetes.observe()} == {first.name, second.name} == {NODE, "worker-1-0"}
            )
            assert len(server.pods) == 2

    tell(story)


def test_a_pod_that_is_gone_when_it_is_to_be_taken_is_replaced_by_a_new_one() -> None:
    async def story(server: PodApi, url: str) -> None:
        first, second = waiting(), waiting("machine-2")
        second["metadata"] |= {"name": f"{first['metadata']['name']}-2", "uid": "8"}
        server.pods |= {pod["metadata"]["name"]: pod for pod in (first, second)}
        starts: dict[str, NodeStart] = {}
        async with taking_platform(server, url, starts) as kubernetes:
            await kubernetes.create(request())
            del server.pods[second["metadata"]["name"]]
            node = await kubernetes.create(request("worker-1-0"))
            assert node.uid not in ("7", "8")
            assert list(starts) == [first["metadata"]["name"]]

    tell(story)

"""Nodes as pods: made once, found again, their ends heard of whatever becomes of the API meanwhile."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.platform import NodeEnd, NodeRequest
from everstep.runtime.platform.gang import Gang
from everstep.runtime.platform.kubernetes import (
    Access,
    KubeApi,
    KubeError,
    KubernetesPlatform,
    Owner,
    PodRules,
    Scheduling,
)
from everstep.runtime.platform.kubernetes.api import ALLOWED_S, bearer_from
from everstep.runtime.platform.kubernetes.platform import FORCE_AFTER_S, shared_token
from everstep.runtime.platform.kubernetes.pods import pod_name, pod_of
from tests.platform.pod_api import PodApi

JOB = "0f9c3a1e-77aa-4b0e-9d6a-2f6f5f1f9a10-train"
OWNER = Owner("llama-finetune-x7k2", "0f9c3a1e-77aa-4b0e-9d6a-2f6f5f1f9a10")
TEMPLATE = {"containers": [{"name": "agent", "image": "everstep:1", "env": [{"name": "AWS_REGION", "value": "x"}]}]}
NODE = "worker-0-0"
POD = pod_name(JOB, OWNER, NODE)
DEADLINE_S = 60


def request(name: str = NODE, **more: Any) -> NodeRequest:
    """A node that may be anywhere."""
    variables = {"EVERSTEP_JOB": JOB, "EVERSTEP_JOB_TOKEN": "hush", "EVERSTEP_MASTER": "http://10.0.0.1:1"}
    return NodeRequest(name, "worker", "", variables, ["--node", name, "--host", "", "--", "a.py", "$(x)"], **more)


async def no_wait(_: float) -> None:
    """A test waits for nothing, but lets others run."""
    await asyncio.sleep(0)


@asynccontextmanager
async def platform(
    server: PodApi, url: str, clock: Callable[[], float] = lambda: 0.0
) -> AsyncIterator[KubernetesPlatform]:
    """A master's way to its pods."""
    async with (
        KubeApi(Access(url, server.namespace), no_wait) as api,
        KubernetesPlatform(api, JOB, OWNER, TEMPLATE, clock) as kubernetes,
    ):
        yield kubernetes


def tell(story: Callable[[PodApi, str], Coroutine[Any, Any, None]]) -> None:
    """Run it against a fresh server, with a deadline."""

    async def all_of_it() -> None:
        server = PodApi()
        async with asyncio.timeout(DEADLINE_S), server as url:
            await story(server, url)

    asyncio.run(all_of_it())


async def next_gone(kubernetes: KubernetesPlatform) -> NodeEnd:
    """The next one."""
    return await anext(kubernetes.node_ends())


def test_create_twice_makes_one_pod_also_by_a_second_master() -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as first, platform(server, url) as second:
            node = await first.create(request())
            assert await first.create(request()) == node
            assert await second.create(request()) == node
            assert list(server.pods) == [POD]
            assert await second.observe() == [node]

    tell(story)


def test_a_node_that_was_made_is_there_at_once() -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as kubernetes:
            assert await kubernetes.observe() == []
            node = await kubernetes.create(request())
            assert await kubernetes.observe() == [node]

    tell(story)


def test_machines_to_avoid_are_marked_for_everybody_only_where_that_is_wanted() -> None:
    async def story(server: PodApi, url: str) -> None:
        other = {"key": "other", "effect": "NoExecute"}
        server.nodes["a"] = {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [other]}}
        lines_said: list[str] = []
        async with KubeApi(Access(url, server.namespace), no_wait) as api:
            async with KubernetesPlatform(api, JOB, OWNER, TEMPLATE) as kubernetes:
                await kubernetes.create(request("worker-0-0", avoid_hosts=["a"]))
            assert server.nodes["a"]["spec"]["taints"] == [other]
            async with KubernetesPlatform(
                api, JOB, OWNER, TEMPLATE, rules=PodRules(taints=True), say=lines_said.append
            ) as kubernetes:
                await kubernetes.observe()
                server.refuse = [(409, "the object has been modified")]
                await kubernetes.create(request("worker-1-0", avoid_hosts=["a", "b"]))
                await kubernetes.create(request("worker-2-0", avoid_hosts=["a", "b"]))
        taints = server.nodes["a"]["spec"]["taints"]
        assert taints == [other, {"key": "everstep/unfit", "effect": "NoSchedule"}]
        assert [line.partition(":")[0] for line in lines_said] == [
            "node a is tainted everstep/unfit", "node b could not be tainted everstep/unfit",
        ]  # fmt: skip

    tell(story)


def test_a_pod_at_which_no_scheduler_looks_is_told_once() -> None:
    async def story(server: PodApi, url: str) -> None:
        lines_said: list[str] = []
        times, volcano = [0.0], {**TEMPLATE, "schedulerName": "volcano"}
        async with (
            KubeApi(Access(url, server.namespace), no_wait) as api,
            KubernetesPlatform(api, JOB, OWNER, volcano, lambda: times[-1], say=lines_said.append) as kubernetes,
        ):
            await kubernetes.observe()
            for number in range(3):
                await kubernetes.create(request(f"worker-{number}-0"))
            placed, refused = (pod_name(JOB, OWNER, f"worker-{number}-0") for number in range(2))
            server.become(placed, conditions=[{"type": "PodScheduled", "status": "True"}])
            server.become(refused, conditions=[{"type": "PodScheduled", "status": "False", "message": "no room"}])
            while not lines_said:  # Until the watch has brought it.
                await asyncio.sleep(0.01)
            for seconds in (59.0, 60.0, 119.0, 200.0):
                times.append(seconds)
                await kubernetes.observe()
        assert lines_said == [
            "worker-1-0: no machine has room for its pod: no room",
            "worker-2-0: the scheduler volcano has not looked at its pod for 60 s; does it run here?",
        ]

    tell(story)


def test_extras_of_a_gang_are_held_back_until_its_minimum_has_machines() -> None:
    async def story(server: PodApi, url: str) -> None:
        extra, gang = pod_name(JOB, OWNER, "worker-1-0"), Scheduling(Gang.VOLCANO, minimum=1)
        async with (
            KubeApi(Access(url, server.namespace), no_wait) as api,
            KubernetesPlatform(api, JOB, OWNER, TEMPLATE, rules=PodRules(gang)) as kubernetes,
        ):
            await kubernetes.create(request())
            await kubernetes.create(request("worker-1-0", extra=True))
            assert "schedulingGates" not in server.pods[POD]["spec"]
            assert server.pods[extra]["spec"]["schedulingGates"] == [{"name": "everstep/minimum"}]
            server.pods[POD]["spec"]["nodeName"] = "host-1"
            server.become(POD, phase="Pending")
            await server.until(lambda: not server.pods[extra]["spec"]["schedulingGates"])

    tell(story)


@pytest.mark.parametrize("lost_answers", [0, 1])
def test_kueue_may_admit_extras_while_the_master_still_opens_gates(lost_answers: int) -> None:
    """Its gate, once it has taken it away, cannot be put back."""

    async def story(server: PodApi, url: str) -> None:
        gang, names = Scheduling(Gang.KUEUE, "research", minimum=1), [f"worker-{number}-0" for number in range(1, 4)]
        extras = [pod_name(JOB, OWNER, name) for name in names]
        lines_said: list[str] = []
        async with (
            KubeApi(Access(url, server.namespace), no_wait) as api,
            KubernetesPlatform(api, JOB, OWNER, TEMPLATE, rules=PodRules(gang), say=lines_said.append) as kubernetes,
        ):
            await kubernetes.create(request())
            for name in names:
                await kubernetes.create(request(name, extra=True))
            server.on_patch = lambda name: server.change(name, schedulingGates=[])
            server.refuse = [(0, "")] * lost_answers
            server.change(POD, nodeName="host-1")
            await server.until(lambda: not any(server.pods[extra]["spec"]["schedulingGates"] for extra in extras))
            server.become(POD, conditions=[{"type": "PodScheduled", "status": "False", "message": "no room"}])
            while not lines_said:  # Until the watch has brought this, after what became of the extras.
                await kubernetes.observe()
                await asyncio.sleep(0.01)
        assert sum(method == "PATCH" for method, _ in server.asked) == len(extras) + lost_answers

    tell(story)


def test_a_pod_ends_by_itself_when_the_workflow_has_to() -> None:
    async def story(server: PodApi, url: str) -> None:
        for left_s, expected in ((9000.0, range(8000, 9001)), (-5.0, range(1, 2))):
            name = f"worker-{expected[0]}-0"
            async with (
                KubeApi(Access(url, server.namespace), no_wait) as api,
                KubernetesPlatform(
                    api, JOB, OWNER, TEMPLATE, rules=PodRules(ends_at=time.time() + left_s)
                ) as kubernetes,
            ):
                await kubernetes.create(request(name))
            assert server.pods[pod_name(JOB, OWNER, name)]["spec"]["activeDeadlineSeconds"] in expected

    tell(story)


def test_a_create_whose_answer_was_lost_is_found_again() -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as kubernetes:
            await kubernetes.observe()
            server.refuse = [(0, "")]
            assert (await kubernetes.create(request())).name == NODE
            assert [method for method, _ in server.asked].count("POST") == 2
            assert list(server.pods) == [POD]

    tell(story)


@pytest.mark.parametrize(
    ("status", "code", "part"),
    [
        ({"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 14}}}]}, 14, "exit code 14"),
        ({"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}]}, 0, "exit code 0"),
        (
            {
                "phase": "Failed",
                "containerStatuses": [{"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}],
            },
            247,
            "OOMKilled",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."}, None, "Evicted"),
        ({"phase": "Failed"}, None, "its pod ended"),
    ],
)
def test_how_a_pod_ended_is_told(status: dict[str, Any], code: int | None, part: str) -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as kubernetes:
            node = await kubernetes.create(request())
            server.become(POD, **status)
            node_end = await next_gone(kubernetes)
            assert (node_end.name, node_end.uid, node_end.exit_code) == (NODE, node.uid, code)
            assert part in node_end.reason
            assert await kubernetes.observe() == []

    tell(story)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("PreemptionByScheduler", True), ("EvictionByEvictionAPI", True), ("DeletionByTaintManager", False)],
)
def test_a_pod_that_gave_way_is_told_from_one_whose_machine_is_gone(reason: str, expected: bool) -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as kubernetes:
            await kubernetes.create(request())
            condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
            server.become(POD, phase="Failed", conditions=[condition])
            assert (await next_gone(kubernetes)).gave_way is expected

    tell(story)


def test_a_pod_that_somebody_deletes_is_gone_once() -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as kubernetes:
            await kubernetes.create(request())
            await kubernetes.create(request("worker-1-0"))
            server.become(POD, phase="Failed")
            server.remove(POD)
            server.remove(pod_name(JOB, OWNER, "worker-1-0"))
            assert (await next_gone(kubernetes)).name == NODE
            node_end = await next_gone(kubernetes)
            assert (node_end.name, node_end.reason) == ("worker-1-0", "its pod was deleted")

    tell(story)


def test_a_new_master_hears_how_nodes_ended_before_it_came() -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as first:
            await first.create(request())
        server.become(POD, phase="Failed", containerStatuses=[{"state": {"terminated": {"exitCode": 201}}}])
        async with platform(server, url) as second:
            assert await second.observe() == []
            assert (await next_gone(second)).exit_code == 201

    tell(story)


def test_a_watch_goes_on_where_it_ended_and_lists_again_when_that_is_forgotten() -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as kubernetes:
            await kubernetes.create(request())
            await server.until(lambda: ("WATCH", "pods") in server.asked)
            lists = server.asked.count(("GET", "pods"))
            server.end_streams()
            server.become(POD, phase="Running")
            await server.until(lambda: server.asked.count(("WATCH", "pods")) >= 2)
            assert server.asked.count(("GET", "pods")) == lists
            server.end_streams()
            server.remove(POD)
            server.forget()
            assert (await next_gone(kubernetes)).name == NODE
            assert server.asked.count(("GET", "pods")) == lists + 1

    tell(story)


def test_while_the_api_is_away_nodes_are_taken_to_be_there_and_creates_wait() -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as kubernetes:
            node = await kubernetes.create(request())
            with server.away():
                before = len(server.asked)
                waiting = asyncio.create_task(kubernetes.create(request("worker-1-0")))
                await server.until(lambda: len(server.asked) > before + 5)
                assert await kubernetes.observe() == [node]
                assert not waiting.done()
            assert (await waiting).name == "worker-1-0"

    tell(story)


def test_delete_ends_that_incarnation_only_and_may_be_repeated() -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as kubernetes:
            node = await kubernetes.create(request())
            await kubernetes.delete(NODE, "another")
            assert list(server.pods) == [POD]
            await kubernetes.delete(NODE, node.uid)
            assert (await next_gone(kubernetes)).uid == node.uid
            await kubernetes.delete(NODE, node.uid)
            assert [method for method, _ in server.asked].count("DELETE") == 1
            assert server.bodies[-1]["preconditions"] == {"uid": node.uid}

    tell(story)


def test_a_pod_on_a_lost_host_is_told_to_end_once_and_then_forgotten() -> None:
    async def story(server: PodApi, url: str) -> None:
        server.kubelet = False
        now = [0.0]
        async with platform(server, url, lambda: now[0]) as kubernetes:
            node = await kubernetes.create(request())
            await kubernetes.delete(NODE, node.uid)
            assert list(server.pods) == [POD]
            now[0] = FORCE_AFTER_S + 1
            await kubernetes.delete(NODE, node.uid)
            assert (await next_gone(kubernetes)).name == NODE
            assert [body["gracePeriodSeconds"] for body in server.bodies if "preconditions" in body][-1] == 0
            assert not server.pods

    tell(story)


def test_what_the_api_refuses_for_good_is_one_line() -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as kubernetes:
            await kubernetes.observe()
            server.refuse = [(403, 'pods is forbidden: exceeded quota: gpus\nused: "8"')]
            with pytest.raises(OSError, match=r"exceeded quota: gpus used.*\(403\)"):
                await kubernetes.create(request())
            with pytest.raises(OSError, match="cannot be a pod's name"):
                await kubernetes.create(request("Worker_0"))

    tell(story)


def test_who_may_not_see_pods_is_told_instead_of_waiting_for_ever() -> None:
    async def story(server: PodApi, url: str) -> None:
        server.refuse = [(403, "pods is forbidden: cannot list")]
        async with platform(server, url) as kubernetes:
            with pytest.raises(KubeError, match="cannot list"):
                await kubernetes.observe()

    tell(story)


FORBIDDEN = 'pods is forbidden: User "system:serviceaccount:ml:everstep" cannot list resource "pods"'


def test_a_server_that_has_just_started_may_refuse_what_it_allowed_before() -> None:
    async def story(server: PodApi, url: str) -> None:
        async with platform(server, url) as kubernetes:
            node = await kubernetes.create(request())
            assert await kubernetes.observe() == [node]
            await server.until(lambda: ("WATCH", "pods") in server.asked)
            with server.away(401):
                server.remove(POD)
                expected_count = server.asked.count(("WATCH", "pods")) + 2
                await server.until(lambda: server.asked.count(("WATCH", "pods")) >= expected_count)
            assert (await next_gone(kubernetes)).uid == node.uid

    tell(story)


def test_a_right_that_is_taken_away_for_good_is_told() -> None:
    async def story(server: PodApi, url: str) -> None:
        now = [100.0]

        async def later(_: float) -> None:
            now[0] += 20.0

        async with KubeApi(Access(url, server.namespace), later, lambda: now[0]) as api:
            await api.list("pods", "a=b")
            server.refuse = [(403, FORBIDDEN)] * 2
            assert await api.retry(lambda: api.list("pods", "a=b")) == ([], "10")
            server.refuse = [(403, FORBIDDEN)] * 9
            with pytest.raises(KubeError, match="cannot list resource"):
                await api.retry(lambda: api.list("pods", "a=b"))
            assert now[0] == 140 + ALLOWED_S

    tell(story)


def test_every_master_of_a_job_has_the_same_token_and_no_pod_shows_it() -> None:
    async def story(server: PodApi, url: str) -> None:
        async with KubeApi(Access(url, server.namespace), no_wait) as api:
            token = await shared_token(api, JOB, OWNER)
            assert await shared_token(api, JOB, OWNER, token_in_flags=token) == token
        (secret,) = server.secrets.values()
        pod = pod_of(request(), JOB, OWNER, TEMPLATE)
        variables = {variable["name"]: variable for variable in pod["spec"]["containers"][0]["env"]}
        reference = {"name": secret["metadata"]["name"], "key": "token"}
        assert variables["EVERSTEP_JOB_TOKEN"] == {
            "name": "EVERSTEP_JOB_TOKEN",
            "valueFrom": {"secretKeyRef": reference},
        }
        assert "hush" not in str(pod)
        assert secret["metadata"]["ownerReferences"][0]["uid"] == OWNER.uid

    tell(story)


@pytest.mark.parametrize("answer", [200, 0])
def test_a_master_whose_pod_started_before_the_token_was_made_is_tried_again_and_reads_no_secret(answer: int) -> None:
    async def story(server: PodApi, url: str) -> None:
        async with KubeApi(Access(url, server.namespace), no_wait) as api:
            if answer:
                await shared_token(api, JOB, OWNER)
            else:
                server.refuse = [(0, "the answer is lost")]
            with pytest.raises(KubeError, match="was made after this pod had started; the next try") as error:
                await shared_token(api, JOB, OWNER)
        assert error.value.passing
        assert {verb for verb, path in server.asked if path.startswith("secrets")} == {"POST"}

    tell(story)


def test_the_token_file_is_read_again_for_each_request(tmp_path: Path) -> None:
    async def story() -> None:
        server = PodApi(token="first")
        file = tmp_path / "token"
        file.write_text("first\n")
        async with server as url, KubeApi(Access(url, "ml", bearer_from(file)), no_wait) as api:
            assert await api.list("pods", "a=b") == ([], "10")
            server.token = "second"
            with pytest.raises(KubeError, match="401"):
                await api.list("pods", "a=b")
            file.write_text("second\n")
            assert await api.list("pods", "a=b") == ([], "10")

    asyncio.run(story())


def test_outside_of_a_pod_there_is_no_access(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match="no service account here"):
        Access.of_this_pod({}, tmp_path)
    for name, text in (("token", "t"), ("namespace", "ml\n")):
        (tmp_path / name).write_text(text)
    access = Access.of_this_pod({"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path)
    assert (access.url, access.namespace) == ("https://[fd00::1]:6443", "ml")


def test_a_pod_that_asks_before_its_address_is_known_waits_for_it() -> None:
    async def story() -> None:
        server = PodApi()
        server.pods["own"] = {"metadata": {"name": "own"}, "status": {"phase": "Pending"}}
        pauses: list[float] = []

        async def note_pause(pause_s: float) -> None:
            pauses.append(pause_s)
            if len(pauses) == 3:
                server.pods["own"]["status"] = {"phase": "Running", "podIP": "10.1.2.3"}

        async with server as url, KubeApi(Access(url, server.namespace), note_pause) as api:
            assert (await api.own_pod("own"))["status"]["podIP"] == "10.1.2.3"
        assert len(pauses) == 3

    asyncio.run(story())

"""Where the nodes of a training come from, on a cluster: pods beside the step's own, as long as its Workflow lives."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from everstep.runtime.job.spec import JobSpec, Resources, RoleSpec
from everstep.runtime.platform import NodeRequest
from everstep.runtime.platform.gang import Gang
from everstep.runtime.platform.kubernetes import Access, KubeError, Scheduling
from everstep.runtime.platform.kubernetes.workflow import is_over
from everstep.steps.train.config import Config
from everstep.steps.train.nodes import (
    JobSecret,
    OwnPod,
    node_backend,
    scheduling_of,
    serve_node_checks,
    sibling_pods,
    stop_on_request,
)
from tests.platform.pod_api import PodApi

UID = "0f9c3a1e-77aa-4b0e-9d6a-2f6f5f1f9a10"
SPEC = JobSpec(f"{UID}-train", {"worker": RoleSpec(2, 1)})
STEP = {
    "metadata": {
        "name": "step", "uid": "p", "labels": {}, "ownerReferences": [{"kind": "Workflow", "name": "w", "uid": UID}],
    },
    "spec": {"containers": [{"name": "main", "image": "everstep:1"}]},
    "status": {"phase": "Running", "podIP": "10.1.2.3"},
}  # fmt: skip
WORKFLOW: dict[str, Any] = {
    "metadata": {"name": "w", "uid": UID},
    "spec": {},
    "status": {"phase": "Running", "startedAt": "2026-01-01T00:00:00Z"},
}
BEGAN = 1767225600.0
PLAIN = Scheduling()


def workflow(**spec: Any) -> dict[str, Any]:
    """The step's Workflow, which runs."""
    return {**WORKFLOW, "spec": spec}


def test_in_a_pod_of_argos_the_nodes_are_pods_like_it_and_the_master_listens_on_its_address() -> None:
    async def story() -> None:
        server = PodApi()
        server.pods["step"] = STEP
        async with server as url, sibling_pods(OwnPod("step", Access(url, "ml")), SPEC, PLAIN) as place:
            assert (place.address, place.spec.hosts) == ("10.1.2.3", "")
            assert await place.platform.observe() == []
            (secret,) = server.secrets.values()
            assert secret["metadata"]["ownerReferences"][0]["uid"] == UID
            assert place.credentials.tls
        token = place.credentials.token
        async with (
            server as url,
            sibling_pods(OwnPod("step", Access(url, "ml")), SPEC, PLAIN, JobSecret(token, tls=False)) as again,
        ):
            assert not again.credentials.tls
            assert again.credentials.token == token

    asyncio.run(story())


def test_the_namespaces_topology_orders_the_ranks_unless_the_job_says_otherwise() -> None:
    async def story(spec: JobSpec, text: str) -> tuple[str, ...]:
        server = PodApi()
        server.pods["step"] = STEP
        server.configmaps["node-topology-config"] = {"data": {"topology_config": text}}
        async with server as url, sibling_pods(OwnPod("step", Access(url, "ml")), spec, PLAIN) as place:
            return place.spec.topology

    line, other = "asw-0 psw-0 192.168.0.1", "asw-1 psw-0 192.168.0.2"
    assert asyncio.run(story(SPEC, f"{line}\n")) == (line,)
    assert asyncio.run(story(replace(SPEC, topology=(other,)), line)) == (other,)
    with pytest.raises(KubeError, match="node-topology-config, topology_config: line 1: 2 words"):
        asyncio.run(story(SPEC, "asw-0 192.168.0.1"))


@pytest.mark.parametrize(
    ("there", "for_good"),
    [
        (workflow(), False),
        (workflow(shutdown="Stop"), True),
        (workflow(shutdown="Terminate"), True),
        ({**WORKFLOW, "metadata": {"name": "w", "uid": "another"}}, True),
        (None, True),
    ],
)
def test_when_the_step_is_told_to_end_the_workflow_says_whether_for_good(
    there: dict[str, Any] | None, for_good: bool
) -> None:
    async def story() -> None:
        server = PodApi()
        server.pods["step"] = STEP
        server.workflows = {"w": there} if there else {}
        is_asked, stop = asyncio.Event(), asyncio.Event()
        async with server as url, sibling_pods(OwnPod("step", Access(url, "ml")), SPEC, PLAIN) as place:
            hearing = asyncio.create_task(stop_on_request(is_asked, stop, place))
            is_asked.set()
            await stop.wait()
            assert hearing.result() is for_good

    asyncio.run(story())


def test_nodes_train_on_where_nobody_knows_whether_the_step_comes_again() -> None:
    async def story() -> None:
        server = PodApi()
        server.pods["step"] = STEP
        async with server as url, sibling_pods(OwnPod("step", Access(url, "ml")), SPEC, PLAIN) as place:
            with server.away():
                assert not await place.stopped_for_good()

    asyncio.run(story())


@pytest.mark.parametrize(("now", "over"), [(BEGAN + 54, False), (BEGAN + 55, True), (BEGAN + 60, True)])
def test_a_workflow_about_to_pass_its_deadline_is_over(now: float, over: bool) -> None:
    assert is_over(workflow(activeDeadlineSeconds=60), now) is over


def test_a_pod_that_no_workflow_owns_is_refused() -> None:
    async def story() -> None:
        server = PodApi()
        server.pods["step"] = {**STEP, "metadata": {"name": "step", "uid": "p", "labels": {}}}
        async with server as url:
            with pytest.raises(KubeError, match="no Workflow owns it"):
                async with sibling_pods(OwnPod("step", Access(url, "ml")), SPEC, PLAIN):
                    pass

    asyncio.run(story())


def test_without_a_pod_the_nodes_are_processes_of_this_machine(tmp_path: Path) -> None:
    async def story() -> None:
        async with node_backend(Config(), SPEC, tmp_path, {}) as place:
            assert (place.address, place.spec) == ("127.0.0.1", SPEC)
            assert await place.stopped_for_good()

    asyncio.run(story())


def test_a_pod_without_a_service_account_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(KubeError, match="no service account here"):
            async with node_backend(Config(), SPEC, tmp_path, {"EVERSTEP_POD": "step"}):
                pass

    asyncio.run(story())


@pytest.mark.parametrize(
    ("flags", "expected_arguments"),
    [
        ({}, ["--network-check=14"]),
        ({"switchbox_check": True, "box_pairs": "0:1", "min_channels": 1},
         ["--network-check=14", "--box-pairs", "0:1", "--min-bandwidth", "10000.0", "--min-channels", "1"]),
        ({"network_check": "False"}, []),
    ],
)  # fmt: skip
def test_pods_check_each_other_before_they_join_unless_that_is_switched_off(
    flags: dict[str, Any], expected_arguments: list[str]
) -> None:
    async def story() -> None:
        server = PodApi()
        server.pods["step"] = {**STEP, "status": {"phase": "Running", "podIP": "127.0.0.1"}}
        async with (
            server as url,
            sibling_pods(OwnPod("step", Access(url, "ml")), SPEC, PLAIN) as place,
            serve_node_checks(Config(**flags), place) as (_, arguments),
        ):
            assert arguments == expected_arguments

    asyncio.run(story())


def test_the_specs_priority_and_scheduler_are_its_pods() -> None:
    spec = replace(SPEC, priority_class="high", scheduler_name="volcano")
    scheduling = scheduling_of(Config(), spec)
    assert scheduling.priority_class == "high"

    async def story() -> None:
        server = PodApi()
        server.pods["step"] = STEP
        async with server as url, sibling_pods(OwnPod("step", Access(url, "ml")), spec, scheduling) as place:
            await place.platform.observe()
            await place.platform.create(NodeRequest("worker-0-0", "worker", "", {}, [], Resources()))
        (pod,) = [pod for name, pod in server.pods.items() if name != "step"]
        assert (pod["spec"]["schedulerName"], pod["spec"]["priorityClassName"]) == ("volcano", "high")

    asyncio.run(story())


def test_flags_for_a_scheduler_are_told_to_it_and_to_nobody_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config(gang="volcano", queue="research", priority_class="high")
    assert scheduling_of(config, SPEC) == Scheduling(Gang.VOLCANO, "research", "high", "", 1)

    async def story() -> None:
        async with node_backend(config, SPEC, tmp_path, {}):
            pass

    asyncio.run(story())
    assert (
        "--gang, --queue, --priority-class: ignored, as nodes are processes of this machine" in capsys.readouterr().err
    )


def test_the_gang_is_there_before_its_pods_and_gone_when_the_job_is_over() -> None:
    async def story() -> None:
        server = PodApi()
        server.pods["step"] = STEP
        gang = Scheduling(Gang.VOLCANO, minimum=2)
        async with server as url:
            async with sibling_pods(OwnPod("step", Access(url, "ml")), SPEC, gang) as first:
                token = first.credentials.token
            assert [group["spec"]["minMember"] for group in server.podgroups.values()] == [2, 0]
            async with sibling_pods(OwnPod("step", Access(url, "ml")), SPEC, gang, JobSecret(token)) as place:
                assert len(server.podgroups) == 2
                assert place.release
                await place.release()
                await place.release()
        assert server.podgroups == {}

    asyncio.run(story())


def test_a_cluster_without_that_scheduler_is_told() -> None:
    async def story() -> None:
        server = PodApi()
        server.pods["step"] = STEP
        server.kinds -= {"podgroups"}
        async with server as url:
            with pytest.raises(KubeError, match="--gang coscheduling: this cluster has no podgroups"):
                async with sibling_pods(OwnPod("step", Access(url, "ml")), SPEC, Scheduling(Gang.COSCHEDULING)):
                    pass

    asyncio.run(story())

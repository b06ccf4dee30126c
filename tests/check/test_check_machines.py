"""The check of a cluster's machines: a server speaks the Kubernetes API, and each of its pods is a real process."""

import asyncio
import base64
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from everstep.runtime.diagnosis.coordinator import Coordinator
from everstep.runtime.diagnosis.evidence import Measurement
from everstep.runtime.diagnosis.messages import Arrive, Ask, Over, Stage, StageResult, Work
from everstep.runtime.diagnosis.report import host_order
from everstep.runtime.diagnosis.verdicts import Health, Verdict
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.platform import Node, NodeEnd, NodeRequest
from everstep.runtime.platform.kubernetes import Access, KubernetesPlatform
from everstep.runtime.platform.kubernetes.held_pods import HELD
from everstep.runtime.platform.kubernetes.pods import NAME, selector
from everstep.runtime.protocol.handover import NodeStart, encode_start, start_key
from everstep.runtime.store import open_store
from everstep.steps.check import Config
from everstep.steps.check.hold import PodHold
from everstep.steps.check.machines import MachineCheck, _Check, check_machines, node_template, requested_resources
from everstep.steps.check.run import run
from everstep.steps.entry import StepError
from tests.platform.pod_api import PodApi

TRAIN = {
    "name": "train",
    "metadata": {"labels": {"everstep/step": "train"}},
    "nodeSelector": {"pool": "gpu"},
    "container": {"resources": {"requests": {"cpu": "8", "nvidia.com/gpu": "8"}}},
}
STEP = {
    "containers": [{"name": "agent", "image": "i", "resources": {"requests": {"cpu": "1"}}, "env": []}],
    "serviceAccountName": "everstep-train",
}


def workflow(*templates: dict[str, Any]) -> dict[str, Any]:
    """With these templates."""
    return {"metadata": {"name": "w", "uid": "u"}, "spec": {"templates": list(templates)}, "status": {}}


def test_pods_request_what_the_training_requests_one_on_each_machine() -> None:
    spec = node_template(STEP, workflow({"name": "main"}, TRAIN), "job")
    (container,) = spec["containers"]
    assert container["resources"] == {"requests": {"cpu": "8", "nvidia.com/gpu": "8"}}
    assert container["image"] == "i"
    assert spec["nodeSelector"] == {"pool": "gpu"}
    (apart,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    name, _, digest = selector("job").partition("=")
    assert apart == {"labelSelector": {"matchLabels": {name: digest}}, "topologyKey": "kubernetes.io/hostname"}


def test_what_a_cluster_changes_in_every_pod_it_changes_in_theirs() -> None:
    own = {"name": "check", "metadata": {"labels": {"everstep/step": "check"}}, "container": {"resources": {
        "requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}}}  # fmt: skip
    patched = {"requests": {"cpu": "10m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}
    step = {**STEP, "containers": [{**STEP["containers"][0], "resources": patched}]}
    (container,) = node_template(step, workflow(TRAIN, own), "job")["containers"]
    assert container["resources"] == {"requests": {"cpu": "10m", "nvidia.com/gpu": "8"}, "limits": {}}


def test_without_a_training_they_request_what_the_step_does() -> None:
    (container,) = node_template(STEP, workflow({"name": "main"}), "job")["containers"]
    assert container["resources"] == {"requests": {"cpu": "1"}}


def test_they_have_the_variables_and_the_shared_memory_of_the_trainings_pods() -> None:
    shared = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}
    mount, variable = {"name": "shm", "mountPath": "/dev/shm"}, {"name": "NCCL_DEBUG", "value": "INFO"}
    container = {**TRAIN["container"], "env": [variable], "volumeMounts": [mount]}
    spec = node_template(STEP, workflow({**TRAIN, "volumes": [shared], "container": container}), "job")
    assert spec["volumes"] == [shared]
    assert (spec["containers"][0]["env"], spec["containers"][0]["volumeMounts"]) == ([variable], [mount])


def test_a_training_by_template_ref_is_found_in_the_status() -> None:
    manifest = {**workflow(), "status": {"storedTemplates": {"namespaced/everstep-train/train": TRAIN}}}
    (container,) = node_template(STEP, manifest, "job")["containers"]
    assert container["resources"] == {"requests": {"cpu": "8", "nvidia.com/gpu": "8"}}


def test_the_largest_role_of_the_job_spec_says_what_they_request() -> None:
    spec = '{"replicaSpecs": {"chief": {"replicas": 1}, "worker": {"replicas": 3, "resources": {"gpu.example/x": 2}}}}'
    assert requested_resources(Config(job_spec=spec)).others == {"gpu.example/x": 2}


OTHERS = {"step", "tokenize"}
"""Pods that the check did not make."""


class Machines:
    """Runs the pods of the API as processes, each on a machine of its own while there are any."""

    def __init__(self, api: PodApi, machines: int, broken: str, fault: dict[str, str]) -> None:
        self._api = api
        self._fault = fault
        self._machines = [f"machine-{number}" for number in range(machines)]
        self._broken = broken
        self.hosts: dict[str, str] = {}
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        """By pod."""

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._api.until(lambda: self._api.pods.keys() - self.hosts.keys() - OTHERS)
            for name in list(self._api.pods.keys() - self.hosts.keys() - OTHERS):
                self.hosts[name] = host = self._machines.pop(0) if self._machines else ""
                if host:
                    await self._start(name, host)

    async def _start(self, name: str, host: str) -> None:
        pod = self._api.pods[name]
        pod["spec"]["nodeName"] = host
        self._api.become(name, phase="Running", hostIP=f"10.0.0.{host[-1]}")
        (container,) = pod["spec"]["containers"]
        variables_set = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
        tokens = {
            variable["name"]: base64.b64decode(self._api.secrets[secret_reference["name"]]["data"]["token"]).decode()
            for variable in container["env"]
            if (secret_reference := (variable.get("valueFrom") or {}).get("secretKeyRef"))
        }
        variables = {**os.environ, **variables_set, **tokens, "EVERSTEP_HOST": host, "EVERSTEP_POD": name}
        variables |= {"EVERSTEP_IP": "127.0.0.1", **(self._fault if host == self._broken else {})}
        words = [sys.executable, *container["command"][1:], *container["args"]]
        self.processes[name] = await asyncio.create_subprocess_exec(*words, env=variables)


def run_check(
    config: Config,
    machines: int,
    broken: str = "",
    fault: dict[str, str] | None = None,
    api: PodApi | None = None,
    meanwhile: Callable[[PodApi], None] = lambda _: None,
) -> tuple[dict[str, bool], PodApi, list[str]]:
    """(whether to avoid each machine, the API afterwards, what was said).

    `meanwhile`: when the check is over, and before the pods' processes are waited for.
    """
    lines_said: list[str] = []
    api = api or PodApi()

    async def story() -> dict[str, bool]:
        api.workflows["w"] = workflow(TRAIN)
        owner = {"kind": "Workflow", "name": "w", "uid": "u"}
        metadata = {"name": "step", "uid": "0123456789", "ownerReferences": [owner], "labels": {}}
        spec = {"containers": [{"name": "main", "image": "i"}]}
        api.pods["step"] = {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "podIP": "127.0.0.1"}}
        there = Machines(api, machines, broken, fault or {})
        async with api as url:
            running = asyncio.create_task(there.run())
            try:
                result = await check_machines(
                    config, "step", Access(url, "ml"), lines_said.append, lambda _: None, look_s=0.1
                )
                lines_said.append(f"in order: {', '.join(host_order(result.verdicts, result.places))}")
                meanwhile(api)
            finally:
                running.cancel()
                for name, process in there.processes.items():
                    if name not in api.pods and process.returncode is None:
                        process.terminate()
                    lines_said.append(f"{name}: {await process.wait()}")
        return {verdict.host: verdict.avoid for verdict in result.verdicts}

    return asyncio.run(story()), api, lines_said


class Pods:
    """Stands in for a platform: each pod is placed at once, on a machine of its number."""

    def __init__(self, parts: Mapping[str, "Part"], look: Callable[["Pods"], object] = lambda _: None) -> None:
        """`parts`: what the nodes do that arrive. `look` is called at each look at the pods."""
        self.coordinator = Coordinator()
        self._parts, self._look = parts, look
        self._nodes: dict[str, Node] = {}
        self._ends: asyncio.Queue[NodeEnd] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    def end(self, name: str, exit_code: int | None, reason: str, gave_way: bool = False) -> None:
        """The pod of that node ends, if there is one."""
        if node := self._nodes.pop(name, None):
            self._ends.put_nowait(NodeEnd(name, node.uid, exit_code, reason, gave_way))

    async def observe(self) -> list[Node]:
        nodes = list(self._nodes.values())
        self._look(self)
        for _turn in range(10):  # Meanwhile the ends are heard of.
            await asyncio.sleep(0)
        return nodes

    async def create(self, request: NodeRequest) -> None:
        name, host = request.name, f"machine-{request.name.partition('-')[2]}"
        self._nodes[name] = Node(name, f"uid of {name}", "check", host)
        if part := self._parts.get(name):
            await self.coordinator.arrive(Arrive(name, host, "127.0.0.1"))
            self._tasks.append(asyncio.create_task(part(self, name)))

    async def delete(self, name: str, uid: str) -> None: ...

    async def node_ends(self) -> AsyncIterator[NodeEnd]:
        while True:
            yield await self._ends.get()

    def check(self, nodes: int) -> tuple[dict[str, bool], list[str]]:
        """(whether to avoid each machine, what was said)."""
        machines, lines_said = self.check_machines(nodes)
        return {verdict.host: verdict.avoid for verdict in machines.verdicts}, lines_said

    def check_machines(self, nodes: int) -> tuple[MachineCheck, list[str]]:
        """(what the check found, what was said)."""
        lines_said: list[str] = []

        async def hold(*_: object) -> None: ...

        async def story() -> MachineCheck:
            pod_hold = cast(PodHold, SimpleNamespace(training="", hold_s=0.0, nodes=set(), hold=hold))
            platform, config = cast(KubernetesPlatform, self), Config(nodes=nodes, check_spare=0)
            check = _Check(config, platform, self.coordinator, "job", "a:1", 0.01, pod_hold, lines_said.append)
            async with asyncio.timeout(60):
                machines = await check.run()
                await asyncio.gather(*self._tasks)
            return machines

        return asyncio.run(story()), lines_said


Part = Callable[[Pods, str], Coroutine[Any, Any, None]]


async def work(pods: Pods, name: str) -> None:
    """Be a node that is fit, but has nobody in its group."""
    number = 0
    while not isinstance(order := await pods.coordinator.order(Ask(name, number)), Over):
        assert order is not None
        number = order.number
        if isinstance(order, Work):
            measurement = Measurement(name, "", 0.5, 0.01)
            await pods.coordinator.report(StageResult(name, order.round, Stage.ALONE, measurement))


async def give_way(pods: Pods, name: str) -> None:
    """Be a node that is preempted while it is checked."""
    await pods.coordinator.order(Ask(name))
    pods.end(name, 143, "its pod ended, Preempted", gave_way=True)


async def do_nothing(pods: Pods, name: str) -> None: ...


def test_a_machine_whose_pod_ends_before_the_check_is_faulty_and_one_whose_pod_gave_way_is_not() -> None:
    def look(pods: Pods) -> None:
        pods.end("check-1", 75, "its agent ended with exit code 75")
        pods.end("check-2", 143, "its pod ended, Preempted", gave_way=True)
        pods.end("check-3", None, "its pod was deleted")

    hosts, lines_said = Pods({"check-0": work}, look).check(4)
    assert hosts == {"machine-0": False, "machine-1": True}
    assert lines_said == [
        "check-2 on machine-2 was not checked: its pod ended, Preempted",
        "check-3 on machine-3 was not checked: its pod was deleted",
    ]


def test_a_pod_that_ends_when_all_have_come_is_not_checked() -> None:
    def look(pods: Pods) -> None:
        pods.end("check-1", 75, "its agent ended with exit code 75")

    hosts, _ = Pods({"check-0": work, "check-1": do_nothing}, look).check(2)
    assert hosts == {"machine-0": False, "machine-1": True}


def test_a_pod_that_gives_way_during_the_check_leaves_its_machine_without_a_verdict() -> None:
    hosts, lines_said = Pods({"check-0": work, "check-1": give_way}).check(2)
    assert hosts == {"machine-0": False}
    assert lines_said == ["check-1 on machine-1 was not checked: its pod ended, Preempted"]


def test_a_pod_that_does_not_start_in_time_leaves_its_machine_without_a_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("everstep.steps.check.machines.START_S", 0.1)
    machines, lines_said = Pods({"check-0": work}).check_machines(2)
    assert machines.unchecked == {"machine-1": "its pod did not start within 0.1 s"}
    assert lines_said == ["check-1 on machine-1 was not checked: its pod did not start within 0.1 s"]


def test_machines_without_a_verdict_count_for_how_many_must_be_usable() -> None:
    machines, _ = Pods({"check-0": work, "check-1": give_way, "check-2": give_way}).check_machines(3)
    assert machines.unchecked == dict.fromkeys(("machine-1", "machine-2"), "its pod ended, Preempted")
    assert [machines.needed_count(min_nodes) for min_nodes in (1, 2, 3, 4)] == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("min_nodes", "code"), [(1, None), (2, ExitCode.TRY_AGAIN), (3, ExitCode.NO_QUORUM), (9, ExitCode.NO_QUORUM)]
)
def test_a_check_with_too_few_usable_machines_does_not_pass_where_pods_gave_way(
    min_nodes: int, code: ExitCode | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another try may find enough, if those without a verdict could make up for what is missing."""
    verdicts = [
        Verdict("check-0", "machine-0", Health.HEALTHY, "works", False, 0.5),
        Verdict("check-1", "machine-1", Health.FAULTY, "broken", True, None),
    ]

    async def check(*_: object) -> MachineCheck:
        return MachineCheck(verdicts, [], unchecked={"machine-2": "its pod ended, Preempted"})

    monkeypatch.setattr("everstep.steps.check.run._check", check)
    config = Config(nodes=9, min_nodes=min_nodes, outputs=str(tmp_path))
    if code is None:
        run(config)
        return
    with pytest.raises(StepError, match=r"1 of 2 nodes usable.*machine-2 was not checked: .*Preempted") as raised:
        run(config)
    assert raised.value.code == code


@pytest.mark.long
def test_an_unfit_machine_is_named_and_a_spare_one_was_checked(tmp_path: Path) -> None:
    rules = ";".join(f"check.matmul,round={number}=exit:3" for number in (1, 2, 3))
    fault = {"EVERSTEP_FAULT": rules, "EVERSTEP_FAULT_DIR": str(tmp_path)}
    hosts, api, _ = run_check(Config(nodes=3, check_spare=1), 4, "machine-1", fault)
    assert (tmp_path / "check.matmul").exists()
    assert hosts == {"machine-0": False, "machine-1": True, "machine-2": False, "machine-3": False}
    assert list(api.pods) == ["step"], "the pods of the check are gone"


@pytest.mark.long
def test_fit_pods_wait_for_the_training_and_become_its_agents(tmp_path: Path) -> None:
    """The training's master, played by the test, leaves each what to run; the agent refuses its arguments at once."""
    config = Config(nodes=1, check_spare=1, training="train", hold_s=60, store=str(tmp_path))
    started: list[str] = []

    def take(api: PodApi) -> None:
        (name,) = (name for name, pod in api.pods.items() if HELD in pod["metadata"]["labels"])
        start = NodeStart(("--node", "worker-0-0", "--slots", "0", "--", "a.py"), {"EVERSTEP_JOB": "u-train"})
        jobs = {secret["metadata"]["annotations"][NAME]: secret["data"]["token"] for secret in api.secrets.values()}
        key = start_key("u-train", name)
        data = encode_start(start, key, base64.b64decode(jobs["u-train"]).decode())
        open_store(str(tmp_path)).put(key, data)
        started.append(name)

    hosts, api, lines_said = run_check(config, 2, meanwhile=take)
    assert hosts == {"machine-0": False, "machine-1": False}
    assert sorted(api.pods) == sorted(["step", *started]), "the spare one is gone"
    assert "held for the training for 60 s: 1 checked pod" in lines_said
    assert len(api.secrets) == 2, "of the check, and of the training"
    assert f"{started[0]}: {ExitCode.BAD_INPUT}" in lines_said, "the agent ran, in the pod's process"


@pytest.mark.long
def test_no_pod_is_held_while_a_step_of_the_run_finds_no_room(tmp_path: Path) -> None:
    api = PodApi()
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes"}
    labels = {"workflows.argoproj.io/workflow": "w"}
    api.pods["tokenize"] = {
        "metadata": {"name": "tokenize", "uid": "1", "labels": labels}, "spec": {},
        "status": {"phase": "Pending", "conditions": [waits]},
    }  # fmt: skip
    config = Config(nodes=1, check_spare=0, training="train", hold_s=60, store=str(tmp_path))
    _, api, _ = run_check(config, 1, api=api)
    assert sorted(api.pods) == ["step", "tokenize"]


@pytest.mark.long
def test_the_verdict_orders_the_machines_by_their_switches() -> None:
    api = PodApi()
    lines = "a p 10.0.0.0\nb p 10.0.0.1\na p 10.0.0.2"
    metadata = {"name": "node-topology-config", "labels": {}}
    api.configmaps["node-topology-config"] = {"metadata": metadata, "data": {"topology_config": lines}}
    _, _, lines_said = run_check(Config(nodes=3, check_spare=0), 3, api=api)
    assert "in order: machine-0, machine-2, machine-1" in lines_said


@pytest.mark.long
def test_machines_that_are_not_there_are_not_waited_for_when_the_nodes_are() -> None:
    hosts, api, _ = run_check(Config(nodes=1, check_spare=1), 1)
    assert hosts == {"machine-0": False}
    assert list(api.pods) == ["step"]

"""Faults of pods, asked of a small server that speaks the API: done to the right ones, and seen."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiohttp import web

from everstep.runtime.chaos import (
    Fault,
    FiredFault,
    Kind,
    NotFiredError,
    NotPossibleError,
    chaosblade,
    in_pod,
    on_cluster,
)
from everstep.runtime.chaos.chaosblade import ChaosBladeInjector
from everstep.runtime.chaos.on_cluster import ARGO_NODE, ClusterInjector
from everstep.runtime.chaos.progress import Progress
from everstep.runtime.job.reasons import Reason
from everstep.runtime.job.records import NodeLost
from everstep.runtime.journal.journal import claim
from everstep.runtime.platform.kubernetes import Access, KubeApi
from everstep.runtime.platform.kubernetes.pods import JOB, NODE, digest, object_name
from everstep.runtime.platform.kubernetes.sizes import BOUNDS
from everstep.runtime.store import open_store
from tests.platform.blades import BladeOperator, Experiment
from tests.platform.pod_api import PodApi

STORE = "http://minio:9000"
KEYS = {"MINIO_ENDPOINT": STORE, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


def pod(name: str, labels: dict[str, str], owner: str = "j", **annotations: str) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"u-{name}", "labels": labels, "annotations": annotations}
    metadata["ownerReferences"] = [{"kind": "Workflow", "uid": owner, "name": "w.1" if owner == "j" else "w.2"}]
    mounts = [
        {"name": "code", "mountPath": "/code"}, {"name": "part", "mountPath": "/part", "subPath": "of/it"},
        {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
    ]  # fmt: skip
    container = {
        "name": "agent", "image": "mine:1", "command": ["agent"], "env": [{"name": "MINIO_ENDPOINT", "value": STORE}],
        "resources": {"limits": {"memory": "2Gi"}}, "volumeMounts": mounts,
    }  # fmt: skip
    return {
        "metadata": metadata,
        "spec": {"nodeName": "m1", "terminationGracePeriodSeconds": 25, "containers": [container]},
        "status": {"phase": "Running"},
    }


def inject(folder: Path, fault: Fault, server: PodApi, *, by_blade: bool = False, store: str = "") -> FiredFault:
    """Two nodes of the job j-train, its step's pod, the pod of another step, and that of another run's train step."""
    server.nodes.setdefault("m1", {"metadata": {"name": "m1", "resourceVersion": "1"}, "spec": {}})
    for name in ("worker-0-0", "worker-1-0"):
        server.pods[name] = pod(name, {JOB: digest("j-train"), NODE: name})
    step = {"everstep/step": "train"}
    server.pods["step"] = pod("step", step, **{ARGO_NODE: "w.1.train(0)"})
    server.pods["other"] = pod("other", step, **{ARGO_NODE: "w.1.train-b(0)"})
    server.pods["theirs"] = pod("theirs", step, "another", **{ARGO_NODE: "w.2.train(0)"})

    async def story() -> FiredFault:
        async with server as url, KubeApi(Access(url, server.namespace)) as api:
            opened = open_store(store, read_only=True, environment=KEYS) if store else open_store(str(folder))
            progress, chance = Progress(opened, "j-train"), random.Random(0)
            injector = ClusterInjector(api, "train", progress, chance)
            return await (ChaosBladeInjector(api, progress, chance) if by_blade else injector).inject(fault)

    return asyncio.run(story())


def test_a_lost_node_is_a_pod_deleted_by_force(tmp_path: Path) -> None:
    server = PodApi()
    fired = inject(tmp_path, Fault(Kind.NODE, "worker-1-0"), server)
    assert fired.evidence == "pod worker-1-0 deleted with 0 s of grace"
    assert server.pods.keys() == {"worker-0-0", "step", "other", "theirs"}


def test_a_preempted_pod_has_its_own_grace_period(tmp_path: Path) -> None:
    server = PodApi()
    assert inject(tmp_path, Fault(Kind.PREEMPT, "worker-1-0"), server).evidence.endswith("deleted with 25 s of grace")


def test_the_masters_pod_is_that_of_the_steps_task_in_its_run(tmp_path: Path) -> None:
    server = PodApi()
    assert inject(tmp_path, Fault(Kind.MASTER), server).evidence == "pod step deleted"
    assert server.pods.keys() == {"worker-0-0", "worker-1-0", "other", "theirs"}


def test_the_masters_pod_is_that_of_its_run_if_the_step_is_all_of_it(tmp_path: Path) -> None:
    class Alone(PodApi):
        async def _all(self, request: web.Request) -> web.StreamResponse:
            for name, workflow in (("step", "w.1"), ("theirs", "w.2")):
                self.pods[name]["metadata"]["annotations"][ARGO_NODE] = f"{workflow}(0)"
            return await super()._all(request)

    assert inject(tmp_path, Fault(Kind.MASTER), Alone()).evidence == "pod step deleted"


def test_everything_is_the_step_and_all_its_nodes(tmp_path: Path) -> None:
    server = PodApi()
    assert inject(tmp_path, Fault(Kind.EVERYTHING), server).evidence == "3 pods deleted"
    assert server.pods.keys() == {"other", "theirs"}


def test_a_cordoned_machine_is_as_before_in_the_end(tmp_path: Path) -> None:
    server = PodApi()
    fired = inject(tmp_path, Fault(Kind.CORDON, "worker-0-0", seconds=0.01), server)
    assert fired.node == "worker-0-0"
    assert "worker-0-0" not in server.pods
    assert not server.nodes["m1"]["spec"].get("unschedulable")


def test_a_machine_that_is_cordoned_already_is_left_alone(tmp_path: Path) -> None:
    server = PodApi()
    server.nodes["m1"] = {"metadata": {"resourceVersion": "7"}, "spec": {"unschedulable": True}}
    with pytest.raises(NotPossibleError, match=r"machine m1 is cordoned already; .*`kubectl uncordon m1`"):
        inject(tmp_path, Fault(Kind.CORDON, "worker-0-0", seconds=0.01), server)
    assert "worker-0-0" in server.pods
    assert server.nodes["m1"]["spec"] == {"unschedulable": True}


class CordonedMeanwhile(PodApi):
    """Somebody else cordons the machine just before the fault does."""

    async def _node(self, request: web.Request) -> web.Response:
        if request.method == "PATCH" and not self.nodes["m1"]["spec"].get("unschedulable"):
            self.nodes["m1"] = {"metadata": {"resourceVersion": "8"}, "spec": {"unschedulable": True}}
        return await super()._node(request)


def test_of_two_who_cordon_a_machine_at_once_the_second_leaves_it_alone(tmp_path: Path) -> None:
    server = CordonedMeanwhile()
    with pytest.raises(NotPossibleError, match="cordoned already"):
        inject(tmp_path, Fault(Kind.CORDON, "worker-0-0", seconds=0.01), server)
    assert server.nodes["m1"]["spec"] == {"unschedulable": True}


class TaintedByOthers(PodApi):
    """A machine whose pod goes when it is tainted, and that gets a taint of somebody else at once."""

    OTHER: ClassVar = {"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}

    async def _node(self, request: web.Request) -> web.Response:
        answer = await super()._node(request)
        taints = self.nodes["m1"]["spec"].get("taints", [])
        if request.method == "PATCH" and on_cluster.TAINT in taints:
            self.nodes["m1"]["spec"]["taints"] = [*taints, self.OTHER]
            self.remove("worker-0-0")
        return answer


def test_a_tainted_machine_keeps_the_taints_that_others_have_given_it_meanwhile(tmp_path: Path) -> None:
    server = TaintedByOthers()
    fired = inject(tmp_path, Fault(Kind.TAINT, "worker-0-0", seconds=0.01), server)
    assert fired.evidence.startswith("machine m1 for 0.01 s")
    assert server.nodes["m1"]["spec"]["taints"] == [server.OTHER]


def sizes(text: str, most: int) -> dict[str, Any]:
    """The ConfigMap of the job j-train's sizes."""
    metadata = {
        "name": object_name("j-train"), "uid": "u", "resourceVersion": "1",
        "annotations": {BOUNDS: json.dumps({"worker": [1, most]})},
    }  # fmt: skip
    return {"metadata": metadata, "data": {"replicas": text, "requestedAt": "worker: 7\n"}}


def test_a_job_that_gets_no_further_node_is_to_have_as_many_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_cluster, "SEEN_S", 0.3)
    server = PodApi()
    server.configmaps[object_name("j-train")] = before = sizes("ps: 1\nworker: 2\n", most=3)
    with pytest.raises(NotFiredError, match="3 nodes train: not within"):
        inject(tmp_path, Fault(Kind.RESIZE), server)
    asked = [body["data"] for body in server.bodies if "data" in body]
    assert asked == [{"replicas": "ps: 1\nworker: 3\n"}, {"replicas": "ps: 1\nworker: 2\n"}]
    after = server.configmaps[object_name("j-train")]
    assert after["data"] == before["data"]
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]


@pytest.mark.parametrize(("ago_s", "is_refused"), [(10.0, True), (on_cluster.RESIZE_S + 1, False)])
def test_a_job_is_resized_by_one_fault_at_a_time_also_after_one_that_was_killed(
    ago_s: float, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_cluster, "SEEN_S", 0.3)
    server = PodApi()
    server.configmaps[object_name("j-train")] = marked = sizes("worker: 2\n", most=3)
    marked["metadata"]["annotations"][on_cluster.RESIZE_BEGAN] = f"{time.time() - ago_s:.0f}"
    with pytest.raises(NotPossibleError if is_refused else NotFiredError, match=r"another resize|3 nodes train"):
        inject(tmp_path, Fault(Kind.RESIZE), server)
    asked = [body["data"]["replicas"] for body in server.bodies if "data" in body]
    assert asked == ([] if is_refused else ["worker: 3\n", "worker: 2\n"])


def test_of_two_resizes_at_the_same_moment_one_is_refused(tmp_path: Path) -> None:
    class ChangedAtOnce(PodApi):
        async def _one(self, request: web.Request) -> web.StreamResponse:
            answer = await super()._one(request)
            if request.method == "GET":
                self.configmaps[object_name("j-train")]["metadata"]["resourceVersion"] = "2"
            return answer

    server = ChangedAtOnce()
    server.configmaps[object_name("j-train")] = sizes("worker: 2\n", most=3)
    with pytest.raises(NotPossibleError, match="somebody else changes its size at this moment; try again"):
        inject(tmp_path, Fault(Kind.RESIZE), server)
    assert server.configmaps[object_name("j-train")]["data"]["replicas"] == "worker: 2\n"
    assert not [body for body in server.bodies if "data" in body]


def test_a_job_with_all_its_nodes_gets_none_more(tmp_path: Path) -> None:
    server = PodApi()
    server.configmaps[object_name("j-train")] = sizes("worker: 2\n", most=2)
    with pytest.raises(NotPossibleError, match="its 2 worker nodes already: raise the role's maxReplicas"):
        inject(tmp_path, Fault(Kind.RESIZE), server)
    assert not server.bodies


def test_a_node_without_a_pod_has_not_been_hit(tmp_path: Path) -> None:
    with pytest.raises(NotFiredError, match="worker-9-0 has no pod"):
        inject(tmp_path, Fault(Kind.NODE, "worker-9-0"), PodApi())


@pytest.mark.parametrize("kind", [Kind.NODE, Kind.CORDON])
@pytest.mark.parametrize("state", [{"status": {"phase": "Failed"}}, {"spec": {}, "status": {"phase": "Pending"}}])
def test_a_pod_that_has_ended_or_is_on_no_machine_yet_is_not_hit(
    tmp_path: Path, kind: Kind, state: dict[str, Any]
) -> None:
    class NotRunning(PodApi):
        async def _all(self, request: web.Request) -> web.StreamResponse:
            self.pods["worker-0-0"].update(state)
            return await super()._all(request)

    server = NotRunning()
    with pytest.raises(NotFiredError, match="worker-0-0 has no pod on a machine"):
        inject(tmp_path, Fault(kind, "worker-0-0", seconds=0.01), server)
    assert "worker-0-0" in server.pods
    assert server.nodes["m1"]["spec"] == {}


def test_what_cannot_be_done_to_pods_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match="not on a cluster: the store of pods is no disk of their machine"):
        inject(tmp_path, Fault(Kind.DISK), PodApi())


ENDED: dict[str, Any] = {"terminated": {"exitCode": 0}}


def fired_at(moment: float, evidence: str = "no connection") -> str:
    """What the program in the pod prints."""
    return json.dumps({"time": moment, "evidence": evidence}) + "\n"


def test_a_lost_network_is_a_container_beside_the_node_that_takes_it_away(tmp_path: Path) -> None:
    claim(open_store(str(tmp_path)), "j-train", "10.0.0.9:77", time.time())
    server = PodApi()
    server.beside = lambda *_: ("a warning\n" + fired_at(7.5, "no connection to the master"), ENDED)
    fired = inject(tmp_path, Fault(Kind.NETWORK, "worker-1-0", seconds=2), server)
    assert fired == FiredFault(
        Kind.NETWORK, "worker-1-0", 7.5, "in pod worker-1-0, no connection to the master for 2 s"
    )
    (container,) = server.pods["worker-1-0"]["spec"]["ephemeralContainers"]
    words = ["python", "-m", "everstep.runtime.chaos.cut_off", "network", "2", "10.0.0.9:77"]
    assert (container["image"], container["command"]) == ("mine:1", words)
    assert container["volumeMounts"] == [{"name": "code", "mountPath": "/code", "readOnly": True}]
    security = container["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert not security["privileged"]
    assert "resources" not in container, "Kubernetes refuses them"
    assert "ephemeralContainers" not in server.pods["worker-0-0"]["spec"]


def test_a_node_that_is_given_up_while_its_network_is_lost_was_hit(tmp_path: Path) -> None:
    server, moment = PodApi(), time.time()

    def beside(*_: Any) -> tuple[str, dict[str, Any]]:
        asyncio.get_running_loop().call_later(1, server.remove, "worker-1-0")
        return fired_at(moment), {"running": {}}

    server.beside = beside
    fired = inject(tmp_path, Fault(Kind.NETWORK, "worker-1-0", seconds=90), server)
    assert (fired.time, "worker-1-0" in server.pods) == (moment, False)
    assert "for 90 s" not in fired.evidence


def test_a_lost_store_is_lost_by_the_step_and_all_its_nodes(tmp_path: Path) -> None:
    server = PodApi()
    moments = {"step": 7.0, "worker-0-0": 6.5, "worker-1-0": 7.5}
    server.beside = lambda pod, _: (fired_at(moments[pod["metadata"]["name"]]), ENDED)
    fired = inject(tmp_path, Fault(Kind.STORE, seconds=10), server, store="s3://bucket/mine")
    assert fired == FiredFault(Kind.STORE, "", 6.5, "in 3 pods, no connection for 10 s, 1.0 s apart")
    hit = {name: pod["spec"]["ephemeralContainers"] for name, pod in server.pods.items() if name in moments}
    for (container,) in hit.values():
        assert container["command"][-3:] == ["store", "10", "s3://bucket/mine"]
        assert container["env"] == [{"name": "MINIO_ENDPOINT", "value": STORE}], "where the pod finds it"
    assert not [name for name, _ in server.logs if name not in moments], "no pod of other steps and runs"


def test_a_store_that_one_of_the_pods_keeps_was_not_lost(tmp_path: Path) -> None:
    server = PodApi()
    failed = {"terminated": {"exitCode": 1}}
    server.beside = lambda pod, _: (
        ("minio:9000 can still be reached\n", failed) if pod["metadata"]["name"] == "step" else (fired_at(7.0), ENDED)
    )
    with pytest.raises(
        NotFiredError, match=r"container everstep-chaos-\w+ of pod step: minio:9000 can still be reached"
    ):
        inject(tmp_path, Fault(Kind.STORE), server, store="s3://bucket/mine")


def test_a_store_that_is_never_lost_by_all_at_once_was_not_lost(tmp_path: Path) -> None:
    server = PodApi()
    server.beside = lambda pod, _: (fired_at(27.0 if pod["metadata"]["name"] == "step" else 7.0), ENDED)
    with pytest.raises(NotFiredError, match="some pods had the store again before others lost it, 20 s later"):
        inject(tmp_path, Fault(Kind.STORE, seconds=10), server, store="s3://bucket/mine")


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (
            {"waiting": {"reason": "CreateContainerError", "message": "no such user"}},
            "CreateContainerError, no such user",
        ),
        (ENDED, "it said nothing"),
    ],
)
def test_a_container_that_does_not_begin_has_not_fired(tmp_path: Path, state: dict[str, Any], why: str) -> None:
    server = PodApi()
    server.beside = lambda *_: ("", state)
    with pytest.raises(NotFiredError, match=why):
        inject(tmp_path, Fault(Kind.NETWORK, "worker-1-0"), server)


@pytest.mark.parametrize(
    ("refusal", "mend"),
    [
        (
            'pods "worker-1-0" is forbidden: violates PodSecurity "baseline:latest": non-default capabilities',
            "kubectl label --overwrite namespace ml pod-security.kubernetes.io/enforce=privileged",
        ),
        (
            'User "x" cannot patch resource "pods/ephemeralcontainers" in API group ""',
            "kubectl apply -n ml -f templates/chart/files/chaos",
        ),
    ],
)
def test_a_container_that_may_not_be_added_is_refused_with_what_would_let_it(
    tmp_path: Path, refusal: str, mend: str
) -> None:
    class Strict(PodApi):
        async def _add_container(self, request: web.Request) -> web.Response:
            self.refuse = [(403, refusal)]
            return await super()._add_container(request)

    server = Strict()
    with pytest.raises(NotPossibleError) as why:
        inject(tmp_path, Fault(Kind.NETWORK, "worker-1-0"), server)
    assert str(why.value).startswith("no container with NET_ADMIN can be added to pod worker-1-0: ")
    assert refusal in str(why.value)
    assert mend in str(why.value)


def test_the_network_of_a_machine_is_not_taken_away(tmp_path: Path) -> None:
    class Hosts(PodApi):
        async def _all(self, request: web.Request) -> web.StreamResponse:
            for there in self.pods.values():
                there["spec"]["hostNetwork"] = True
            return await super()._all(request)

    server = Hosts()
    with pytest.raises(NotPossibleError, match="pod worker-1-0 has its machine's network"):
        inject(tmp_path, Fault(Kind.NETWORK, "worker-1-0"), server)
    assert not server.logs


def test_a_store_that_is_a_folder_of_the_pods_is_not_taken_away(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match="only a store that is reached by network can be lost"):
        inject(tmp_path, Fault(Kind.STORE), PodApi())


def test_each_kind_is_possible_on_a_cluster_or_refused_with_its_reason(tmp_path: Path) -> None:
    access = KubeApi(Access("http://nowhere", "ml"))
    injector = ClusterInjector(access, "train", Progress(open_store(str(tmp_path)), "j"), random.Random(0))
    assert {kind for kind in Kind if injector.refusal(kind)} == set(Kind) - set(injector._faults)


@pytest.mark.parametrize("kind", in_pod.KINDS)
def test_processes_in_a_pod_are_hit_by_a_program_that_is_executed_there(tmp_path: Path, kind: Kind) -> None:
    server = PodApi()
    server.execute = lambda _: (json.dumps({"time": 7.5, "evidence": "it was seen"}).encode(), "")
    fired = inject(tmp_path, Fault(kind, "worker-1-0", seconds=2, share=0.5), server)
    assert fired == FiredFault(kind, "worker-1-0", 7.5, "in pod worker-1-0: it was seen")
    words = ["python", "-m", "everstep.runtime.chaos.in_pod", kind.value, "2", "0.5"]
    assert server.executed == [("worker-1-0", "agent", words)]


def test_a_program_in_a_pod_that_finds_nothing_has_not_fired(tmp_path: Path) -> None:
    server = PodApi()
    server.execute = lambda _: (b"", "the node has no such process")
    with pytest.raises(NotFiredError, match="exec in pod worker-0-0: the node has no such process"):
        inject(tmp_path, Fault(Kind.CRASH, "worker-0-0"), server)


def judged(folder: Path, reason: Reason) -> Callable[[list[str]], tuple[bytes, str]]:
    """What is executed lets the job lose worker-0-0 for that reason, and the connection with it."""

    def execute(_: list[str]) -> tuple[bytes, str]:
        journal = claim(open_store(str(folder)), "j-train", "127.0.0.1:1", time.time())[0]
        journal.write(journal.draft([NodeLost(time=time.time(), node="worker-0-0", reason=reason)]))
        return b"", "it broke off"

    return execute


@pytest.mark.parametrize(
    ("kind", "reason", "evidence"),
    [
        (Kind.OOM, Reason.OOM, "the journal has NodeLost of worker-0-0: out of memory"),
        (
            Kind.FAULTY,
            Reason.START_FAILED,
            "its measurements were killed; the journal has NodeLost of worker-0-0: start failed",
        ),
    ],
)
def test_what_ends_its_own_container_is_seen_in_the_journal(
    tmp_path: Path, kind: Kind, reason: Reason, evidence: str
) -> None:
    server = PodApi()
    server.execute = judged(tmp_path, reason)
    node = "worker-0-0" if kind is Kind.OOM else ""  # Before the training nobody trains: it is the first that runs.
    fired = inject(tmp_path, Fault(kind, node), server)
    assert (fired.node, fired.evidence) == ("worker-0-0", evidence)
    assert [(pod, words[3]) for pod, _, words in server.executed] == [("worker-0-0", kind.value)]


@pytest.mark.parametrize("kind", [Kind.OOM, Kind.FAULTY])
def test_a_node_that_is_lost_for_another_reason_was_not_hit(tmp_path: Path, kind: Kind) -> None:
    server = PodApi()
    server.execute = judged(tmp_path, Reason.PREEMPTED)
    with pytest.raises(NotFiredError, match="NodeLost of worker-0-0: preempted"):
        inject(tmp_path, Fault(kind, "worker-0-0"), server)


def test_a_program_that_cannot_do_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cluster, "END_SEEN_S", 0.3)
    server = PodApi()
    server.execute = lambda _: (b"", "the pod has no memory limit")
    with pytest.raises(NotFiredError, match="exec in pod worker-0-0: the pod has no memory limit"):
        inject(tmp_path, Fault(Kind.OOM, "worker-0-0"), server)


@pytest.mark.parametrize("why", ["", "command terminated with exit code 143"])
def test_a_container_is_ended_from_inside_and_its_pod_stays(tmp_path: Path, why: str) -> None:
    server = PodApi()

    def end(_: list[str]) -> tuple[bytes, str]:
        server.become("worker-0-0", phase="Failed")
        return b"", why

    server.execute = end
    fired = inject(tmp_path, Fault(Kind.CONTAINER, "worker-0-0"), server)
    assert fired.evidence == "the container of pod worker-0-0 was ended"
    assert server.pods.keys() == {"worker-0-0", "worker-1-0", "step", "other", "theirs"}


def test_chaosblade_is_refused_where_its_operator_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match=r"knows no chaosblades.chaosblade.io: install ChaosBlade's operator"):
        inject(tmp_path, Fault(Kind.CPU, "worker-0-0"), PodApi(), by_blade=True)


def blade(kind: Kind, operator: BladeOperator, folder: Path) -> tuple[FiredFault, Experiment]:
    """A fault of worker-1-0, and what the operator was asked to do."""
    server = PodApi()
    server.blades = operator
    fired = inject(folder, Fault(kind, "worker-1-0", seconds=0.1, share=0.8), server, by_blade=True)
    (experiment,) = operator.experiments
    return fired, experiment


@pytest.mark.parametrize(
    ("kind", "what", "flags"),
    [
        (Kind.CPU, "container cpu fullload", {"cpu-percent": "80", "container-names": "agent", "timeout": "1"}),
        (Kind.MEMORY, "container mem load", {"mode": "ram", "mem-percent": "80"}),
        (Kind.NETWORK, "pod network loss", {"interface": "eth0", "percent": "100"}),
        (Kind.FORK_SERVER, "container process kill", {"process": "everstep.runtime.agent.forkserver", "signal": "9"}),
    ],
)
def test_chaosblades_operator_does_what_its_resource_says(
    tmp_path: Path, kind: Kind, what: str, flags: dict[str, str]
) -> None:
    operator = BladeOperator()
    fired, experiment = blade(kind, operator, tmp_path)
    assert fired.node == "worker-1-0"
    assert fired.evidence.endswith(f": {what} Success")
    assert f"{experiment.scope} {experiment.target} {experiment.action}" == what
    sent = {matcher.name: matcher.value for matcher in experiment.matchers}
    assert {
        key: [value] for key, value in {"names": "worker-1-0", "namespace": "ml", **flags}.items()
    }.items() <= sent.items()
    assert not operator.resources, "the experiment was undone"


def test_a_pod_that_chaosblade_deletes_is_seen_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server, operator = PodApi(), BladeOperator()
    server.blades, act = operator, operator.answer

    def answer(method: str, name: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if method == "POST":
            server.remove("worker-1-0")
        return act(method, name, body)

    monkeypatch.setattr(operator, "answer", answer)
    inject(tmp_path, Fault(Kind.PREEMPT, "worker-1-0"), server, by_blade=True)
    assert [(experiment.scope, experiment.target, experiment.action) for experiment in operator.experiments] == [
        ("pod", "pod", "delete")
    ]


def test_what_chaosblade_cannot_do_has_not_fired_and_nothing_is_left(tmp_path: Path) -> None:
    operator = BladeOperator("no such container")
    with pytest.raises(NotFiredError, match="ChaosBlade: no such container"):
        blade(Kind.CPU, operator, tmp_path)
    assert not operator.resources


def test_a_definition_without_an_operator_has_not_fired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaosblade, "SEEN_S", 1.0)
    with pytest.raises(NotFiredError, match=r"has not begun everstep-network-.*: does it run"):
        blade(Kind.NETWORK, BladeOperator(works=False), tmp_path)


def test_what_chaosblade_has_no_experiment_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match="no such experiment; it has preempt, fork-server, cpu, memory, network"):
        blade(Kind.RESIZE, BladeOperator(), tmp_path)


def test_a_missing_right_is_a_reason_to_refuse(tmp_path: Path) -> None:
    server = PodApi()
    server.refuse = [(403, 'User "x" cannot list resource "pods"')]
    with pytest.raises(NotPossibleError, match="cannot list"):
        inject(tmp_path, Fault(Kind.NODE, "worker-0-0"), server)

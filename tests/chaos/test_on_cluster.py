"""Faults of pods, asked of a small server that speaks the API: done to the right ones, and seen."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.chaos import Fault, FiredFault, Kind, NotFiredError, NotPossibleError
from everstep.runtime.chaos.on_cluster import ARGO_NODE, ClusterInjector
from everstep.runtime.chaos.progress import Progress
from everstep.runtime.platform.kubernetes import Access, KubeApi
from everstep.runtime.platform.kubernetes.pods import JOB, NODE, digest
from everstep.runtime.store import open_store
from tests.platform.pod_api import PodApi


def pod(name: str, labels: dict[str, str], **annotations: str) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"u-{name}", "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "spec": {"nodeName": "m1"}, "status": {"phase": "Running"}}


def inject(folder: Path, fault: Fault, server: PodApi) -> FiredFault:
    """Two nodes of the job j-train, its step's pod, and the pod of another step."""
    server.nodes["m1"] = {"metadata": {"name": "m1", "resourceVersion": "1"}, "spec": {}}
    for name in ("worker-0-0", "worker-1-0"):
        server.pods[name] = pod(name, {JOB: digest("j-train"), NODE: name})
    step = {"everstep/step": "train"}
    server.pods["step"] = pod("step", step, **{ARGO_NODE: "w.train(0)"})
    server.pods["other"] = pod("other", step, **{ARGO_NODE: "w.train-b(0)"})

    async def story() -> FiredFault:
        async with server as url, KubeApi(Access(url, server.namespace)) as api:
            progress = Progress(open_store(str(folder)), "j-train")
            return await ClusterInjector(api, "train", progress, random.Random(0)).inject(fault)

    return asyncio.run(story())


def test_a_lost_node_is_a_pod_deleted_by_force(tmp_path: Path) -> None:
    server = PodApi()
    fired = inject(tmp_path, Fault(Kind.NODE, "worker-1-0"), server)
    assert fired.evidence == "pod worker-1-0 deleted with 0 s of grace"
    assert server.pods.keys() == {"worker-0-0", "step", "other"}


def test_the_masters_pod_is_that_of_the_steps_task(tmp_path: Path) -> None:
    server = PodApi()
    assert inject(tmp_path, Fault(Kind.MASTER), server).evidence == "pod step deleted"
    assert server.pods.keys() == {"worker-0-0", "worker-1-0", "other"}


def test_everything_is_the_step_and_all_its_nodes(tmp_path: Path) -> None:
    server = PodApi()
    assert inject(tmp_path, Fault(Kind.EVERYTHING), server).evidence == "3 pods deleted"
    assert server.pods.keys() == {"other"}


def test_a_cordoned_machine_is_as_before_in_the_end(tmp_path: Path) -> None:
    server = PodApi()
    fired = inject(tmp_path, Fault(Kind.CORDON, "worker-0-0", seconds=0.01), server)
    assert fired.node == "worker-0-0"
    assert "worker-0-0" not in server.pods
    assert not server.nodes["m1"]["spec"].get("unschedulable")


def test_a_node_without_a_pod_has_not_been_hit(tmp_path: Path) -> None:
    with pytest.raises(NotFiredError, match="worker-9-0 has no pod"):
        inject(tmp_path, Fault(Kind.NODE, "worker-9-0"), PodApi())


def test_what_needs_a_process_beside_the_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotPossibleError, match="it needs a process beside the node's; these need none: node, preempt"):
        inject(tmp_path, Fault(Kind.CPU), PodApi())


def test_a_missing_right_is_a_reason_to_refuse(tmp_path: Path) -> None:
    server = PodApi()
    server.refuse = [(403, 'User "x" cannot list resource "pods"')]
    with pytest.raises(NotPossibleError, match="cannot list"):
        inject(tmp_path, Fault(Kind.NODE, "worker-0-0"), server)

"""The check of a cluster's machines: a server speaks the Kubernetes API, and each of its pods is a real process."""

import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.platform.kubernetes import Access
from everstep.runtime.platform.kubernetes.pods import selector
from everstep.steps.check import Config
from everstep.steps.check.machines import check_machines, node_template, requested_resources
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


def test_without_a_training_they_request_what_the_step_does() -> None:
    (container,) = node_template(STEP, workflow({"name": "main"}), "job")["containers"]
    assert container["resources"] == {"requests": {"cpu": "1"}}


def test_a_training_by_template_ref_is_found_in_the_status() -> None:
    found = {**workflow(), "status": {"storedTemplates": {"namespaced/everstep-train/train": TRAIN}}}
    (container,) = node_template(STEP, found, "job")["containers"]
    assert container["resources"] == {"requests": {"cpu": "8", "nvidia.com/gpu": "8"}}


def test_the_largest_role_of_the_job_spec_says_what_they_request() -> None:
    spec = '{"replicaSpecs": {"chief": {"replicas": 1}, "worker": {"replicas": 3, "resources": {"gpu.example/x": 2}}}}'
    assert requested_resources(Config(job_spec=spec)).others == {"gpu.example/x": 2}


class Machines:
    """Runs the pods of the API as processes, each on a machine of its own while there are any."""

    def __init__(self, api: PodApi, machines: int, broken: str, fault: dict[str, str]) -> None:
        self._api = api
        self._fault = fault
        self._machines = [f"machine-{number}" for number in range(machines)]
        self._broken = broken
        self.hosts: dict[str, str] = {}
        self.processes: list[asyncio.subprocess.Process] = []

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._api.until(lambda: self._api.pods.keys() - self.hosts.keys() - {"step"})
            for name in list(self._api.pods.keys() - self.hosts.keys() - {"step"}):
                self.hosts[name] = host = self._machines.pop(0) if self._machines else ""
                if host:
                    await self._start(name, host)

    async def _start(self, name: str, host: str) -> None:
        pod = self._api.pods[name]
        pod["spec"]["nodeName"] = host
        self._api.become(name, phase="Running")
        (container,) = pod["spec"]["containers"]
        given = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        (secret,) = self._api.secrets.values()
        token = base64.b64decode(secret["data"]["token"]).decode()
        variables = {**os.environ, **given, "EVERSTEP_JOB_TOKEN": token, "EVERSTEP_HOST": host}
        variables |= {"EVERSTEP_IP": "127.0.0.1", **(self._fault if host == self._broken else {})}
        words = [sys.executable, *container["command"][1:], *container["args"]]
        self.processes.append(await asyncio.create_subprocess_exec(*words, env=variables))


def checked(
    config: Config, machines: int, broken: str = "", fault: dict[str, str] | None = None
) -> tuple[dict[str, bool], PodApi, list[str]]:
    """(whether to avoid each machine, the API afterwards, what was said)."""
    said: list[str] = []

    async def story() -> tuple[dict[str, bool], PodApi]:
        api = PodApi()
        api.workflows["w"] = workflow(TRAIN)
        owner = {"kind": "Workflow", "name": "w", "uid": "u"}
        metadata = {"name": "step", "uid": "0123456789", "ownerReferences": [owner], "labels": {}}
        spec = {"containers": [{"name": "main", "image": "i"}]}
        api.pods["step"] = {"metadata": metadata, "spec": spec, "status": {"phase": "Running", "podIP": "127.0.0.1"}}
        there = Machines(api, machines, broken, fault or {})
        async with api as url:
            running = asyncio.create_task(there.run())
            try:
                verdicts, _ = await check_machines(
                    config, "step", Access(url, "ml"), said.append, lambda _: None, look_s=0.1
                )
            finally:
                running.cancel()
                for process in there.processes:
                    await process.wait()
        return {one.host: one.avoid for one in verdicts}, api

    hosts, api = asyncio.run(story())
    return hosts, api, said


@pytest.mark.long
def test_an_unfit_machine_is_named_and_a_spare_one_was_checked(tmp_path: Path) -> None:
    rules = ";".join(f"check.matmul,round={number}=exit:3" for number in (1, 2, 3))
    fault = {"EVERSTEP_FAULT": rules, "EVERSTEP_FAULT_DIR": str(tmp_path)}
    hosts, api, _ = checked(Config(nodes=3, check_spare=1), 4, "machine-1", fault)
    assert (tmp_path / "check.matmul").exists()
    assert hosts == {"machine-0": False, "machine-1": True, "machine-2": False, "machine-3": False}
    assert list(api.pods) == ["step"], "the pods of the check are gone"


@pytest.mark.long
def test_machines_that_are_not_there_are_not_waited_for_when_the_nodes_are() -> None:
    hosts, api, _ = checked(Config(nodes=1, check_spare=1), 1)
    assert hosts == {"machine-0": False}
    assert list(api.pods) == ["step"]

"""A converted job whose pods have their machine's network (`hostNetwork`), two of them on one machine.

What the page "GPUs" says of it is so: addresses are the machine's, ports are free ones, and who has no token gets no
further than a refusal, though no NetworkPolicy sees such pods.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import averaging, faults
from tests.cluster.converted import ends_well, give_programs, goes_on, job_text, members, said, submitted, token_of
from tests.cluster.journal import lost_nodes
from tests.cluster.layout import NODES, address, host_name, node_name
from tests.cluster.lifecycle import Cluster
from tests.cluster.processes import output_of
from tests.cluster.trainings import Training

WORKERS = 3
CHANGES = {
    "minReplicas: 5, maxReplicas: 10": f"minReplicas: 2, maxReplicas: {WORKERS}", "nProcPerNode: 4": "nProcPerNode: 2",
    "replicas: 10": f"replicas: {WORKERS}", "nodeSelector: {gpu: a100}": "hostNetwork: true",
}  # fmt: skip
ADDRESSES = {node_name(number): address(number) for number in range(1, NODES + 1)}
"""Of the machines."""
LISTENS = re.compile(r"LISTEN\s+\d+\s+\d+\s+(\S+):(\d+)\s.*pid=(\d+)")
"""(Address, port, process) of a line of ss."""


def job_of(folder: Path) -> str:
    """The documented job, with the machine's network, at the size of this cluster."""
    program = f'{averaging.__file__}, "torch", "{folder}"'
    job: dict[str, Any] = yaml.safe_load(job_text("pytorch_job", {**CHANGES, 'imagenet.py, "--epochs=10"': program}))
    pod = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    give_programs(pod, folder, [], slots=1)
    (container,) = pod["containers"]
    container["env"].append({"name": "GLOO_SOCKET_IFNAME", "value": "eth0"})
    return yaml.safe_dump(job)


@pytest.fixture
def job(cluster: Cluster, tmp_path: Path) -> Iterator[Training]:
    """It is submitted; a machine has room for two of its nodes."""
    with submitted(cluster, job_of(tmp_path), slots=2) as submitted_job:
        yield submitted_job


def listeners(job: Training, number: int) -> Iterator[tuple[str, int]]:
    """(Address, port) where processes of the job's nodes listen on that machine."""
    own = {process.pid for process in faults.marked_processes(f"EVERSTEP_JOB={job.job}")}
    for line in output_of("nsenter", f"--net=/run/netns/{host_name(number)}", "ss", "-Hltnp").splitlines():
        if (match := LISTENS.match(line)) and int(match[3]) in own:
            yield match[1], int(match[2])


def answer(number: int, endpoint: str, token: str) -> str:
    """The code with which that server answers a process of that machine, with this token or with none."""
    header = f'header = "Authorization: Bearer {token}"' if token else ""
    within = ["nsenter", f"--net=/run/netns/{host_name(number)}"]
    options = ["--insecure", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "--config", "-"]
    return output_of(*within, "curl", *options, f"https://{endpoint}/", text=header)


def test_nodes_with_their_machines_network_share_one_and_go_on_when_one_is_lost(job: Training, tmp_path: Path) -> None:
    goes_on(job, tmp_path, WORKERS)
    pods = job.nodes()
    assert sorted(Counter(pod["spec"]["nodeName"] for pod in pods.values()).values()) == [1, 2]
    for name, member in members(job).items():
        own = ADDRESSES[pods[name]["spec"]["nodeName"]]
        assert (pods[name]["status"]["podIP"], member["address"].rpartition(":")[0], member["ip"]) == (own, own, own)
        assert pods[name]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
        assert pods[name]["spec"]["automountServiceAccountToken"] is False
    endpoints = [member["address"] for member in members(job).values()]
    assert len(set(endpoints)) == WORKERS
    for number in range(1, NODES + 1):
        there = list(listeners(job, number))
        assert {where for where, _ in there} == {address(number)}
        assert {int(at.rpartition(":")[2]) for at in endpoints if at.startswith(f"{address(number)}:")} <= {
            port for _, port in there
        }
        for endpoint in endpoints:
            assert answer(number, endpoint, "") == answer(number, endpoint, "another") == "401"
            assert answer(number, endpoint, token_of(job)) == "404"
    faults.pod_deleted(job)
    lost = f"worker-{WORKERS - 1}-0"
    goes_on(job, tmp_path, WORKERS, lost)
    assert lost_nodes(job.records()) == {lost}
    assert 2 * WORKERS in {line.ranks for line in ends_well(job, tmp_path)}
    assert token_of(job) not in said(job)

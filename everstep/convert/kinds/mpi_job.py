"""Kubeflow's MPIJob (kubeflow.org/v2beta1, and v1, which starts processes by kubectl where the other does by ssh).

What its operator does besides stands in kubeflow/mpi-operator: pkg/controller/mpi_job_controller.go,
pkg/apis/kubeflow/v2beta1/default.go. torchrun or deepspeed in the launcher are replaced as everywhere: the workers are
one role then.
"""

from dataclasses import replace
from typing import Any

from everstep.convert.field_reader import Fields
from everstep.convert.launcher import parse_launch
from everstep.convert.mpi import with_launcher
from everstep.convert.pods import gpus_of, read_pod
from everstep.convert.restarts import read_restarts
from everstep.convert.run_policy import read_run, read_scheduling
from everstep.convert.source import Pod, Role, SourceJob
from everstep.convert.ssh_hosts import DISCOVERY, with_own_files
from everstep.runtime.protocol.rounds import Framework

_REPLICAS, _RUN = ("spec", "mpiReplicaSpecs"), ("spec", "runPolicy")
_LAUNCHER, _WORKER = (*_REPLICAS, "Launcher"), (*_REPLICAS, "Worker")
_HOST_FILE = {
    "OpenMPI": "OMPI_MCA_orte_default_hostfile", "Intel": "I_MPI_HYDRA_HOST_FILE", "MPICH": "HYDRA_HOST_FILE",
}  # fmt: skip
"""The variable with the path of the hosts' file, by mpiImplementation."""
_HOSTS = "/etc/mpi/hostfile"
_SLOTS = ("OMPI_MCA_orte_set_default_slots", "I_MPI_PERHOST")
_OF_LAUNCHER = {name: name for name in (*_HOST_FILE.values(), *_SLOTS)}
_WAITS = {"AtStartup": False, "WaitForWorkersReady": True}
_OWN_FIELDS = ("env", "workingDir")
"""What of a launcher's container its program needs in the workers' place."""


def read(fields: Fields) -> SourceJob:
    """Raises ConvertError."""
    names = fields.keys(*_REPLICAS)
    if unknown := [name for name in names if name not in ("Launcher", "Worker")]:
        raise fields.wrong("an MPIJob has Launcher and Worker", *_REPLICAS, unknown[0])
    for name in ("Launcher", "Worker"):
        if name not in names:
            raise fields.wrong(f"missing: {name}", *_REPLICAS)
    if fields.count(*_LAUNCHER, "replicas", default=1) != 1:
        raise fields.wrong("there is one launcher; leave it at 1", *_LAUNCHER, "replicas")
    slots = fields.count("spec", "slotsPerWorker", default=1, least=1)
    nodes = fields.count(*_WORKER, "replicas", default=1, least=1) + _launchers_that_work(fields)
    container = fields.take(str, "spec", "mainContainer", default="")
    launcher = Role("launcher", 1, 1, _launchers_pod(fields, container))
    worker = Role("worker", nodes, nodes, read_pod(fields, (*_WORKER, "template"), container), slots)
    arguments: dict[str, object] = {**read_scheduling(fields, _RUN, nodes + 1)}
    if fields.has(*_RUN, "backoffLimit"):
        arguments["max_restarts"] = fields.count(*_RUN, "backoffLimit")
    policies: dict[str, Any] = {}
    for place in ("spec",), _RUN:
        if policy := fields.take(str, *place, "cleanPodPolicy", default=""):
            policies["cleanPodPolicy"] = policy
    roles = _roles(fields, launcher, worker)
    if len(roles) > 1:
        policies["frameworkType"] = Framework.HOROVOD.value
    return SourceJob(roles, arguments, policies, run=read_run(fields, *_RUN))


def _roles(fields: Fields, launcher: Role, worker: Role) -> tuple[Role, ...]:
    of_launcher, of_worker = read_restarts(fields, _LAUNCHER, "OnFailure"), read_restarts(fields, _WORKER, "Never")
    waits = fields.take(str, "spec", "launcherCreationPolicy", default="AtStartup")
    if waits not in _WAITS:
        known = " or ".join(_WAITS)
        raise fields.wrong(f"{waits} is not known; use {known}", "spec", "launcherCreationPolicy")
    fields.skip(str, "spec", "sshAuthMountPath")
    launch = parse_launch(launcher.pod.command, {})
    if launch and launch.has_launcher:
        return (_without_launcher(fields, launcher.pod, replace(worker, policies=of_launcher)),)
    launcher = replace(launcher, policies={**of_launcher, **({"waitsFor": [worker.name]} if _WAITS[waits] else {})})
    keys = ("spec", "sshAuthMountPath") if fields.has("spec", "sshAuthMountPath") else _REPLICAS
    return with_launcher(fields, launcher, replace(worker, policies=of_worker), (_LAUNCHER, _WORKER), keys)


def _launchers_that_work(fields: Fields) -> int:
    """How many Workers more there are for it."""
    if not fields.take(bool, "spec", "runLauncherAsWorker", default=False):
        fields.skip(bool, "spec", "runLauncherAsWorker")
        return 0
    fields.note("one Worker more does the launcher's part of the work", "spec", "runLauncherAsWorker")
    return 1


def _launchers_pod(fields: Fields, container: str) -> Pod:
    """With a command that reads the round's files in the place of the operator's."""
    implementation = fields.take(str, "spec", "mpiImplementation", default="OpenMPI")
    if implementation not in _HOST_FILE:
        known = ", ".join(_HOST_FILE)
        raise fields.wrong(f"{implementation} is not known; use one of {known}", "spec", "mpiImplementation")
    pod = read_pod(fields, (*_LAUNCHER, "template"), container, _OF_LAUNCHER)
    files = {"/etc/mpi/discover_hosts.sh": DISCOVERY, _HOSTS: _HOST_FILE[implementation]}
    return replace(pod, command=with_own_files(pod.command, files))


def _without_launcher(fields: Fields, launcher: Pod, worker: Role) -> Role:
    """The workers, each of which runs what the launcher would start there, in Worker's pod."""
    fields.note("its command is each Worker's, with its variables; nearest for all else: Worker's", *_LAUNCHER)
    if (devices := gpus_of(worker.pod.container)) and devices != worker.slots:
        what = f"{worker.slots}: a launcher that starts a process for each GPU starts {devices}"
        fields.note(f"{what}; nearest: slots in a job spec", "spec", "slotsPerWorker")
    own = {name: launcher.container[name] for name in _OWN_FIELDS if name in launcher.container}
    container = {**own, **worker.pod.container}
    if both := [*own.get("env", []), *worker.pod.container.get("env", [])]:
        container["env"] = list({str(entry.get("name")): entry for entry in reversed(both)}.values())[::-1]
    pod = replace(worker.pod, command=launcher.command, has_program=launcher.has_program, container=container)
    return replace(worker, pod=pod)

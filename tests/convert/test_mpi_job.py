"""MPIJob, and Volcano's plugin mpi: what starts processes by ssh gets the job's keys and the round's hosts."""

import json
import re
import shlex
from typing import Any

import pytest

from everstep.cli.main import main
from everstep.convert import ConvertError, convert
from tests.convert.stand_ins import JOBS

OPEN_MPI = (JOBS / "mpi_job.yaml").read_text()
VOLCANO = (JOBS / "volcano_mpi.yaml").read_text()
SERVER = ["python", "-m", "everstep.keep_running", "python", "-m", "everstep.ssh_server"]
OWN_SSH = "export PATH=$EVERSTEP_SSH:$PATH; "
HOSTS = ["python", "-m", "everstep.mpi_hosts"]


def launched(command: list[str], text: str = OPEN_MPI) -> str:
    """The MPIJob, whose launcher has that command."""
    return re.sub(r"command: \[mpirun\]\n +args: \[.*\]", lambda _: f"command: {json.dumps(command)}", text)


def commands_of(text: str) -> dict[str, list[str]]:
    (commands,) = shlex.split(convert(text, "f").arguments["script_args"])
    return {role: shlex.split(command) for role, command in json.loads(commands).items()}


def roles_of(text: str) -> dict[str, Any]:
    return convert(text, "f").arguments["job_spec"]["replicaSpecs"]


def noted(text: str) -> str:
    return "\n".join(convert(text, "f").notes)


def test_mpirun_starts_anew_with_the_hosts_of_each_round() -> None:
    commands = commands_of(OPEN_MPI)
    assert commands["launcher"][:9] == [
        *HOSTS,
        "sh",
        "-c",
        f'{OWN_SSH}exec "$@"',
        "sh",
        "mpirun",
        "--allow-run-as-root",
    ]
    assert commands["launcher"][-3:] == ["python", "bench.py", "--model=resnet101"]
    assert commands["worker"] == SERVER
    arguments = convert(OPEN_MPI, "f").arguments
    spec = arguments["job_spec"]
    assert (spec["frameworkType"], spec["cleanPodPolicy"]) == ("horovod", "Running")
    assert (arguments["gang"], arguments["queue"], arguments["max_restarts"]) == ("volcano", "ml", 4)
    assert convert(OPEN_MPI, "f").run == {"ttlStrategy": {"secondsAfterCompletion": 3600}}
    launcher, worker = spec["replicaSpecs"]["launcher"], spec["replicaSpecs"]["worker"]
    assert (worker["replicas"], worker["minReplicas"], worker["slots"], worker["completePolicy"]) == (3, 3, 2, "None")
    assert (launcher["waitsFor"], worker["restartPolicy"]) == (["worker"], "Never")


def test_what_has_no_counterpart_is_told() -> None:
    places = set(re.findall(r"f:\d+: ([\w.\[\]-]+): ", noted(OPEN_MPI)))
    assert places == {"metadata.namespace", "spec.sshAuthMountPath", "spec.mpiReplicaSpecs.Launcher"}
    assert "starts the command anew" in noted(OPEN_MPI)
    text = OPEN_MPI.replace("slotsPerWorker: 2", "slotsPerWorker: 2\n  runLauncherAsWorker: true")
    assert "spec.runLauncherAsWorker: one Worker more does the launcher's part of the work" in noted(text)
    assert roles_of(text)["worker"]["replicas"] == 4


@pytest.mark.parametrize(
    ("limits", "nodes"),
    [
        (["--min-np", "3", "--max-np", "10"], (3, 2, 5)),
        (["--min-num-proc=1", "--max-num-proc=6"], (3, 1, None)),
        ([], (3, 3, None)),
    ],
)
def test_horovodrun_that_looks_for_hosts_outlives_rounds_between_its_limits(
    limits: list[str], nodes: tuple[int, int, int | None]
) -> None:
    discovery = ["--host-discovery-script", "/etc/mpi/discover_hosts.sh"]
    text = launched(["horovodrun", "-np", "6", *limits, *discovery, "python", "train.py"])
    launcher = commands_of(text)["launcher"]
    assert launcher[:5] == [*SERVER[:3], "sh", "-c"]
    words = ["exec", "horovodrun", "-np", "6", *limits, discovery[0], '"$EVERSTEP_DISCOVERY_SCRIPT"']
    assert launcher[5] == f"{OWN_SSH}{' '.join(words)} python train.py"
    worker = roles_of(text)["worker"]
    assert (worker["replicas"], worker["minReplicas"], worker.get("maxReplicas")) == nodes
    assert "starts the command anew" not in noted(text)


@pytest.mark.parametrize(
    ("implementation", "variable"),
    [
        ("Intel", "I_MPI_HYDRA_HOST_FILE"),
        ("MPICH", "HYDRA_HOST_FILE"),
        ("OpenMPI", "OMPI_MCA_orte_default_hostfile"),
    ],
)
def test_the_operators_file_is_the_rounds_as_its_mpi_reads_it(implementation: str, variable: str) -> None:
    text = launched(["bash", "-lc", "mpirun -n 6 -f /etc/mpi/hostfile ./train"])
    text = text.replace("slotsPerWorker: 2", f"slotsPerWorker: 2\n  mpiImplementation: {implementation}")
    assert commands_of(text)["launcher"] == [*HOSTS, "bash", "-lc", f"{OWN_SSH}mpirun -n 6 -f ${{{variable}}} ./train"]
    named = launched(["mpirun", "-f", f"$({variable})", "a b"])
    assert commands_of(named)["launcher"][5] == f"{OWN_SSH}exec mpirun -f \"${variable}\" 'a b'"


def test_deepspeed_in_the_launcher_is_one_role_of_workers() -> None:
    text = launched(["deepspeed", "--hostfile=/etc/mpi/hostfile", "train.py", "--deepspeed", "ds.json"])
    text = text.replace("- name: launcher\n", "- name: launcher\n            env: [{name: A, value: b}]\n")
    arguments = convert(text, "f").arguments
    assert arguments["script"] == "train.py"
    assert arguments["script_args"] == "'--local_rank=${local_rank}' --deepspeed ds.json"
    assert "frameworkType" not in arguments["job_spec"]
    ((name, worker),) = arguments["job_spec"]["replicaSpecs"].items()
    assert (name, worker["replicas"], worker["slots"]) == ("worker", 3, 2)
    assert worker["template"]["spec"]["containers"][0]["env"] == [{"name": "A", "value": "b"}]
    assert "spec.mpiReplicaSpecs.Launcher: its command is each Worker's" in noted(text)
    more = text.replace("nvidia.com/gpu: 2", "nvidia.com/gpu: 8")
    assert "spec.slotsPerWorker: 2: a launcher that starts a process for each GPU starts 8" in noted(more)


def test_an_older_jobs_shape_converts_too() -> None:
    text = OPEN_MPI.replace("kubeflow.org/v2beta1", "kubeflow.org/v1").replace("    cleanPodPolicy: Running\n", "")
    text = text.replace("  slotsPerWorker: 2", "  slotsPerWorker: 2\n  cleanPodPolicy: All\n  mainContainer: worker")
    text = re.sub(r" +command: \[/usr/sbin/sshd\]\n +args: \[-De.*\n", "", text)
    assert commands_of(text)["worker"] == SERVER
    assert convert(text, "f").arguments["job_spec"]["cleanPodPolicy"] == "All"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("slotsPerWorker: 2", "slotsPerWorker: two", "j.yaml:6: spec.slotsPerWorker: 'two' is not a whole number"),
        ("slotsPerWorker: 2", "slotsPerWorker: 0", "j.yaml:6: spec.slotsPerWorker: 0 must be at least 1"),
        ("    Worker:", "    Workers:", "j.yaml:27: spec.mpiReplicaSpecs.Workers: an MPIJob has Launcher and Worker"),
        ("replicas: 1", "replicas: 2", "j.yaml:17: spec.mpiReplicaSpecs.Launcher.replicas: there is one launcher"),
        ("WaitForWorkersReady", "Later", "j.yaml:8: spec.launcherCreationPolicy: Later is not known; use AtStartup or"),
        ("slotsPerWorker: 2", "mpiImplementation: LAM", "j.yaml:6: spec.mpiImplementation: LAM is not known; use one"),
    ],
)
def test_a_field_that_is_wrong_is_one_line(
    old: str, new: str, said: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert old in OPEN_MPI
    (tmp_path / "j.yaml").write_text(OPEN_MPI.replace(old, new, 1))
    assert main(["convert", "j.yaml"]) == 2
    assert said in capsys.readouterr().err


def test_hosts_that_share_their_machines_port_are_told_to_be_one() -> None:
    said = "f: worker: with hostNetwork, nodes of one machine are one host to what starts processes by ssh"
    assert said in noted(OPEN_MPI.replace("        spec:\n", "        spec:\n          hostNetwork: true\n"))
    assert "hostNetwork" not in noted(OPEN_MPI)


@pytest.mark.parametrize("name", ["Launcher", "Worker"])
def test_a_job_without_one_of_its_two_is_refused(name: str) -> None:
    at = OPEN_MPI.index("    Worker:")
    text = OPEN_MPI[:at] if name == "Worker" else re.sub(r"    Launcher:(\n {6}.*)+", "", OPEN_MPI)
    with pytest.raises(ConvertError, match=rf"f:15: spec.mpiReplicaSpecs: missing: {name}"):
        convert(text, "f")


def test_volcanos_plugin_names_launcher_and_hosts() -> None:
    commands = commands_of(VOLCANO)
    text = f"{OWN_SSH}mpiexec --allow-run-as-root --host ${{MPI_HOST}} -np 2 python bench.py"
    assert commands == {"launcher": [*HOSTS, "/bin/sh", "-c", text], "mpiworker": SERVER}
    spec = convert(VOLCANO, "f").arguments["job_spec"]
    assert (spec["frameworkType"], spec["completePolicy"]) == ("horovod", "Any")
    ends = {name: (role["minReplicas"], role["completePolicy"]) for name, role in spec["replicaSpecs"].items()}
    assert ends == {"launcher": (1, "All"), "mpiworker": (2, "None")}
    assert "spec.plugins.ssh" not in noted(VOLCANO)
    assert "spec.plugins.svc: beside frameworkType: horovod there are no VC_ variables" in noted(VOLCANO)
    waits = VOLCANO.replace("name: mpi-worker\n", "name: mpi-worker\n    dependsOn: {name: [mpimaster]}\n")
    assert roles_of(waits)["mpiworker"]["waitsFor"] == ["launcher"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("--master=mpimaster", "--master=other", "spec.plugins.mpi: no task is called other; name the tasks by"),
        ("--worker=mpi-worker", "--worker=mpimaster", "spec.plugins.mpi: mpimaster cannot be both master and worker"),
        ("replicas: 1", "replicas: 2", "spec.tasks[0].replicas: there is one master"),
        ("[--master=mpimaster, --worker=mpi-worker, --port=22]", "[]", "spec.plugins.mpi: no task is called master"),
    ],
)
def test_a_plugin_without_its_tasks_is_refused(old: str, new: str, said: str) -> None:
    assert old in VOLCANO
    with pytest.raises(ConvertError, match=re.escape(said)):
        convert(VOLCANO.replace(old, new, 1), "f")

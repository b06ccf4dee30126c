"""A real horovodrun between machines: it starts its workers by ssh, with the job's keys, on real servers.

Each machine is a network namespace with a name of its own that stands for its address, as a pod has one. They share
files. As root, with openssh-server.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from everstep.runtime.agent.ports import free_port
from tests.frameworks.horovod_losses import SCRIPT, end_soon, losses_alone, losses_in, ranks_in
from tests.frameworks.test_horovod import python
from tests.launch.launchers import EVERSTEP, Launcher, until
from tests.launch.networks import INTERFACE, Network

__all__ = ["python"]

MACHINES = 5
"""The launcher's, and those of trainers: two at first."""
ITERATIONS = 10_000
"""More than there will be."""
SLOTS = 32
"""Of one host, for a test of its logins."""
UNREAD = 2
"""Iterations that may be done but not yet told."""
TOKEN = "only nodes of this job know this"
KEEP = [sys.executable, "-m", "everstep.keep_running"]
SERVER = [*KEEP, sys.executable, "-m", "everstep.ssh_server"]
LAUNCH = f"""
export PATH=$EVERSTEP_SSH:$1:$PATH HOROVOD_GLOO_TIMEOUT_SECONDS=60
exec horovodrun -np 2 --min-np 1 --max-np 4 --host-discovery-script $EVERSTEP_DISCOVERY_SCRIPT \\
    --network-interfaces {INTERFACE} --verbose python -u "$2" "$3" "$4"
"""
MACHINE = 'mount --bind "$0" /etc/hosts && mount -t tmpfs none /dev/shm && hostname "$1" && shift && exec "$@"'
"""What a killed machine had in shared memory is lost with it."""
TRAINER = {"replicas": 4, "minReplicas": 1, "completePolicy": "None"}
"""From one to four machines, as they come."""
SPEC = {"frameworkType": "horovod", "replicaSpecs": {"launcher": {"replicas": 1}, "trainer": TRAINER}}
CONF = "--rdzv-conf=last_call_timeout=2,keep_alive_interval=5,keep_alive_max_attempt=2"


class Job:
    """A launcher on machine 0, and a trainer on some of the others."""

    def __init__(self, launcher: Launcher, network: Network) -> None:
        self.launcher, self.network, self._port = launcher, network, free_port(random.Random())
        self._hosts = launcher.folder / "hosts"
        names = [f"{network.address(number)} machine{number}" for number in range(MACHINES)]
        self._hosts.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        (launcher.folder / "job.yaml").write_text(json.dumps(SPEC))

    def start(self, number: int, role: str, command: list[str], name: str = "", **more: str) -> None:
        """Start a node on that machine."""
        machine = ["unshare", "-mu", "sh", "-c", MACHINE, str(self._hosts), f"machine{number}"]
        flags = ["--job-spec=job.yaml", f"--role={role}", "--rdzv-id=j", CONF, "--no-python"]
        endpoint = f"--rdzv-endpoint={self.network.address(0)}:{self._port}"
        variables = {"EVERSTEP_JOB_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", **more}
        within = [*self.network.enter(number), *machine, *EVERSTEP]
        self.launcher.start(within, *flags, endpoint, *command, name=name or f"machine{number}", **variables)

    def launch(self, python: Path, seconds: float) -> None:
        """Start the launcher."""
        arguments = ["launch", str(python.parent), str(SCRIPT), str(ITERATIONS), str(seconds)]
        self.start(0, "launcher", [*KEEP, "sh", "-c", LAUNCH, *arguments])

    def said(self, name: str = "") -> str:
        """What that node has written, or all."""
        files = sorted(self.launcher.folder.glob(f"{name or '*'}.*"))
        return "\n".join(f"[{path.name}]\n{path.read_text()}" for path in files if path.suffix in (".out", ".err"))

    def losses(self) -> dict[int, tuple[int, float]]:
        """The ranks and the loss of each iteration, so far."""
        return losses_in(self.said("machine0"))

    def told(self) -> list[int]:
        """How many ranks did each iteration, in the order in which they were done."""
        return ranks_in(self.said("machine0"))

    def trains(self, ranks: int, after: int = 0) -> None:
        """Wait until at least so many ranks have done an iteration, after so many others.

        After a fault there may be more ranks than horovodrun would have: if it gives up, as on a busy machine, it is
        started anew, from the first iteration, and takes back all hosts.
        """
        until(lambda: max(self.told()[after:], default=0) >= ranks, lambda: f"{ranks} ranks: {self.said()}")

    def goes_on(self) -> None:
        """Wait for iterations that began after this."""
        self.trains(2, len(self.told()) + UNREAD)

    def workers(self, number: int) -> list[int]:
        """horovodrun's workers on that machine."""
        found = []
        for pid in self.network.processes(number):
            words = _words(pid)
            if words and words[0].endswith("python") and str(SCRIPT) in words:
                found.append(pid)
        return found


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Of machines of its own, or the test is skipped."""
    if shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") is None or shutil.which("ssh") is None:
        pytest.skip("there is no sshd here: install openssh-server and openssh-client")
    if os.geteuid():
        pytest.skip("needs root: sshd of another user cannot run in a user namespace")
    network = Network(MACHINES)
    with closing(Launcher(tmp_path)) as launcher:
        try:
            network.make()
            yield Job(launcher, network)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {error}")
        finally:
            network.close()


def test_workers_and_machines_come_and_go_and_the_losses_stay(job: Job, python: Path) -> None:
    job.launch(python, 1.0)
    for number in (1, 2):
        job.start(number, "trainer", SERVER)
    job.trains(2)
    job.start(3, "trainer", SERVER)
    job.trains(3)
    (worker,) = job.workers(3)
    os.kill(worker, signal.SIGKILL)
    job.goes_on()
    job.start(4, "trainer", SERVER)
    job.trains(3, len(job.told()))
    job.network.wire("down", 2)  # Nobody hears how it ends.
    lost = job.network.processes(2)
    for pid in lost:
        os.kill(pid, signal.SIGKILL)
    assert lost
    job.goes_on()
    last = end_soon(job.launcher.folder, max(job.losses()))
    assert job.launcher.named["machine0"].wait(180) == 0, job.said()
    losses, expected = job.losses(), losses_alone(python, last)
    assert set(losses) <= set(range(1, last + 1))
    assert last - len(losses) <= UNREAD  # The lost machine may have been that of rank 0, which tells them.
    assert max(losses) == last
    assert set(job.told()) >= {2, 3}  # Of all starts: one that began anew may have three ranks throughout.
    assert all(loss == pytest.approx(expected[number - 1], rel=1e-3) for number, (_, loss) in losses.items())
    assert job.said().count("Accepted publickey") >= 4  # More if horovodrun gave up a peer, and was started anew.
    assert TOKEN not in job.said()
    assert "PRIVATE KEY" not in job.said()


def test_workers_end_with_their_launcher(job: Job, python: Path) -> None:
    job.launch(python, 1.0)
    job.start(1, "trainer", SERVER)
    job.start(2, "trainer", SERVER)
    job.trains(2)
    workers = [*job.workers(1), *job.workers(2)]
    assert len(workers) == 2
    for pid in job.network.processes(0):
        if "--host-discovery-script" in _words(pid) or "ssh" in " ".join(_words(pid)[:1]):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not set(workers) & {*job.workers(1), *job.workers(2)}, lambda: job.said())


def launchers_folder(job: Job) -> str:
    """The EVERSTEP_SSH of a launcher that does nothing until there is a file `end`, once it is in a round."""
    job.start(0, "launcher", [*KEEP, "sh", "-c", "while ! [ -e $0/end ]; do sleep 0.1; done", str(job.launcher.folder)])

    def folders() -> set[str]:
        words = (word for pid in job.network.processes(0) for word in _environment(pid))
        return {word.partition("=")[2] for word in words if word.startswith("EVERSTEP_SSH=")}

    until(folders, job.said)
    (folder,) = folders()
    return folder


def test_logins_wait_for_a_server_that_starts_later_and_as_many_come_in_at_once_as_a_host_has_slots(job: Job) -> None:
    late = f"while ! [ -e $0/serve ]; do sleep 0.1; done; exec {sys.executable} -m everstep.ssh_server"
    job.start(1, "trainer", [*KEEP, "sh", "-c", late, str(job.launcher.folder)])
    folder, said = launchers_folder(job), job.launcher.folder / "logins"
    assert not job.network.reaches(2222, 0, 1)
    log_in = [*job.network.enter(0), f"{folder}/ssh", job.network.address(1), "echo in"]
    with said.open("w") as file:
        logins = [subprocess.Popen(log_in, stdout=subprocess.PIPE, stderr=file, text=True) for _ in range(SLOTS)]
    until(lambda: sum("ssh_connection" in " ".join(_words(pid)) for pid in job.network.processes(0)) == SLOTS, job.said)
    (job.launcher.folder / "serve").touch()
    assert [login.communicate()[0] for login in logins] == ["in\n"] * SLOTS, said.read_text()
    (job.launcher.folder / "end").touch()


def test_a_host_of_another_job_is_not_logged_into_nor_lets_one_in(job: Job) -> None:
    job.start(1, "trainer", SERVER)
    folder = launchers_folder(job)
    until(lambda: job.network.reaches(2222, 0, 1), job.said)

    def log_in(*options: str) -> subprocess.CompletedProcess[str]:
        command = [*job.network.enter(0), f"{folder}/ssh", *options, job.network.address(1), "echo in"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    careless = ("-o", "PasswordAuthentication=no", "-o", "StrictHostKeyChecking=no")
    assert log_in(*careless).stdout == "in\n"
    other = job.launcher.folder / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    config = Path(folder, "config").read_text()
    (job.launcher.folder / "config").write_text(config.replace(f"{folder}/id_ed25519", str(other)))
    assert "Permission denied (publickey)" in log_in("-F", str(job.launcher.folder / "config")).stderr
    known = (job.launcher.folder / "key.pub").read_text()
    (job.launcher.folder / "known").write_text(f"* {known}")
    (job.launcher.folder / "config").write_text(
        config.replace(f"{folder}/known_hosts", str(job.launcher.folder / "known"))
    )
    refused = log_in("-F", str(job.launcher.folder / "config"), *careless)
    assert "Host key verification failed" in refused.stderr
    assert refused.stdout == ""
    (job.launcher.folder / "end").touch()


def _environment(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_text().split("\0")
    except OSError:
        return []

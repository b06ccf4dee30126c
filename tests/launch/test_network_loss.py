"""Two nodes on networks of their own. The wire between them is cut: the job goes on without the one, and with it again
when the wire is whole, at the iteration it was at and with every sample applied once.
"""

import os
import random
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from runtime.agent.ports import free_port
from tests.launch import sampled
from tests.launch.launchers import Launcher, until
from tests.launch.nodes import Nodes

pytest.importorskip("torch")

_REACHES = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2)"


@dataclass
class Network:
    """Network namespaces with one virtual wire; as root, or as a user who may make user namespaces."""

    root: bool = field(default_factory=lambda: os.geteuid() == 0)
    _holders: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def make(self) -> None:
        """Two namespaces, and the wire. Raises OSError, CalledProcessError where this cannot be done."""
        self._hold(["unshare", "-n"] if self.root else ["unshare", "-Urn"])
        first = self._holders[0].pid
        self._hold(
            ["unshare", "-n"] if self.root else [*_nsenter(first, "-U", "--preserve-credentials"), "unshare", "-n"]
        )
        self.run(
            0, "ip", "link", "add", "ever0", "type", "veth", "peer", "name", "ever1", "netns", str(self._holders[1].pid)
        )
        for number in (0, 1):
            self.run(number, "ip", "link", "set", "lo", "up")
            self.run(number, "ip", "addr", "add", f"{self.address(number)}/24", "dev", f"ever{number}")
            self.run(number, "ip", "link", "set", f"ever{number}", "up")

    def address(self, number: int) -> str:
        """Of the node on that side."""
        return f"10.213.77.{number + 1}"

    def enter(self, number: int) -> Sequence[str]:
        """In front of a command that shall run there."""
        more = () if self.root else ("-U", "--preserve-credentials")
        return _nsenter(self._holders[number].pid, "-n", *more)

    def run(self, number: int, *command: str) -> None:
        """Run a command there; it must succeed."""
        subprocess.run([*self.enter(number), *command], check=True, capture_output=True)

    def wire(self, state: str) -> None:
        """Cut it ("down") or mend it ("up")."""
        self.run(0, "ip", "link", "set", "ever0", state)

    def reaches(self, port: int) -> bool:
        """Does the second node reach that port of the first?"""
        command = [*self.enter(1), "python3", "-c", _REACHES, self.address(0), str(port)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def close(self) -> None:
        """The namespaces go with those that hold them."""
        for holder in self._holders:
            holder.kill()
            holder.wait()

    def _hold(self, prefix: Sequence[str]) -> None:
        holder = subprocess.Popen([*prefix, "sleep", "infinity"], stderr=subprocess.DEVNULL)
        self._holders.append(holder)
        own = os.readlink("/proc/self/ns/net")
        others = {"", own, *(_net(known.pid) for known in self._holders[:-1])}
        until(lambda: _net(holder.pid) not in others or holder.poll() is not None, lambda: "a network namespace", 20)
        if holder.poll() is not None:
            raise OSError("no network namespace can be made here")


def _net(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") if "sleep" in Path(f"/proc/{pid}/comm").read_text() else ""
    except OSError:
        return ""


def _nsenter(pid: int, *what: str) -> list[str]:
    return ["nsenter", "-t", str(pid), *what]


@pytest.fixture
def network() -> Iterator[Network]:
    """Two networks, or the test is skipped."""
    made = Network()
    try:
        made.make()
    except (OSError, subprocess.CalledProcessError) as error:
        made.close()
        pytest.skip(f"no network namespaces here: {error}")
    yield made
    made.close()


def test_a_node_whose_network_is_lost_is_done_without_and_comes_back(launcher: Launcher, network: Network) -> None:
    folder = launcher.folder
    dataset = sampled.make_dataset(folder)
    (folder / "train.py").write_text(sampled.script())
    nodes = Nodes(launcher, free_port(random.Random()), network.address(0), (dataset,))

    def trains(world: int, after: int) -> int:
        """Wait for a round later than `after`; its number."""
        until(lambda: sampled.trained(folder, world, after), nodes.told)
        return sampled.trained(folder, world, after)

    for number, name in enumerate("ab"):
        more = {"EVERSTEP_JOB_TOKEN": "of both", "GLOO_SOCKET_IFNAME": f"ever{number}", "OMP_NUM_THREADS": "1"}
        nodes.start(name, nodes="1:2", within=network.enter(number), **more)
    first = trains(2, 0)
    begun = sampled.worlds(folder)  # On a busy machine the first one did not wait for the second.
    assert network.reaches(nodes.port)

    network.wire("down")
    assert not network.reaches(nodes.port), "the fault fired"
    alone = trains(1, first)
    until(lambda: "does not answer" in launcher.text("b", "err"), nodes.told)

    network.wire("up")
    trains(2, alone)
    assert [ended.code for ended in nodes.finish("a", "b")] == [0, 0], nodes.told()
    nodes.gone()
    sampled.assert_applied_once(folder, dataset, [*begun, 1, 2])

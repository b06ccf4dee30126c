"""Machines with networks of their own on this one, and the wires between them."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.launch.launchers import until

INTERFACE = "eth0"
"""Of each machine, as in a pod."""
_REACHES = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2)"


@dataclass
class Network:
    """A network namespace a machine, all wired to one hub; as root, or as a user who may make user namespaces."""

    machines: int = 2
    root: bool = field(default_factory=lambda: os.geteuid() == 0)
    _holders: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """Of the machines; the hub comes last."""

    def make(self) -> None:
        """The namespaces, and the wires. Raises OSError, CalledProcessError where this cannot be done."""
        self._hold(["unshare", "-n"] if self.root else ["unshare", "-Urn"])
        first = self._holders[0].pid
        for _ in range(self.machines):
            self._hold(
                ["unshare", "-n"] if self.root else [*_nsenter(first, "-U", "--preserve-credentials"), "unshare", "-n"]
            )
        self.run(self.machines, "ip", "link", "add", "hub", "up", "type", "bridge")
        for number in range(self.machines):
            peer = ("peer", "name", INTERFACE, "netns", str(self._holders[number].pid))
            self.run(self.machines, "ip", "link", "add", f"ever{number}", "type", "veth", *peer)
            self.run(self.machines, "ip", "link", "set", f"ever{number}", "master", "hub", "up")
            self.run(number, "ip", "link", "set", "lo", "up")
            self.run(number, "ip", "addr", "add", f"{self.address(number)}/24", "dev", INTERFACE)
            self.run(number, "ip", "link", "set", INTERFACE, "up")

    def address(self, number: int) -> str:
        """Of that machine."""
        return f"10.213.77.{number + 1}"

    def enter(self, number: int) -> Sequence[str]:
        """In front of a command that shall run there."""
        more = () if self.root else ("-U", "--preserve-credentials")
        return _nsenter(self._holders[number].pid, "-n", *more)

    def run(self, number: int, *command: str) -> None:
        """Run a command there; it must succeed."""
        subprocess.run([*self.enter(number), *command], check=True, capture_output=True)

    def wire(self, state: str, number: int = 0) -> None:
        """Cut that machine's wire ("down") or mend it ("up")."""
        self.run(number, "ip", "link", "set", INTERFACE, state)

    def reaches(self, port: int, from_number: int = 1, number: int = 0) -> bool:
        """Does the one machine reach that port of the other?"""
        command = [*self.enter(from_number), "python3", "-c", _REACHES, self.address(number), str(port)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def processes(self, number: int) -> list[int]:
        """What runs there."""
        holder = self._holders[number].pid
        place = _net(holder)
        there = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        return [pid for pid in there if pid != holder and _net(pid) == place]

    def close(self) -> None:
        """The namespaces go with those that hold them."""
        for holder in self._holders:
            holder.kill()
            holder.wait()

    def _hold(self, prefix: Sequence[str]) -> None:
        holder = subprocess.Popen([*prefix, "sleep", "infinity"], stderr=subprocess.DEVNULL)
        self._holders.append(holder)
        own = os.readlink("/proc/self/ns/net")
        others = {"", own, *(_net(holder.pid) for holder in self._holders[:-1])}
        until(lambda: _is_ready(holder, others) or holder.poll() is not None, lambda: "a network namespace", 20)
        if holder.poll() is not None:
            raise OSError("no network namespace can be made here")


def _is_ready(holder: subprocess.Popen[bytes], others: set[str]) -> bool:
    try:
        return "sleep" in Path(f"/proc/{holder.pid}/comm").read_text() and _net(holder.pid) not in others
    except OSError:
        return False


def _net(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def _nsenter(pid: int, *what: str) -> list[str]:
    return ["nsenter", "-t", str(pid), *what]

"""Two networks of their own on this machine, with one wire between them."""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.launch.launchers import until

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
        others = {"", own, *(_net(holder.pid) for holder in self._holders[:-1])}
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

"""Several launchers of one job, and a script that trains until it is told to stop."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tests.launch.launchers import EVERSTEP, Launcher, LaunchOutcome, until

SCRIPT = """
import os, time
from tests.launch.collective import Group

folder = os.path.dirname(__file__)
group = Group(folder)
with open(os.path.join(folder, "lines"), "a") as lines:
    rank, world, iteration, stop = group.rank, group.world, 0, False
    while not stop:
        iteration += 1
        stop = group.sum(rank == 0 and os.path.exists(os.path.join(folder, "stop")))
        if rank == 0:
            lines.write(f"{group.round} {world} {iteration} {os.getppid()}\\n")
            lines.flush()
        time.sleep(0.02)
group.close()
"""
"""Trains without torch: what each rank does is not what these tests are about."""
QUICK = "last_call_timeout=2,keep_alive_interval=5,keep_alive_max_attempt=2,read_timeout=300"
"""A lost node is missed after 10 s, and not waited for much longer."""


@dataclass
class Nodes:
    """Launchers of one job on this machine."""

    launcher: Launcher
    port: int
    host: str = "127.0.0.1"
    arguments: Sequence[str] = ()
    """Of the script."""

    def start(self, name: str, *flags: str, nodes: str = "1:2", within: Sequence[str] = (), **more: str) -> int:
        """Start a node, by the command `within` if there is one; its process."""
        common = ("--nnodes", nodes, "--rdzv-backend=c10d", f"--rdzv-endpoint={self.host}:{self.port}")
        usual = (*common, f"--rdzv-conf={QUICK}", "--cooldown=0")
        return self.launcher.start(
            (*within, *EVERSTEP), *usual, *flags, "train.py", *self.arguments, name=name, **more
        ).pid

    def progress(self) -> list[tuple[int, int, int]]:
        """(restart count, world size, iteration) of rank 0, as it went."""
        path = self.launcher.folder / "lines"
        if not path.exists():
            return []
        return [tuple(map(int, line.split()[:3])) for line in path.read_text().splitlines()]  # type: ignore[misc]

    def trains(self, world: int, after: int = -1) -> int:
        """Wait until a round later than `after` trains with so many workers; its restart count."""

        def is_running() -> bool:
            last = self.progress()[-1:]
            return bool(last) and last[0][0] > after and last[0][1] == world and last[0][2] > 5

        until(is_running, lambda: f"a round after {after} with {world} workers; {self.stderr_text()}")
        return self.progress()[-1][0]

    def stderr_text(self) -> str:
        """What all nodes wrote to stderr."""
        return "".join(f"\n[{path.stem}] {path.read_text()}" for path in sorted(self.launcher.folder.glob("*.err")))

    def kinds(self) -> list[str]:
        """The kinds of the job's records, as its journal has them."""
        roots = (self.launcher.tmp, self.launcher.folder)
        files = sorted({path for root in roots for path in root.rglob("journal/[0-9]*") if path.is_file()})
        return [json.loads(line)["kind"] for path in files for line in path.read_text().splitlines()]

    def finish(self, *names: str) -> list[LaunchOutcome]:
        """Let the script end; what each of these nodes ended with."""
        (self.launcher.folder / "stop").touch()
        return [self.wait_for_end(name) for name in names]

    def wait_for_end(self, name: str) -> LaunchOutcome:
        """Wait for the node's (last) launcher of that name."""
        return self.launcher.wait_for_end(self.launcher.named[name], name)

    def masters(self) -> list[int]:
        """Processes of the job's masters."""
        return [pid for pid, command in self.launcher.processes() if "everstep.runtime.launch.master_main" in command]

    def master(self) -> int:
        """The only one. Nodes that begin together may all start one; those that find the endpoint taken end."""
        until(lambda: len(self.masters()) == 1, self.stderr_text)
        (master,) = self.masters()
        return master

    def wait_until_gone(self) -> None:
        """Wait until nothing of the job is left."""
        until(lambda: not self.launcher.processes(), lambda: f"the end of {self.launcher.processes()}")
        assert self.launcher.leftovers() == []

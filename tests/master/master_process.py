"""A master in a process of its own: `master_process.py FOLDER`. Its nodes are files, which outlive it.

With TORN="KIND:N:BYTES" its store dies in the middle of the N-th object that it makes under jobs/j/KIND: BYTES of it
are written, to the temporary file that a directory store writes first. FOLDER/torn tells that it happened.
Agents show it the token in TOKEN.
"""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from everstep.runtime.job.spec import JobSpec, Patience, RoleSpec
from everstep.runtime.journal import snapshots
from everstep.runtime.master import AgentCommand, Control, run
from everstep.runtime.net.tls import Credentials
from everstep.runtime.platform import Node, NodeEnd, NodeRequest
from everstep.runtime.store import DirectoryStore

JOB = "j"
PATIENCE = Patience(join_window_s=300.0, replacement_wait_s=300.0, silence_s=300.0, leave_s=300.0)
"""Nodes are never waited for in vain: all come, and all leave by themselves."""
SPEC = JobSpec(JOB, {"worker": RoleSpec(2, 1)}, PATIENCE, hosts="")


class FilePlatform:
    """Each node is a file in `folder`; who made or deleted which is appended to FOLDER/actions."""

    def __init__(self, folder: Path) -> None:
        self._nodes = folder / "nodes"
        self._nodes.mkdir(exist_ok=True)
        self._actions = folder / "actions"
        self._seen: set[str] = set()

    async def observe(self) -> list[Node]:
        there = [path.name for path in self._nodes.iterdir()]
        self._seen.update(there)
        return [Node(name, name, "worker", "") for name in there]

    async def create(self, request: NodeRequest) -> Node:
        self._tell("create", request.name)
        (self._nodes / request.name).touch()
        self._seen.add(request.name)
        return Node(request.name, request.name, request.role, "")

    async def delete(self, name: str, uid: str) -> None:
        self._tell("delete", name)
        (self._nodes / name).unlink(missing_ok=True)

    async def node_ends(self) -> AsyncIterator[NodeEnd]:
        while True:
            for name in sorted(self._seen):
                if not (self._nodes / name).exists():
                    self._seen.remove(name)
                    yield NodeEnd(name, name, None, "its file was removed")
            await asyncio.sleep(0.02)

    def _tell(self, verb: str, name: str) -> None:
        with self._actions.open("a") as file:
            file.write(f"{os.getpid()} {verb} {name}\n")


class TornStore(DirectoryStore):
    """Dies in the middle of a write."""

    def __init__(self, folder: Path, torn: str) -> None:
        super().__init__(folder / "store")
        self._folder = folder
        kind, count_left, size = torn.split(":")
        self._prefix, self._left, self._bytes = f"jobs/{JOB}/{kind}/", int(count_left), int(size)

    def create(self, key: str, data: bytes) -> bool:
        self._tear(key, data)
        return super().create(key, data)

    def put(self, key: str, source: bytes | memoryview | Path) -> None:
        assert isinstance(source, bytes)
        self._tear(key, source)
        super().put(key, source)

    def _tear(self, key: str, data: bytes) -> None:
        self._left -= key.startswith(self._prefix)
        if self._left or (self._folder / "torn").exists():
            return
        path = self._folder / "store" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / f"~{os.getpid()}-torn").write_bytes(data[: self._bytes])
        (self._folder / "torn").touch()
        os.kill(os.getpid(), signal.SIGKILL)


async def main(folder: Path) -> int:
    """Until the job ends; the exit code. The outcome goes to stdout."""
    torn = os.environ.get("TORN")
    store = TornStore(folder, torn) if torn else DirectoryStore(folder / "store")
    outcome = await run(
        SPEC, store, FilePlatform(folder), Credentials(os.environ["TOKEN"]), AgentCommand(), Control(asyncio.Event())
    )
    print(msgspec.json.encode(outcome).decode(), flush=True)
    return outcome.exit_code


if __name__ == "__main__":
    snapshots.MAX_RECORDS = 3
    snapshots.MAX_RECORDS_PER_NODE = 1
    sys.exit(asyncio.run(main(Path(sys.argv[1]))))

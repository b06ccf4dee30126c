"""How far a job is, from its journal and its telemetry in the store: the same on this machine and on a cluster."""

import asyncio
import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from everstep.runtime.chaos.injector import FiredFault, Kind, NotFiredError
from everstep.runtime.job.nodes import LIVE, NodePhase
from everstep.runtime.job.reasons import Reason
from everstep.runtime.job.records import FaultJudged, NodeLost, Record
from everstep.runtime.job.state import State
from everstep.runtime.journal.journal import JournalError, read_journal, read_state
from everstep.runtime.store import NoSuchKey, Store, StoreError

R = TypeVar("R", bound=Record)
LOOK_S = 0.2
"""Seconds between two looks at the store."""
TOLD_AFTER_S = 2.0
"""A wait that is longer than this is told."""


def _tell_nobody(text: str) -> None:
    pass


@dataclass
class Progress:
    """Reads one job. An unreachable store, or a job that has not begun, looks like an empty one."""

    store: Store
    job: str
    tell: Callable[[str], None] = _tell_nobody
    """Gets one line for each long wait: what for, and how long at most."""
    just_read: State | None = None
    """Answers the first call of `state`: who has read it a moment ago need not read it again."""
    _sizes: dict[str, int] = field(default_factory=dict)
    _newest: int = 0

    def state(self) -> State:
        """The job's state."""
        if given := self.just_read:
            self.just_read = None
            return given
        try:
            return read_state(self.store, self.job)
        except (JournalError, StoreError):
            return State()

    def records(self) -> list[Record]:
        """The whole journal."""
        try:
            return list(read_journal(self.store, self.job))
        except (JournalError, StoreError):
            return []

    def size(self, role: str) -> int:
        """How many nodes of that role the job is to have: those that train, and those on their way."""
        return self.state().nodes.count(role, LIVE)

    def members(self, role: str) -> int:
        """Nodes of that role in the newest round."""
        current = self.state().round
        return len(current.members.get(role, ())) if current else 0

    def training_nodes(self) -> list[str]:
        """The nodes of the running round, by name."""
        return sorted(node.name for node in self.state().nodes.values() if node.phase is NodePhase.RUNNING)

    def iteration(self) -> int:
        """The newest iteration that the workers reported; the store has it 1 s later, later on up to five."""
        for line in self._fresh_lines():
            value = line.get("iteration")
            if "seconds" in line and isinstance(value, int):
                self._newest = max(self._newest, value)
        return self._newest

    def _fresh_lines(self) -> Iterator[dict[str, Any]]:
        """Telemetry of files that have grown since."""
        try:
            for entry in self.store.list(f"jobs/{self.job}/telemetry/"):
                if entry.size != self._sizes.get(entry.key):
                    self._sizes[entry.key] = entry.size
                    yield from _lines(self.store.get(entry.key))
        except (NoSuchKey, StoreError):
            return

    def has_ended(self) -> bool:
        """Is the job over?"""
        return self.state().ended is not None

    async def wait_for_record(self, node: str, since: float, seconds: float, *types: type[R]) -> R:
        """The first record of these types about the node from that time on. Raises NotFiredError."""
        found: list[R] = []

        def find_record() -> bool:
            records = (record for record in self.records() if isinstance(record, types) and record.time >= since - 1)
            found[:] = [record for record in records if getattr(record, "node", "") == node][:1]
            return bool(found)

        await self.wait(find_record, f"the journal mentions {node}", seconds)
        return found[0]

    async def wait(self, ready: Callable[[], object], what: str, seconds: float) -> None:
        """Until `ready` is true. Raises NotFiredError after `seconds`, or when the job has ended before."""
        await self._wait(ready, what, seconds, None)

    async def wait_for_members(self, role: str, nodes: int, seconds: float) -> None:
        """Until the newest round has so many nodes of that role. Raises NotFiredError."""
        await self.wait(lambda: self.members(role) == nodes, f"{nodes} nodes train", seconds)

    async def wait_while_it_goes_on(self, ready: Callable[[], object], what: str, seconds: float) -> None:
        """Until `ready` is true, for as long as the job gets on: its journal grows, or its iterations do.

        Raises NotFiredError when neither has for `seconds`, or when the job has ended before.
        """
        await self._wait(ready, what, seconds, self._signs_of_life)

    async def _wait(
        self, ready: Callable[[], object], what: str, seconds: float, signs: Callable[[], object] | None
    ) -> None:
        """The time counts from the last change of the signs, if there are any."""
        loop, is_told = asyncio.get_running_loop(), False
        began = loop.time()
        seen, deadline = signs and signs(), began + seconds
        while not ready():
            if self.has_ended():
                raise NotFiredError(f"the training ended before {what}")
            if signs and (now := signs()) != seen:
                seen, deadline = now, loop.time() + seconds
            if loop.time() > deadline:
                still = f"yet, and the training has not got on for {seconds:.0f} s"
                raise NotFiredError(f"{what}: not {still if signs else f'within {seconds:.0f} s'}")
            if not is_told and loop.time() > began + TOLD_AFTER_S:
                is_told = True
                self.tell(f"waits until {what}; gives up after {seconds:.0f} s{' without progress' if signs else ''}")
            await asyncio.sleep(LOOK_S)

    def _signs_of_life(self) -> tuple[int, float]:
        return self.iteration(), self.state().time


def role_to_resize(roles: Collection[str]) -> str:
    """The role that gets another size: `worker`, or the job's first one. Raises NotFiredError: there is none."""
    if not roles:
        raise NotFiredError("the job has no nodes yet")
    return "worker" if "worker" in roles else next(iter(roles))


def mention_of(record: Record) -> str:
    """What a record about a node shows, in words."""
    node, reason = getattr(record, "node", ""), getattr(record, "reason", "")
    return f"the journal has {type(record).__name__} of {node}: {reason}"


def oom_fired(node: str, moment: float, record: FaultJudged | NodeLost) -> FiredFault:
    """That the kernel killed for lack of memory, by what the job thinks of it. Raises NotFiredError."""
    if record.reason is not Reason.OOM:
        raise NotFiredError(f"the kernel killed no process for lack of memory: {mention_of(record)}")
    return FiredFault(Kind.OOM, node, moment, mention_of(record))


def _lines(data: bytes) -> Iterator[dict[str, Any]]:
    for text in data.splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # Torn: the rest of it follows.
            continue
        if isinstance(line, dict):
            yield line

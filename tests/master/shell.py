"""The master's shell (brain and endpoints) in virtual time, over a store in memory that gives trouble when told to."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from everstep.runtime.job.events import Opened
from everstep.runtime.job.spec import JobSpec
from everstep.runtime.journal.journal import Fenced, claim
from everstep.runtime.master.endpoints import Endpoints, Reply
from everstep.runtime.master.journaled_brain import JournaledBrain
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.protocol.messages import Finished, Heartbeat, Join, Persisted
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.store import Entry, NoSuchKey, StoreError

TOKEN = "t0ken"
T = TypeVar("T")
M = TypeVar("M", bound=msgspec.Struct)


class Trouble(Enum):
    """What a store may do to a `create` or a `put`."""

    NONE = "none"
    REFUSED = "refused"
    """Nothing is written; it raises."""
    SILENT = "silent"
    """It is written, and raises all the same (the answer was lost)."""
    AMBIGUOUS = "ambiguous"
    """It is written, and says that somebody has (the store's client tried twice and met its own success)."""
    SLOW = "slow"
    """It takes long."""


BEGAN_S = 1000.0
"""Small, so that asyncio's clock resolution of 1 ns is not lost in rounding."""
LIMIT_S = 1e5
SLOW_S = 30.0
QUICK_S = 0.004


class TroubledStore:
    """Objects in a dict. `troubles` is asked at each write for what it shall suffer."""

    uri = "memory"

    def __init__(self, troubles: Callable[[str], Trouble] = lambda key: Trouble.NONE) -> None:
        self.objects: dict[str, bytes] = {}
        self.troubles = troubles
        self.suffered: list[Trouble] = []
        self.delay_s = 0.0
        """What the last call took."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.delay_s = QUICK_S
        if key not in self.objects:
            raise NoSuchKey(key)
        return self.objects[key][start : None if length is None else start + length]

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        buffer[:] = self.get(key, start, len(buffer))

    def put(self, key: str, source: bytes | memoryview | Path) -> None:
        assert isinstance(source, bytes)
        if self._trouble(key) is not Trouble.REFUSED:
            self.objects[key] = source

    def create(self, key: str, data: bytes) -> bool:
        trouble = self._trouble(key)
        if trouble is Trouble.REFUSED:
            raise StoreError("503 slow down")
        created = self.objects.setdefault(key, data) is data
        if trouble is Trouble.SILENT:
            raise StoreError("the connection was reset")
        return created and trouble is not Trouble.AMBIGUOUS

    def list(self, prefix: str) -> Iterator[Entry]:
        self.delay_s = QUICK_S
        return iter([Entry(key, len(self.objects[key]), 0.0) for key in sorted(self.objects) if key.startswith(prefix)])

    def delete(self, key: str) -> None:
        self.objects.pop(key, None)

    def sweep(self, prefix: str, dry_run: bool = False) -> Iterator[Entry]:
        return iter(())

    def _trouble(self, key: str) -> Trouble:
        trouble = self.troubles(key)
        self.delay_s = SLOW_S if trouble is Trouble.SLOW else QUICK_S
        if trouble is not Trouble.NONE:
            self.suffered.append(trouble)
        return trouble


class _Jump(selectors.SelectSelector):
    """Nothing is waited for: the time that a wait would have taken passes at once."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("everything waits, and nothing will ever happen")
        self.passed += timeout or 0.0
        if self.passed > LIMIT_S:
            raise TimeoutError(f"not over after {LIMIT_S:.0f} s of virtual time")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes as fast as it can. What runs off the loop runs at once, and takes `delay()`."""

    def __init__(self, delay: Callable[[], float]) -> None:
        self._jump = _Jump()
        self._delay = delay
        super().__init__(self._jump)

    def time(self) -> float:
        return BEGAN_S + self._jump.passed

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self.create_future()
        result, error = None, None
        try:
            result = func(*args)
        except (OSError, RuntimeError, LookupError) as raised:
            error = raised

        def deliver() -> None:
            if not future.done():
                future.set_exception(error) if error else future.set_result(result)  # type: ignore[arg-type]

        self.call_later(self._delay(), deliver)
        return future


def in_virtual_time(store: TroubledStore, story: Callable[[], Awaitable[T]]) -> T:
    """The story's result; a story that waits for ever raises."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(lambda: store.delay_s)) as runner:
        return runner.run(_run_story(story))


async def passes(seconds: float) -> None:
    """Virtual time goes by."""
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, over.set)
    await over.wait()


async def _run_story(story: Callable[[], Awaitable[T]]) -> T:
    return await story()


class Shell:
    """One master without platform and sockets. `open` claims the job; then it answers."""

    def __init__(self, spec: JobSpec, store: TroubledStore) -> None:
        self.spec, self.store = spec, store

    async def open(self) -> None:
        """Claim until the store lets us; then live until `close`, or until fenced."""
        now = asyncio.get_running_loop().time
        while True:
            try:
                claimed, state = await asyncio.to_thread(claim, self.store, self.spec.job, "a:1", now())
                break
            except (StoreError, Fenced):
                await passes(1)
        self.brain = brain = JournaledBrain(self.spec, self.store, claimed, state, now)
        self.endpoints = Endpoints(brain, Credentials(TOKEN), lambda beat: 0)
        brain.feed(Opened())
        self.tasks = [asyncio.create_task(part()) for part in brain.background_parts]
        await brain.wait_until_durable()

    async def wait_for_failure(self) -> Exception:
        """Until one of its parts gives up; what that raised."""
        finished_tasks, _ = await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
        await self.close()
        error = finished_tasks.pop().exception()
        assert isinstance(error, Exception)
        return error

    async def close(self) -> None:
        """kill -9: whatever it was doing, it does no more."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        """Any request, with the token unless `headers` have another."""

        async def read() -> bytes:
            return body

        return await self.endpoints.answer(method, path, {"Authorization": f"Bearer {TOKEN}", **headers}, read)

    async def ask(self, verb: str, message: msgspec.Struct | bytes, **headers: str) -> Reply:
        """POST."""
        body = message if isinstance(message, bytes) else msgspec.json.encode(message)
        return await self.request("POST", f"/v1/{verb}", body, **headers)

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.request("GET", f"/v1/{path}", b"", **headers)

    async def join(self, node: str, after: int = 0, holdings: tuple[Holding, ...] = (), life: int = 0) -> Seat:
        """Until there is a seat."""
        role, number = node.partition("-")[0], after + 1
        message = Join(node, role, "h", 1, "127.0.0.1:7", 29500, holdings, after, life=life, number=number)
        while (reply := await self.ask("join", message)).status == 204:
            message = msgspec.structs.replace(message, number=message.number + 1)
        assert reply.status == 200, reply
        return msgspec.json.decode(reply.body, type=Seat)

    async def beat(self, node: str, round_: int, seen_number: int = 0) -> Reply:
        return await self.ask("heartbeat", Heartbeat(node, round_, seen=seen_number))

    async def finish(self, node: str, round_: int) -> Reply:
        return await self.ask("finished", Finished(node, round_))

    async def persist(self, node: str, round_: int, iteration: int, shards: int = 1) -> Reply:
        key = f"jobs/{self.spec.job}/checkpoints/{round_:06d}-{iteration:09d}/rank-00000.safetensors"
        holding = Holding(round_, iteration, shards=shards, size=1, key=key, digest="d" * 32)
        return await self.ask("persisted", Persisted(node, holding))

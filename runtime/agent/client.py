"""The agent's HTTP client to its master: repeats each POST until a master of this job answers.

A master may die, and another may take over at another address, which the journal names. An address that cannot be
reached, or that answers for another job or with an older epoch, is not this job's master. A machine without power
refuses no connection: while a request stays without an answer, the journal is read, too.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from everstep.runtime.net.tls import mismatch_reason
from everstep.runtime.protocol.messages import (
    Ack,
    Directive,
    Disconnected,
    Dumped,
    Evidence,
    Finished,
    Heartbeat,
    Join,
    Leaving,
    Persisted,
    SelfTest,
    ShardLease,
    ShardRequest,
    Unrestored,
    WorkerExit,
)
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.training import Training
from everstep.runtime.system.backoff import backoff

JOIN_TIMEOUT_S = 40.0
HEARTBEAT_TIMEOUT_S = 15.0
REPORT_TIMEOUT_S = 15.0
FIRST_PAUSE_S = 0.07
LONGEST_PAUSE_S = 2.0
LOOKS_PER_S = 2500
"""Journal reads per second across all agents of a job while no master answers. Each agent begins at a random moment of
the period that follows from it, and so finds the next master within one period."""
_LATE = 0.6
"""A request without an answer for this part of its time is late. No long poll takes more than half of it."""
_LOOK_S = 1.0
"""Between two looks for another master while a request is late, or is sent again."""
_ASK_S = 5.0
_LAST_TRIES = 15
_LAST_PAUSE_S = 0.2

Reply = TypeVar("Reply", Seat, Directive, Ack, ShardLease)
_encode = msgspec.json.Encoder().encode


class JobEnd(msgspec.Struct, frozen=True):
    """How the job ended, as the master's status reports it."""

    result: str
    reason: str
    error: str
    exit_code: int


class _Status(msgspec.Struct, frozen=True):
    ended: JobEnd | None


class NoPlace(Exception):  # noqa: N818 (a name that reads well in `except`)
    """409: this node is not, or no longer, part of the job."""


class NotAllowed(Exception):  # noqa: N818
    """The first contact with the master failed: 401 (wrong token), an untrusted certificate, or only one of the two
    uses TLS."""


class NotUnderstood(Exception):  # noqa: N818
    """400: the master rejects the message; both must run the same version of Everstep."""


class MasterClient:
    """Posts to the job's current master. Every call returns only with an answer: cancel it to give up."""

    def __init__(
        self,
        url: str,
        find: Callable[[], tuple[int, str] | None],
        chance: random.Random,
        say: Callable[[str], None],
    ) -> None:
        """`find` (blocking) returns the newest (epoch, host:port) that claimed the job, or None."""
        self.session: aiohttp.ClientSession
        """Must be set before the first request."""
        self.threads: Executor | None = None
        """Runs `find`; None: the loop's default executor, whose threads the end of the loop waits for."""
        self._scheme, self._address, *_ = urlsplit(url)
        self._find = find
        self._chance = chance
        self._say = say
        self._is_lost = self._is_unreadable = False
        self.epoch = 0
        """The highest epoch that answered."""
        self.answered_at = time.monotonic()
        """When a master last answered."""
        self.met = False
        """Whether a master ever answered."""
        self._attempts: dict[asyncio.Task[tuple[int, bytes]], str] = {}
        """Requests under way, and the address that each was sent to."""
        self.crowd = 1
        """Nodes that lose the master at the same moment."""
        self._next_lookup = 0.0
        """On the monotonic clock; inf: the master answers."""

    @property
    def netloc(self) -> str:
        """HOST:PORT of the master, as far as known."""
        return self._address

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the master, as far as known."""
        host, _, port = self._address.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def silent_s(self) -> float:
        """Seconds since a master last answered; 0 before the first answer."""
        return time.monotonic() - self.answered_at if self.met else 0.0

    async def look_for_master(self) -> bool:
        """Whether the journal names another master than the one known so far; requests under way turn to it."""
        self._next_lookup = 0.0
        return await self._switch_address(self._address)

    async def join(self, message: Join) -> Seat | None:
        """Ask for a seat; None if the long poll ended without one."""
        return await self._post("join", message, Seat, JOIN_TIMEOUT_S)

    async def send_heartbeat(self, message: Callable[[], Heartbeat]) -> Directive | None:
        """Send a sign of life; returns what to do, or None if there is nothing to do. Each attempt calls `message`
        again: it says what is so now."""
        return await self._post("heartbeat", message, Directive, HEARTBEAT_TIMEOUT_S)

    async def report_fault(self, message: Callable[[], WorkerExit]) -> None:
        """Report a worker's death; returns once the master has journaled it. Each attempt calls `message` again, as it
        says how long ago the death was."""
        await self._post("fault", message, Ack, REPORT_TIMEOUT_S)

    async def report_disconnected(self, message: Disconnected) -> None:
        """Returns once the master has acknowledged it."""
        await self._post("disconnected", message, Ack, REPORT_TIMEOUT_S)

    async def report_finished(self, message: Finished) -> None:
        """Returns once the master has acknowledged it."""
        await self._post("finished", message, Ack, REPORT_TIMEOUT_S)

    async def report_leaving(self, message: Leaving) -> None:
        """Returns once the master has acknowledged it."""
        await self._post("leaving", message, Ack, REPORT_TIMEOUT_S)

    async def report_unrestored(self, message: Unrestored) -> None:
        """Returns once the master has acknowledged it."""
        await self._post("unrestored", message, Ack, REPORT_TIMEOUT_S)

    async def report_dumped(self, message: Dumped) -> None:
        """Returns once the master has acknowledged it."""
        await self._post("dumped", message, Ack, REPORT_TIMEOUT_S)

    async def report_test(self, message: SelfTest) -> None:
        """Returns once the master has acknowledged it."""
        await self._post("tested", message, Ack, REPORT_TIMEOUT_S)

    async def job_end(self, node: str, seconds: float = REPORT_TIMEOUT_S) -> JobEnd | None:
        """How the job ended; None if it has not, or if no master answers within `seconds`."""
        url = f"{self._scheme}://{self._address}/v1/status"
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for _ in range(_LAST_TRIES):
                    try:
                        async with self.session.get(url, params={"node": node}) as reply:
                            return msgspec.json.decode(await reply.read(), type=_Status).ended
                    except (aiohttp.ClientError, OSError, msgspec.DecodeError):
                        await asyncio.sleep(_LAST_PAUSE_S)
        return None

    async def training(self, role: str) -> Training:
        """What runs without this node; no round if the master does not answer, which the next join will repeat."""
        url, timeout = f"{self._scheme}://{self._address}/v1/training/{role}", aiohttp.ClientTimeout(total=_ASK_S)
        with suppress(aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError):
            async with self.session.get(url, timeout=timeout) as reply:
                if reply.status == 200:
                    return msgspec.json.decode(await reply.read(), type=Training)
        return Training(0)

    async def ask_shard(self, message: ShardRequest) -> ShardLease | None:
        """Ask for a data shard; None if the long poll ended without one."""
        return await self._post("shard", message, ShardLease, REPORT_TIMEOUT_S)

    async def report_persisted(self, message: Persisted) -> str | None:
        """Report a persisted shard; returns the key of the checkpoint's manifest, empty until it is committed; None: it
        never will be, as newer ones are there."""
        ack = await self._post("persisted", message, Ack, REPORT_TIMEOUT_S)
        if ack is None:
            return ""
        return None if ack.is_overtaken else ack.committed

    async def report_evidence(self, message: Evidence) -> bool:
        """Report the digests of a state; returns whether it is certified by now."""
        ack = await self._post("evidence", message, Ack, REPORT_TIMEOUT_S)
        return ack is not None and ack.is_certified

    async def _post(
        self, path: str, message: msgspec.Struct | Callable[[], msgspec.Struct], kind: type[Reply], timeout_s: float
    ) -> Reply | None:
        pauses, has_failed = backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, self._chance.uniform), False
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=5.0)
        while True:
            body = _encode(message() if callable(message) else message)
            address = self._address
            url, foreign = f"{self._scheme}://{address}/v1/{path}", ""
            try:
                late_s = _LOOK_S if has_failed else _LATE * timeout_s
                status, text = await self._answer_in_time(url, address, body, timeout, late_s)
                parsed_reply, wrong = self._parse_reply(status, text, kind)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                text, foreign = b"", "" if self.met else mismatch_reason(error)
                parsed_reply, wrong = None, f"{type(error).__name__} {error}".strip()
            if not wrong:
                self._note_answer(address)
                return parsed_reply
            if await self._switch_address(address):
                continue
            if foreign:
                raise NotAllowed(f"the master at {address} {foreign}")
            if status_of(wrong) == 409:
                self.answered_at = time.monotonic()  # The master lives, although it does not know this node.
                raise NoPlace(_error_text(text))
            if has_failed:  # A single failure may be a closed connection, or the job's end.
                self._say_lost_once(address, path, wrong)
            has_failed = True
            await asyncio.sleep(self._pause_s(next(pauses)))

    async def _answer_in_time(
        self, url: str, address: str, body: bytes, timeout: aiohttp.ClientTimeout, late_s: float
    ) -> tuple[int, bytes]:
        """The answer of the master at that address. Raises TimeoutError as soon as there is a master at another."""
        attempt = asyncio.create_task(self._answer(url, body, timeout))
        self._attempts[attempt] = address
        try:
            await asyncio.wait({attempt}, timeout=late_s)
            while not attempt.done():
                await self._switch_address(address)
                await asyncio.wait({attempt}, timeout=_LOOK_S)
            if attempt.cancelled():
                raise TimeoutError(f"the master is not at {address} any more")
            return attempt.result()
        finally:
            del self._attempts[attempt]
            attempt.cancel()

    async def _answer(self, url: str, body: bytes, timeout: aiohttp.ClientTimeout) -> tuple[int, bytes]:
        async with self.session.post(url, data=body, timeout=timeout) as reply:
            return reply.status, await reply.read()

    def _parse_reply(self, status: int, text: bytes, kind: type[Reply]) -> tuple[Reply | None, str]:
        """(The reply, ""), or (None, why this was not an answer of our master)."""
        if status == 204:
            return None, ""
        if status == 401 and not self.met:
            raise NotAllowed(f"the master at {self._address} rejects this node's token")
        if status == 400:
            raise NotUnderstood(_error_text(text))
        if status != 200:
            return None, f"{status} {text[:500].decode(errors='replace')}"
        try:
            reply = msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            return None, f"an answer that is not a {kind.__name__}: {error}"
        if reply.epoch < self.epoch:
            return None, f"an answer from epoch {reply.epoch}, older than {self.epoch}"
        self.epoch = reply.epoch
        return reply, ""

    @property
    def _between_looks_s(self) -> float:
        return self.crowd / LOOKS_PER_S

    def _pause_s(self, pause_s: float) -> float:
        """The pause, or less: where looks are rarer than attempts, no pause makes one late."""
        if self._between_looks_s < LONGEST_PAUSE_S:
            return pause_s
        return min(pause_s, max(0.0, self._next_lookup - time.monotonic()))

    async def _switch_address(self, address: str) -> bool:
        """Whether there is another address to try; looks for a newer master in the journal, at a limited rate."""
        if self._address != address:
            return True
        now, between_s = time.monotonic(), self._between_looks_s
        if math.isinf(self._next_lookup):
            self._next_lookup = now + between_s * self._chance.random()
        wait_s = self._next_lookup - now
        if wait_s > FIRST_PAUSE_S:
            return False
        self._next_lookup = now + between_s
        await asyncio.sleep(max(0.0, wait_s))
        try:
            newest = await asyncio.get_running_loop().run_in_executor(self.threads, self._find)
        except (OSError, RuntimeError, KeyError) as error:
            self._say_unreadable_once(error)
            return False
        self._is_unreadable = False
        if newest is None or newest[0] < self.epoch or newest[1] == address:
            return False
        if self._address == newest[1]:  # Another request has found it meanwhile.
            return True
        self._address = newest[1]
        for attempt, sent_to in self._attempts.items():
            if sent_to == address:
                attempt.cancel()
        self._say(f"the master of epoch {newest[0]} is at {newest[1]}")
        return True

    def _note_answer(self, address: str) -> None:
        self.answered_at, self.met = time.monotonic(), True
        self._next_lookup = math.inf
        if self._is_lost:
            self._is_lost = False
            self._say(f"the master at {address} answers")

    def _say_lost_once(self, address: str, path: str, wrong: str) -> None:
        if not self._is_lost and self.met:
            self._is_lost = True
            self._say(f"the master at {address} does not answer {path} ({wrong}); the workers continue")

    def _say_unreadable_once(self, error: Exception) -> None:
        if self._is_lost and not self._is_unreadable:
            self._is_unreadable = True
            why = " ".join(str(error).split())
            self._say(f"the store, which names the next master, cannot be read either; waits for both: {why}")


def _error_text(text: bytes) -> str:
    """The error text in a master's answer."""
    try:
        return str(msgspec.json.decode(text)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return text[:500].decode(errors="replace")


def status_of(wrong: str) -> int:
    """The HTTP status at the start of a failure's text; 0 if there was no answer."""
    first = wrong.partition(" ")[0]
    return int(first) if first.isdigit() else 0

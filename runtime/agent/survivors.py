"""Workers that outlive a round: those whose script is entered again (`everstep.main`) instead of started again.

When a round is over, they are told at once. Each leaves its iteration and says so, or is killed. In the next round a
worker that left gets its seat in the same process.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from everstep.runtime.protocol.messages import FINISH_S
from everstep.runtime.protocol.survivor_link import (
    LARGEST_PACKET,
    Failed,
    FromAgent,
    LastIteration,
    Left,
    LostConnection,
    NextRound,
    Rehearsed,
    RoundEnded,
    Seated,
    Survive,
    decode_from_worker,
    encode,
)

_BACKLOG = 128
_LATE_S = 1.0
"""How much longer than two iterations an iteration may last that is waited for."""


@dataclass
class _Survivor:
    channel: socket.socket
    pid: int = 0
    """0 until it has said who it is."""
    round: int = 0
    """The newest round that it has a seat in."""
    failed_with: int = 0
    """The exit code with which its process ends, by an error of its own; 0: it has none."""
    free_for_seat: asyncio.Event = field(default_factory=asyncio.Event)
    """It has left that round, or is a spare that has rehearsed. Set when it is gone, too: nobody waits for it then."""


class Survivors:
    """The connections of one node's survivors, on an event loop.

    Invariant: a worker is seated again only if it has said that it left the round before.
    """

    def __init__(
        self,
        on_seated: Callable[[int], None],
        on_rehearsed: Callable[[int, Rehearsed], None],
        on_disconnected: Callable[[int, LostConnection], None],
    ) -> None:
        """`on_seated` gets the pid of a worker that has taken its seat, `on_rehearsed` that of a spare,
        `on_disconnected` that of a worker that has lost its connection to another."""
        self._loop = asyncio.get_running_loop()
        self._on_seated = on_seated
        self._on_rehearsed = on_rehearsed
        self._on_disconnected = on_disconnected
        self._listener: socket.socket | None = None
        self._channels: dict[int, _Survivor] = {}
        """By file descriptor."""

    def open(self, path: Path) -> None:
        """Listen at the path."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(_BACKLOG)
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        """Stop listening, and disconnect all."""
        for survivor in list(self._channels.values()):
            self._drop(survivor)
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def any_in(self, round_: int) -> bool:
        """Has a worker of this round asked to survive?"""
        return any(survivor.pid and survivor.round == round_ for survivor in self._channels.values())

    def failed_with(self, pid: int) -> int:
        """The exit code with which this worker has said that it ends, by an error of its own; 0: it has not."""
        return max((survivor.failed_with for survivor in self._channels.values() if survivor.pid == pid), default=0)

    def is_connected(self, pid: int) -> bool:
        """Whether this process may still leave its round: it has neither ended its script's function nor died."""
        return any(survivor.pid == pid for survivor in self._channels.values())

    async def end_iteration(self, round_: int, pace_s: float) -> None:
        """Tell the survivors of this round to leave it after their iteration, and wait until they have, or should have.

        `pace_s`: what an iteration takes; 0: not known. Too long a one is not waited for."""
        seconds = 2 * pace_s + _LATE_S
        if pace_s and seconds <= FINISH_S:
            await self.wait_until_left(self._tell(round_, LastIteration(round_)), seconds)

    def end_round(self, round_: int) -> frozenset[int]:
        """Tell the survivors of this round that it is over, unless they have left it. Returns their pids: they may
        live for LEAVE_S."""
        return self._tell(round_, RoundEnded(round_))

    def _tell(self, round_: int, message: LastIteration | RoundEnded) -> frozenset[int]:
        members = [survivor for survivor in self._channels.values() if survivor.pid and survivor.round == round_]
        return frozenset(
            survivor.pid for survivor in members if survivor.free_for_seat.is_set() or self._send(survivor, message)
        )

    async def wait_until_left(self, pids: frozenset[int], seconds: float) -> frozenset[int]:
        """Wait for these to leave the round; returns those that have, and are connected."""
        present = [survivor for survivor in self._channels.values() if survivor.pid in pids]
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for survivor in present:
                    await survivor.free_for_seat.wait()
        return frozenset(
            survivor.pid
            for survivor in self._channels.values()
            if survivor.pid in pids and survivor.free_for_seat.is_set()
        )

    def seat(self, pid: int, seat: NextRound, stdout: int, stderr: int) -> bool:
        """Give a worker that has left its round a seat in another one. Returns whether it could be told."""
        for survivor in self._channels.values():
            if survivor.pid == pid and survivor.free_for_seat.is_set():
                survivor.free_for_seat.clear()
                survivor.round = seat.round
                return self._send(survivor, seat, stdout, stderr)
        return False

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            channel, _ = self._listener.accept()
        except OSError:  # Gone again, or no descriptor is free.
            return
        channel.setblocking(False)
        survivor = self._channels[channel.fileno()] = _Survivor(channel)
        self._loop.add_reader(channel, self._read, survivor)
        self._read(survivor)  # Its first message is there by now, and its round may end at once.

    def _read(self, survivor: _Survivor) -> None:
        try:
            packet = survivor.channel.recv(LARGEST_PACKET)
            message = decode_from_worker(packet) if packet else None
        except BlockingIOError:
            return
        except (OSError, msgspec.DecodeError):
            message = None
        match message:
            case Survive(pid, round_):
                survivor.pid, survivor.round = pid, round_
            case Left(round_) if round_ == survivor.round:
                survivor.free_for_seat.set()
            case Rehearsed() if not survivor.round:
                survivor.free_for_seat.set()
                self._on_rehearsed(survivor.pid, message)
            case LostConnection(round_) if round_ == survivor.round:
                self._on_disconnected(survivor.pid, message)
            case Failed(_, exit_code):
                survivor.failed_with = exit_code
            case Seated():
                self._on_seated(survivor.pid)
            case None:
                self._drop(survivor)

    def _send(self, survivor: _Survivor, message: FromAgent, *files: int) -> bool:
        try:
            socket.send_fds(survivor.channel, [encode(message)], files)
        except OSError:
            self._drop(survivor)
            return False
        return True

    def _drop(self, survivor: _Survivor) -> None:
        if self._channels.pop(survivor.channel.fileno(), None):
            self._loop.remove_reader(survivor.channel)
            survivor.channel.close()
            survivor.free_for_seat.set()

"""A handle on the process that forks measurements (`measurement_server`), for an event loop."""

import asyncio
import itertools
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import msgspec

from everstep.runtime.diagnosis.errors import MeasurementError
from everstep.runtime.diagnosis.evidence import Measurement
from everstep.runtime.diagnosis.measurement_server import Answer as ForksAnswer
from everstep.runtime.diagnosis.measurement_server import Begin, Count, Devices, End, ForkReport, Go, Ready, Request
from everstep.runtime.diagnosis.messages import Stage, StageResult, Together, Work
from everstep.runtime.diagnosis.switchbox import SwitchboxSpec
from everstep.runtime.net.token import TOKEN_VARIABLE

COMMAND = ("-m", "everstep.runtime.diagnosis.measurement_server")
"""Followed by the number of threads."""
_SECRETS = (TOKEN_VARIABLE,)
_CLOSE_S = 5.0
"""How long the process may take to end once its connection has."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ForksAnswer).decode


class MeasurementProcess:
    """Starts and ends measurements of nodes, and receives their results. Runs one measurement a node at a time."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        end: asyncio.Future[int],
        kill: Callable[[], object],
        devices: Mapping[str, str] | None = None,
    ) -> None:
        """A process that is ready. `end` gives its exit code. `devices`: CUDA_VISIBLE_DEVICES of nodes, by name."""
        self._stream, self._writer, self._end = reader, writer, end
        self._devices_of = dict(devices or {})
        self.kill = kill
        """Kill the process; its measurements die with it."""
        self._results: dict[str, asyncio.Queue[StageResult]] = {}
        self._running: dict[str, tuple[int, StageResult]] = {}
        self._keys = itertools.count(1)
        self._devices: asyncio.Queue[int] = asyncio.Queue()
        self.lost = asyncio.create_task(self._read())
        """Done once the process has ended."""

    def hide_devices(self, node: str) -> None:
        """Let this node's measurements leave its CUDA devices alone from now on."""
        self._devices_of[node] = ""

    def start_alone(self, node: str, host: str, address: str, order: Work, box: SwitchboxSpec | None = None) -> None:
        """Let the node work alone. Ends whatever it did before."""
        key = next(self._keys)
        self._running[node] = key, StageResult(node, order.round, Stage.ALONE, Measurement(node, host))
        if not self.lost.done():
            devices = self._devices_of.get(node)
            self._send(Begin(key, node, host, address, order.round, order.opens_store, order.timeout_s, box, devices))
        else:
            self._report_death(node)

    def start_together(self, node: str, order: Together) -> None:
        """Let the waiting node go on with its group."""
        if node in self._running:
            key, result = self._running[node]
            self._running[node] = key, msgspec.structs.replace(result, stage=Stage.TOGETHER, store="")
        self._send(Go(node, order))

    def end(self, node: str) -> None:
        """Kill the node's measurement, if it runs, and discard its results."""
        if self._running.pop(node, None) is not None:
            self._send(End(node))
        queue = self._queue(node)
        while not queue.empty():
            queue.get_nowait()

    async def next_result(self, node: str) -> StageResult:
        """Wait for the next result of this node."""
        return await self._queue(node).get()

    async def count_devices(self) -> int:
        """The number of CUDA devices of this machine. Raises MeasurementError."""
        self._send(Count())
        answer = asyncio.create_task(self._devices.get())
        await asyncio.wait({answer, self.lost}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
            raise MeasurementError("the process that measures was ended")
        return answer.result()

    async def close(self) -> None:
        """End the process with all its forks."""
        self._writer.write_eof()
        await asyncio.wait([self._end], timeout=_CLOSE_S)
        if not self._end.done():
            self.kill()
            await asyncio.wait([self._end])
        with suppress(TimeoutError):  # A fork that cannot be killed may hold the connection.
            await asyncio.wait_for(self.lost, _CLOSE_S)

    def _queue(self, node: str) -> asyncio.Queue[StageResult]:
        return self._results.setdefault(node, asyncio.Queue())

    def _send(self, request: Request) -> None:
        if not self.lost.done():
            self._writer.write(_encode(request) + b"\n")

    async def _read(self) -> None:
        with suppress(ConnectionError):
            while line := await self._stream.readline():
                match _decode(line):
                    case ForkReport(key, result):
                        self._receive(key, result)
                    case Devices(count):
                        self._devices.put_nowait(count)
        for node in list(self._running):
            self._report_death(node)

    def _receive(self, key: int, result: StageResult) -> None:
        if result.node not in self._running or self._running[result.node][0] != key:
            return  # The measurement was ended.
        if result.measurement.died or result.stage is Stage.TOGETHER:
            del self._running[result.node]
        else:
            self._running[result.node] = key, result
        self._queue(result.node).put_nowait(result)

    def _report_death(self, node: str) -> None:
        _, result = self._running.pop(node)
        measurement = replace(result.measurement, died=True, error="the process that measures was ended")
        self._queue(node).put_nowait(msgspec.structs.replace(result, measurement=measurement, store=""))


async def is_ready(reader: asyncio.StreamReader) -> bool:
    """Wait until the process at the other end is ready to measure; False if it ends before."""
    with suppress(ConnectionError):
        line = await reader.readline()
        return bool(line) and isinstance(_decode(line), Ready)
    return False


@asynccontextmanager
async def start_measurement_process(
    environment: Mapping[str, str] = os.environ, threads: int = 1, devices: Mapping[str, str] | None = None
) -> AsyncIterator[MeasurementProcess]:
    """Start a process that is ready to measure, with that many threads; it ends with the block.

    `devices`: CUDA_VISIBLE_DEVICES of nodes that do not see all, by name. Raises MeasurementError if it does not start.
    """
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *COMMAND,
            str(threads),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=theirs.fileno(),
            env={name: value for name, value in environment.items() if name not in _SECRETS},
        )
    try:
        if not await is_ready(reader):
            raise MeasurementError(f"the node check's process ended with exit code {await process.wait()}; see above")

        def kill() -> None:
            with suppress(ProcessLookupError):
                process.kill()

        measuring = MeasurementProcess(reader, writer, asyncio.ensure_future(process.wait()), kill, devices)
        try:
            yield measuring
        finally:
            await measuring.close()
    finally:
        writer.close()
        if process.returncode is None:  # Cancelled before it was ready.
            process.kill()
            await process.wait()

"""A handle on the process that forks measurements (`measurement_server`), for an event loop."""

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import msgspec

from everstep.runtime.diagnosis.errors import MeasurementError
from everstep.runtime.diagnosis.evidence import Measurement
from everstep.runtime.diagnosis.measurement_server import Answer as ForksAnswer
from everstep.runtime.diagnosis.measurement_server import Begin, Count, Devices, End, ForkReport, Go, Ready, Request
from everstep.runtime.diagnosis.messages import Stage, StageResult, Together, Work
from everstep.runtime.diagnosis.switchbox import SwitchboxSpec

_SECRETS = ("EVERSTEP_JOB_TOKEN",)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ForksAnswer).decode


class MeasurementProcess:
    """Starts and ends measurements of nodes, and receives their results. Runs one measurement a node at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._results: dict[str, asyncio.Queue[StageResult]] = {}
        self._running: dict[str, tuple[int, StageResult]] = {}
        self._keys = itertools.count(1)
        self._devices: asyncio.Queue[int] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    def start_alone(self, node: str, host: str, address: str, order: Work, box: SwitchboxSpec | None = None) -> None:
        """Let the node work alone. Ends whatever it did before."""
        key = next(self._keys)
        self._running[node] = key, StageResult(node, order.round, Stage.ALONE, Measurement(node, host))
        if self._process.returncode is None and not self._reader.done():
            self._send(Begin(key, node, host, address, order.round, order.opens_store, box))
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
        """The number of CUDA devices of this machine."""
        self._send(Count())
        return await self._devices.get()

    def kill(self) -> None:
        """Kill the process; its measurements die with it."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End the process with all its forks."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 5)
        except TimeoutError:
            self.kill()
            await self._process.wait()
        await self._reader

    def _queue(self, node: str) -> asyncio.Queue[StageResult]:
        return self._results.setdefault(node, asyncio.Queue())

    def _send(self, request: Request) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ConnectionResetError):  # The process is dead, and the reader reports it.
            self._process.stdin.write(_encode(request) + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
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


@asynccontextmanager
async def start_measurement_process(
    environment: Mapping[str, str] = os.environ, threads: int = 1
) -> AsyncIterator[MeasurementProcess]:
    """Start a process that is ready to measure, with that many threads; it ends with the block. Raises MeasurementError
    if it does not start."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "everstep.runtime.diagnosis.measurement_server",
        str(threads),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={name: value for name, value in environment.items() if name not in _SECRETS},
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line or not isinstance(_decode(line), Ready):
            raise MeasurementError(f"the node check's process ended with exit code {await process.wait()}; see above")
        measuring = MeasurementProcess(process)
        try:
            yield measuring
        finally:
            await measuring.close()
    finally:
        if process.returncode is None:  # Cancelled before it was ready.
            process.kill()
            await process.wait()

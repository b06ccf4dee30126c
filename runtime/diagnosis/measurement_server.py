"""`python -m everstep.runtime.diagnosis.measurement_server THREADS` has torch imported, and forks each measurement.

An agent's fork server runs it with torch already imported; elsewhere it is a process of its own, and imports it once.
Its stdout is a socket, for both directions, of JSON lines: requests; `Ready`, then `ForkReport` or `Devices`. Several
nodes may share a server, each with one measurement at a time. A fork dies with the server (PR_SET_PDEATHSIG), and the
server ends when the connection does. It has one thread only, since a fork would inherit locks that no thread unlocks;
with more threads it says so and ends with exit code 75.

A fork may be unkillable for as long as a device's driver does not return. Nothing here waits for it, and it holds no
connection.
"""

import ctypes
import math
import mmap
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NoReturn

import msgspec

from everstep.runtime.diagnosis.evidence import Measurement
from everstep.runtime.diagnosis.messages import Stage, StageResult, Together
from everstep.runtime.diagnosis.switchbox import SwitchboxSpec
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.platform.devices import shown_by

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
PROCESS_NAME = "measurements"
"""As the kernel knows this process and its forks: their command line may be that of an agent's fork server."""
_REAP_EVERY_S = 0.05
_NOTE_BYTES = 256
_END_S = 1.0
"""How long the server, when it ends, waits for the ends of its forks."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The first line: all imports are done."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Fork: work alone, report, and wait for Go. An earlier fork of this node ends first."""

    key: int
    """Identifies this measurement in its results."""
    node: str
    host: str
    address: str
    round: int
    opens_store: bool
    limit_s: float
    """For the work alone."""
    box: SwitchboxSpec | None = None
    devices: str | None = None
    """CUDA_VISIBLE_DEVICES of the fork; None: as the server has it."""


class Go(msgspec.Struct, frozen=True, tag=True):
    """For the waiting fork of this node."""

    node: str
    order: Together


class End(msgspec.Struct, frozen=True, tag=True):
    """Kill the fork of this node, if there is one. It reports nothing more."""

    node: str


class Count(msgspec.Struct, frozen=True, tag=True):
    """Count the CUDA devices of this machine. Answer: Devices."""


class Devices(msgspec.Struct, frozen=True, tag=True):
    """The number of CUDA devices."""

    count: int


class ForkReport(msgspec.Struct, frozen=True, tag=True):
    """A fork reported a result, or died."""

    key: int
    result: StageResult


Request = Begin | Go | End | Count
Answer = Ready | ForkReport | Devices


@dataclass
class _Fork:
    key: int
    pid: int
    read_fd: int
    write_fd: int
    last_result: StageResult
    note: mmap.mmap
    """Shared with it: what it does now."""
    limit_s: float
    deadline: float
    """Of its work alone; infinite once it has reported that."""
    unread: bytes = b""

    @property
    def during(self) -> str:
        """What it does now, for the end of a sentence; empty if it did not say."""
        what = self.note[:].rstrip(b"\0").decode(errors="replace")
        return f", during {what}" if what else ""


def import_torch() -> None:
    """Import what the forks need, with one thread. Call it before any other import of numpy or torch in this
    process."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch
    import torch.distributed

    torch.set_num_threads(1)


class MeasurementServer:
    """The select loop over the connection and the forks' pipes."""

    def __init__(self, connection: socket.socket, threads: int) -> None:
        """`threads`: of each fork's matrix products."""
        self._threads = threads
        self._connection = connection
        self._text = b""
        self._forks: dict[str, _Fork] = {}
        self._ending: dict[int, _Fork | None] = {}
        """Forks that are killed (None) or end by themselves, by process, until the kernel says how they ended."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(connection, selectors.EVENT_READ)
        self._decode = msgspec.json.Decoder(Request).decode

    def serve(self) -> None:
        """Say that it is ready, and serve until the connection ends."""
        self._send(Ready())
        try:
            while True:
                for key, _ in self._selector.select(self._pause_s()):
                    if key.fileobj is self._connection:
                        if not self._handle_requests():
                            return
                    elif isinstance(key.data, _Fork) and self._forks.get(key.data.last_result.node) is key.data:
                        self._forward_results(key.data)
                self._end_late()
                self._reap()
        finally:
            for node in list(self._forks):
                self._kill(node)
            deadline = time.monotonic() + _END_S
            while self._ending and time.monotonic() < deadline:
                self._reap()
                time.sleep(_REAP_EVERY_S)

    def _handle_requests(self) -> bool:
        data = self._connection.recv(1 << 16)
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            request = self._decode(line)
            match request:
                case Begin():
                    self._kill(request.node)
                    self._fork(request)
                case Go() if request.node in self._forks:
                    self._start_together(self._forks[request.node], request.order)
                case End():
                    self._kill(request.node)
                case Count():
                    self._send(Devices(_count_devices()))
        return bool(data)

    def _fork(self, begin: Begin) -> None:
        (child_hears, says), (hears, child_says) = os.pipe(), os.pipe()
        note = mmap.mmap(-1, _NOTE_BYTES)
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            try:
                os.close(says)
                self._connection.close()
                _use_threads(self._threads)
                _run_fork(begin, child_hears, child_says, parent, note)
            except Exception:  # noqa: BLE001 - the outermost edge of the fork
                traceback.print_exc()
            finally:
                os._exit(70)
        os.close(child_hears)
        os.close(child_says)
        empty = StageResult(begin.node, begin.round, Stage.ALONE, Measurement(begin.node, begin.host))
        deadline = time.monotonic() + begin.limit_s
        fork = _Fork(begin.key, pid, hears, says, empty, note, begin.limit_s, deadline)
        self._forks[begin.node] = fork
        self._selector.register(hears, selectors.EVENT_READ, fork)

    def _start_together(self, fork: _Fork, order: Together) -> None:
        fork.last_result = msgspec.structs.replace(fork.last_result, stage=Stage.TOGETHER, store="")
        with suppress(BrokenPipeError):  # The fork is dead; the end of its pipe reports that.
            os.write(fork.write_fd, msgspec.json.encode(order) + b"\n")

    def _forward_results(self, fork: _Fork) -> None:
        data = os.read(fork.read_fd, 1 << 16)
        *lines, fork.unread = (fork.unread + data).split(b"\n")
        for line in lines:
            fork.last_result, fork.deadline = msgspec.json.decode(line, type=StageResult), math.inf
            self._send(ForkReport(fork.key, fork.last_result))
        if not data:
            self._forget(fork)
            self._ending[fork.pid] = fork

    def _pause_s(self) -> float | None:
        """How long nothing but an event needs an answer."""
        if self._ending:
            return _REAP_EVERY_S
        deadline = min((fork.deadline for fork in self._forks.values()), default=math.inf)
        return None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())

    def _end_late(self) -> None:
        """End the forks whose work alone takes too long, and report what they were at."""
        for node, fork in list(self._forks.items()):
            if time.monotonic() >= fork.deadline:
                self._kill(node)
                why = f"its own work did not end within {fork.limit_s:g} s{fork.during}"
                self._send(ForkReport(fork.key, _with_end(fork.last_result, why)))

    def _kill(self, node: str) -> None:
        fork = self._forks.get(node)
        if fork is not None:
            os.kill(fork.pid, signal.SIGKILL)
            self._forget(fork)
            self._ending[fork.pid] = None

    def _forget(self, fork: _Fork) -> None:
        self._selector.unregister(fork.read_fd)
        os.close(fork.read_fd)
        os.close(fork.write_fd)
        del self._forks[fork.last_result.node]

    def _reap(self) -> None:
        """Bury the forks that have ended by now, and report those that died."""
        for pid, fork in list(self._ending.items()):
            has_ended, status = os.waitpid(pid, os.WNOHANG)
            if not has_ended:
                continue
            del self._ending[pid]
            code = os.waitstatus_to_exitcode(status)
            if fork is not None and (code or fork.last_result.stage != Stage.TOGETHER):
                self._send(ForkReport(fork.key, death_result(fork.last_result, code, fork.during)))

    def _send(self, answer: Answer) -> None:
        with suppress(ConnectionError):  # The other side is gone; the read side ends the loop.
            self._connection.sendall(msgspec.json.encode(answer) + b"\n")


def death_result(last: StageResult, status: int, during: str = "") -> StageResult:
    """What counts as the result of a fork that ended so after its last one, `during` some work.

    SIGABRT in the all-reduce is a failed all-reduce: libraries of collectives abort the process when a member fails.
    """
    if status < 0:
        why = f"its check was ended by {signal.Signals(-status).name}{during}"
    else:
        why = f"its check ended with exit code {status}{during}"
    return _with_end(last, why, died=not (status == -signal.SIGABRT and last.stage is Stage.TOGETHER))


def _with_end(last: StageResult, why: str, *, died: bool = True) -> StageResult:
    measurement = replace(last.measurement, died=died, error=last.measurement.error or why)
    return msgspec.structs.replace(last, measurement=measurement, store="")


def _use_threads(threads: int) -> None:
    """In a fork only: the server itself must stay single-threaded."""
    import torch

    torch.set_num_threads(threads)


def _run_fork(begin: Begin, hears: int, says: int, parent: int, shared: mmap.mmap) -> NoReturn:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getppid() != parent:
        os._exit(ExitCode.TRY_AGAIN)
    if begin.devices is not None:
        os.environ.update(shown_by(begin.devices, os.environ))
    from everstep.runtime.diagnosis.workload import work_alone, work_together

    def tell(stage: Stage, measurement: Measurement, store: str = "") -> None:
        os.write(says, msgspec.json.encode(StageResult(begin.node, begin.round, stage, measurement, store)) + b"\n")

    def note(what: str) -> None:
        shared[:] = what.encode()[:_NOTE_BYTES].ljust(_NOTE_BYTES, b"\0")

    own_measurement = work_alone(Measurement(begin.node, begin.host), begin.round, begin.box, note=note)
    note("")
    listener, store = None, ""
    if begin.opens_store:
        listener = socket.create_server((begin.address, 0), family=_address_family(begin.address))
        port = listener.getsockname()[1]
        store = f"{begin.address}:{port}"
    tell(Stage.ALONE, own_measurement, store)
    with os.fdopen(hears, "rb") as lines:
        line = lines.readline()
    if line:
        order = msgspec.json.decode(line, type=Together)
        tell(Stage.TOGETHER, work_together(own_measurement, order, begin.address, listener, note))
    os._exit(0)


def _address_family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _count_devices() -> int:
    """In a fork: counting may initialize CUDA, and a process with CUDA must not fork measurements."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            import torch

            os.write(writing, str(torch.cuda.device_count()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return int(text or b"0")


def main() -> None:
    """Run the process until its connection ends."""
    # Ctrl-C goes to the whole group; the connection ends when the parent does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_NAME, PROCESS_NAME.encode())
    connection = socket.socket(fileno=os.dup(1))
    os.dup2(2, 1)  # What libraries print is for people.
    import_torch()
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        print(f"the node check forks, but its process has {threads} threads", file=sys.stderr)
        sys.exit(ExitCode.TRY_AGAIN)
    MeasurementServer(connection, int(sys.argv[1])).serve()
    os._exit(0)  # torch's cleanup takes a second.


if __name__ == "__main__":
    main()

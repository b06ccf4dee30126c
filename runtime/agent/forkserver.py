"""The fork server: `python -m everstep.runtime.agent.forkserver --socket FD [--preload M]... -- script.py args`.

It imports once what the script will import, and stays a single-threaded process without a CUDA context. A worker is a
fork of it, which takes about 20 ms instead of the seconds of importing torch. So is its clone, which waits to take its
place should it die. If forking is unsafe (threads, CUDA) or not wanted, workers are forked and then exec Python:
slower, otherwise the same.
"""

import argparse
import ctypes
import gc
import os
import platform
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from everstep.runtime.agent.forkserver_client import LARGEST_PACKET, Clone, Exited, Forked, Ready, Signal, Spawn
from everstep.runtime.agent.preload import import_turn, preload, why_not_to_fork
from everstep.runtime.agent.process_group import signal_group
from everstep.runtime.agent.script import exec_arguments, run_and_exit
from everstep.runtime.agent.tcp_store import restrict_torch_store
from everstep.runtime.system import life_line
from everstep.runtime.watch import in_worker

ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_WITHOUT_DRIVER = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""1: torch.cuda.is_available asks NVML, and does not initialize the driver, after which a fork could not use CUDA. Many
packages call it when they are imported (PyTorch, "CUDA semantics", poison fork)."""
_ENDS = (signal.SIGTERM, signal.SIGINT)
_PR_SET_PDEATHSIG = 1
_CLONE_PARENT = 0x8000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
"""The number of clone(2) by machine."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Spawn | Signal | Clone).decode


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when `parent` dies; exit at once if it is already dead."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class _Server:
    def __init__(self, channel: socket.socket, command: Sequence[str], base: dict[str, str], python: str) -> None:
        """`python`: the interpreter that workers exec; empty: workers are plain forks."""
        self._channel = channel
        self._command = tuple(command)
        self._base = base
        self._python = python
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._workers: dict[int, tuple[int, int]] = {}
        """pidfd -> (id, pid)"""
        self._told = set[int]()
        """The workers that lived when this process was told to end: they were told, too, if all processes were."""
        for signum in _ENDS:  # The agent decides what follows.
            signal.signal(signum, lambda *_: self._told.update(number for number, _ in self._workers.values()))

    def serve(self) -> None:
        """Serve until the agent closes the connection."""
        while True:
            for file, _ in self._poll.poll():
                if file in self._workers:
                    self._reap(file)
                elif not self._handle_request():
                    return

    def end_workers(self) -> None:
        """SIGKILL the remaining workers."""
        for _, pid in self._workers.values():
            signal_group(pid, signal.SIGKILL)

    def _handle_request(self) -> bool:
        packet, files, _, _ = socket.recv_fds(self._channel, LARGEST_PACKET, 2)
        if not packet:
            return False
        message = _decode(packet)
        if isinstance(message, Spawn):
            self._fork(message, files[0], files[1])
        elif isinstance(message, Clone):
            self._clone(files[0])
        else:
            for number, pid in self._workers.values():
                if number == message.id:
                    signal_group(pid, message.signal)
        return True

    def _fork(self, spawn: Spawn, stdout: int, stderr: int) -> None:
        server = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)  # Who is told meanwhile knows this worker, or is it.
        try:
            pid = os.fork()
            if pid == 0:
                self._become_worker(server, spawn, stdout, stderr, mask)
            os.close(stdout)
            os.close(stderr)
            pidfd = os.pidfd_open(pid)
            self._workers[pidfd] = (spawn.id, pid)
            self._poll.register(pidfd, select.POLLIN)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _clone(self, channel: int) -> None:
        agent = os.getppid()
        if fork_sibling() == 0:
            try:
                die_with_parent(agent)
                self._channel.close()
                for file in self._workers:
                    os.close(file)
                own_channel = socket.socket(fileno=channel)
                own_channel.send(_encode(Ready(os.getpid(), 0.0, "")))
                _serve(_Server(own_channel, self._command, self._base, self._python))
            except BaseException:  # noqa: BLE001 - the outermost edge of the clone
                traceback.print_exc()
                os._exit(1)
        os.close(channel)

    def _reap(self, pidfd: int) -> None:
        died_at = time.time()
        number, pid = self._workers.pop(pidfd)
        self._poll.unregister(pidfd)
        signal_group(pid, signal.SIGKILL)  # Before the wait: until then the group's number cannot be reused.
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        exit_code = os.waitstatus_to_exitcode(status)
        self._channel.send(_encode(Exited(number, exit_code, died_at, pid, was_told=number in self._told)))
        self._told.discard(number)

    def _become_worker(self, server: int, spawn: Spawn, stdout: int, stderr: int, mask: Collection[int]) -> NoReturn:
        try:
            os.setsid()
            die_with_parent(server)
            for file in self._workers:
                os.close(file)
            # Not by the server: the agent must know this process before it can hear of it in another way.
            self._channel.send(_encode(Forked(spawn.id, os.getpid())))
            self._channel.close()
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            os.close(stdout)
            os.close(stderr)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if spawn.cpus:
                os.sched_setaffinity(0, spawn.cpus)
            environment = {**self._base, **spawn.environment}
            command = spawn.command or self._command
            if self._python:
                in_worker.make_board(environment)
                argv = exec_arguments(command, self._python)
                os.execvpe(argv[0], argv, environment)
            if spawn.life_line:
                with suppress(OSError):  # Its end is heard of later then.
                    life_line.hold(Path(spawn.life_line))
            os.environ.clear()
            os.environ.update(environment)
            _reset_threads_and_seed(environment)
            restrict_torch_store()
            in_worker.install(environment)
        except BaseException:  # noqa: BLE001 - the outermost edge of the worker
            traceback.print_exc()
            os._exit(1)
        run_and_exit(command)


def _reset_threads_and_seed(environment: dict[str, str]) -> None:
    """Redo for this worker what libraries set up once at import: thread counts and random seeds."""
    torch = sys.modules.get("torch")
    if torch is not None:
        threads = environment.get("OMP_NUM_THREADS", "")
        torch.set_num_threads(int(threads) if threads.isdigit() and int(threads) > 0 else _physical_cores())
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()  # Forks must not share a random state.


def _physical_cores() -> int:
    """torch's default number of threads: the physical cores among those this process may use."""
    siblings = Path("/sys/devices/system/cpu")
    usable = os.sched_getaffinity(0)
    with suppress(OSError):
        return len({(siblings / f"cpu{core}/topology/thread_siblings").read_text() for core in usable})
    return len(usable)


def fork_sibling() -> int:
    """As os.fork in a process of one thread, but the new process is a child of this one's parent (clone(2)).

    Returns -1 where that is not possible."""
    if (call := _SYS_CLONE.get(platform.machine())) is None:
        return -1
    return ctypes.PyDLL(None).syscall(call, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)


def _serve(server: _Server) -> NoReturn:
    """To the end of the process."""
    try:
        server.serve()
    finally:
        server.end_workers()
    os._exit(0)  # torch's exit handlers take half a second.


def _preload_in_turn(command: Sequence[str], modules: Sequence[str]) -> list[str]:
    with import_turn(len(os.sched_getaffinity(0))):
        return preload(command, modules)


def main(arguments: Sequence[str]) -> None:
    """Preload, send Ready, then fork on request."""
    parser = argparse.ArgumentParser(
        prog="python -m everstep.runtime.agent.forkserver", description="Imports once, forks workers."
    )
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--preload", action="append", default=[])
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Of Ctrl-C or a group's SIGTERM; see `_Server`.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    began, base = time.monotonic(), dict(os.environ)
    os.environ.update(dict.fromkeys([*ONE_THREAD, _WITHOUT_DRIVER], "1"))  # numpy would start threads at import.
    gc.disable()  # Collections would take a fifth of the time of importing transformers and free nothing.
    warnings = [] if options.plain else _preload_in_turn(command, options.preload)
    reason = "asked for" if options.plain else why_not_to_fork() or ""
    gc.collect()
    gc.freeze()  # Workers' collections then leave shared pages untouched, so the pages stay shared.
    gc.enable()
    sys.stdout.flush()
    sys.stderr.flush()
    channel = socket.socket(fileno=options.socket)
    os.set_inheritable(options.socket, False)
    channel.send(_encode(Ready(os.getpid(), time.monotonic() - began, reason, tuple(warnings))))
    _serve(_Server(channel, command, base, options.python if reason else ""))


if __name__ == "__main__":
    die_with_parent(os.getppid())
    main(sys.argv[1:])

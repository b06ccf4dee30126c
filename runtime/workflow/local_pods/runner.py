"""Runs pods behind a Protocol: here as processes of this machine, started by the `spawner`."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from everstep.runtime.system.processes import kill_processes, start_time, wait_for_end


class RunnerError(OSError):
    """No pod can be started any more."""


class Runner(Protocol):
    """Starts pods, waits for their end, ends them. A pod is known by its pid and when that process began."""

    def start(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Start pods side by side, one for each `Pod.start_request`. Returns by claim: `started`, `late`, or an error.

        A pod writes its claim, then its output, then its exit code to the files that the request names, even if
        this process dies. Raises RunnerError.
        """
        ...

    async def wait_until_gone(self, pid: int, began: int) -> None:
        """Wait until that process has ended."""
        ...

    def send_signal(self, pid: int, began: int, signum: signal.Signals) -> None:
        """Signal the pod's process group, unless the pid belongs to another process now."""
        ...

    def close(self) -> None:
        """Start no more pods. Running pods go on."""
        ...


class ProcessRunner:
    """Pods as sessions of processes; the spawner, which forks them, starts with the first pod."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Have the spawner start them."""
        if self._process is None or self._process.poll() is not None:
            path = Path(__file__).with_name("spawner.py")
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                start_new_session=True,
            )  # fmt: skip
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        answers: dict[str, str] = {}
        for request in requests:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        while len(answers) < len(requests):
            claim, _, answer = process.stdout.readline().rstrip("\n").partition("\t")
            if not answer:
                raise RunnerError("the process that starts pods has ended; resume the run")
            answers[claim] = answer
        return answers

    async def wait_until_gone(self, pid: int, began: int) -> None:
        """Wait on a pidfd."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        try:
            if start_time(pid) == began:
                await wait_for_end(descriptor)
        finally:
            os.close(descriptor)

    def send_signal(self, pid: int, began: int, signum: signal.Signals) -> None:
        """Signal the pod's process group."""
        if start_time(pid) == began:
            with suppress(ProcessLookupError):
                os.killpg(pid, signum)

    def close(self) -> None:
        """End the spawner by closing its input."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


def kill_leftovers(run_dir: Path) -> None:
    """SIGKILL every process that a pod of this run has left, including daemons that it started."""
    run = f"EVERSTEP_RUN_DIR={run_dir}".encode()
    kill_processes(
        lambda variables: run in variables and any(variable.startswith(b"ARGO_NODE_ID=") for variable in variables)
    )

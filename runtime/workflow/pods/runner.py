"""What runs pods, behind a Protocol: processes of this machine, started by the `spawner`."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol


class RunnerError(OSError):
    """Nothing can be started any more."""


class Runner(Protocol):
    """Starts pods, waits for their end, ends them. A pod is known by its pid and when that process began."""

    def start(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Start pods side by side, each asked for by a `Pod.request`. By claim: `started`, `late`, or what is wrong.

        A pod writes its claim, then its output, then its exit code to the files that the request names, whatever
        becomes of who asked. Raises RunnerError.
        """
        ...

    async def wait_until_gone(self, pid: int, began: int) -> None:
        """Until that process is no more."""
        ...

    def send_signal(self, pid: int, began: int, signum: signal.Signals) -> None:
        """Signal all processes of the pod, if it is still that one."""
        ...

    def close(self) -> None:
        """No more pods. Those that run go on."""
        ...


class ProcessRunner:
    """Pods as sessions of processes; the process that forks them is begun with the first one."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(self, requests: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """By way of the spawner."""
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
                raise RunnerError("the process that starts pods has ended; take the run up again")
            answers[claim] = answer
        return answers

    async def wait_until_gone(self, pid: int, began: int) -> None:
        """Told by a pidfd."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            if start_time(pid) == began:
                loop.add_reader(descriptor, ready.set)
                await ready.wait()
        finally:
            loop.remove_reader(descriptor)  # Else the loop takes the next descriptor of this number for one it watches.
            os.close(descriptor)

    def send_signal(self, pid: int, began: int, signum: signal.Signals) -> None:
        """To the pod's session."""
        if start_time(pid) == began:
            with suppress(ProcessLookupError):
                os.killpg(pid, signum)

    def close(self) -> None:
        """The spawner ends with its input."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()


def start_time(pid: int) -> int:
    """Ticks since boot at which the process began (proc(5), stat, field 22); 0 when there is none, or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == "Z" else int(fields[19])

"""The master's process as its node sees it: started, restarted when it dies, ended or left running."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import msgspec

from everstep.runtime.agent.output import Pipe
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.launch.master_main import REFUSED, MasterConfig
from everstep.runtime.launch.probe import MASTER_MODULE
from everstep.runtime.system.processes import wait_for_end

_PAUSE_S = 1.0
_NOT_FOR_MASTERS = ("EVERSTEP_NODE", "EVERSTEP_JOB", "EVERSTEP_AGENT")
"""A node's processes are found by these variables when it ends; the master must not be found."""


class Master:
    """One master's process, on an event loop."""

    def __init__(self, hosting: MasterConfig, say: Callable[[str], None]) -> None:
        self._hosting = hosting
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self.refused = ""
        """Why it did not start."""
        self.stopped = False
        """Has it been told to end?"""

    @property
    def pid(self) -> int:
        """Pid of the process that was started last."""
        assert self._process is not None, "it was started"
        return self._process.pid

    async def run(self) -> int:
        """Run until the master has ended by itself; returns its exit code. A killed or failed master is restarted."""
        while True:
            code = await self._run_once()
            if self.stopped or (code >= 0 and code != ExitCode.TRY_AGAIN):
                return code
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "could not continue"
            self._say(f"the master {how}; another one takes over")
            await asyncio.sleep(_PAUSE_S if code >= 0 else 0)
            if self.stopped:  # Checked during the pause, because a new master would never hear of the stop.
                return code

    def stop(self) -> None:
        """End the job: no node of it is left."""
        self.stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    async def _run_once(self) -> int:
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_MASTERS}
        lines = Pipe(self._read_lines)
        try:
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", MASTER_MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=lines.write_end,
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(lines.write_end)
        assert process.stdin is not None, "asked for a pipe"
        with suppress(BrokenPipeError), process.stdin as stdin:
            stdin.write(msgspec.json.encode(self._hosting))
        pidfd = os.pidfd_open(process.pid)
        try:
            await wait_for_end(pidfd)
        finally:
            os.close(pidfd)
            lines.close()
        return process.wait()

    def _read_lines(self, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace")
            if text.startswith(REFUSED):
                self.refused = text.removeprefix(REFUSED)
            elif text:
                self._say(text)

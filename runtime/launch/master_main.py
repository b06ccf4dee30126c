"""`python -m everstep.runtime.launch.master_main`: the master of a launched job, a process beside one of the nodes.

The process outlives its node if other nodes need it; if it is killed, that node starts it again. Its configuration
comes on stdin, because the token must not appear in a command line; lines for people go to stderr. SIGTERM ends the
job; SIGINT does, too, and says that no node is left to hear it. Exit codes: those of `runtime.master.Outcome`, 2 bad
input (the address is taken), 77 another master has taken the job over.
"""

import asyncio
import contextlib
import errno
import signal
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from everstep.runtime.agent.forkserver import die_with_parent
from everstep.runtime.diagnosis.admission import Admission, node_check_port, serve_admission
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.job.spec import JobSpec
from everstep.runtime.launch.end_notice import EndNotice
from everstep.runtime.launch.local_state import add_owner, remove_store
from everstep.runtime.master import AgentCommand, Control, ListenAddress, Outcome, Progress, find_master, run
from everstep.runtime.master.master import CannotListen, open_listener
from everstep.runtime.master.telemetry import Telemetry, newest_number
from everstep.runtime.net.tls import Credentials, credentials_of
from everstep.runtime.platform.self_joining import JoinedPlatform
from everstep.runtime.store import Store, open_store
from everstep.runtime.system.own_folder import hold_process_folder

REFUSED = "refused: "
"""Prefix of the line that says why a master did not start."""


class MasterConfig(msgspec.Struct, frozen=True):
    """The configuration of a master."""

    spec: JobSpec
    store: str
    token: str
    tls: bool
    host: str
    port: int
    parent: int
    """Process that the master must not outlive; 0: none."""
    admission: Admission | None = None
    """The node check before the job; None: there is none."""
    remove: str = ""
    """Folder to remove when the job is over: a store that nobody else needs."""


def _print_line(text: str) -> None:
    with suppress(OSError):  # The reader of stderr may be dead; the job continues.
        print(text, file=sys.stderr, flush=True)


class _Lines:
    """Prints a line for each new reason; for a job of one node in its first round only which ranks are slow."""

    def __init__(self, config: MasterConfig) -> None:
        self._many = any(role.nodes > 1 for role in config.spec.roles.values())
        self._reason = self._slow = ""
        self._first = config.remove

    def show(self, progress: Progress) -> None:
        if progress.reason != self._reason and (self._many or progress.round > 1):
            _print_line(progress.reason)
        elif progress.slow != self._slow and progress.slow:
            _print_line(progress.slow)
        self._reason, self._slow = progress.reason, progress.slow


@contextlib.asynccontextmanager
async def _admit_nodes(config: MasterConfig, credentials: Credentials) -> AsyncIterator[None]:
    """Serve the node check beside the master, if there is one. Raises CannotListen."""
    if config.admission is None:
        yield
        return
    port = node_check_port(config.port)
    try:
        async with serve_admission(config.admission, config.host, port, credentials, _print_line):
            yield
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise CannotListen(
            f"cannot listen on {config.host}:{port}, where nodes are checked; choose another port"
        ) from None


async def _run(config: MasterConfig) -> Outcome:
    stop, alone = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, lambda: (stop.set(), alone.set()))
    lines, store = _Lines(config), open_store(config.store)
    credentials = credentials_of(config.token, config.spec.job, tls=config.tls)
    with open_listener(config.host, config.port) as listener:  # Kept until the last answer is sent.
        outcome = await _run_master(config, store, credentials, listener.dup(), stop, lines)
        if outcome.state != "fenced":
            master = await asyncio.to_thread(find_master, store, config.spec.job)
            epoch, job = master.epoch if master else 0, config.spec.job
            number = await asyncio.to_thread(newest_number, store, job, epoch)
            farewell = EndNotice(outcome, epoch, credentials, Telemetry(store, job, epoch, number))
            await _wait_for_first(farewell.serve(listener), alone.wait())
    return outcome


async def _run_master(
    config: MasterConfig,
    store: Store,
    credentials: Credentials,
    listener: socket.socket,
    stop: asyncio.Event,
    lines: _Lines,
) -> Outcome:
    async with _admit_nodes(config, credentials):
        return await run(
            config.spec,
            store,
            JoinedPlatform(),
            credentials,
            AgentCommand(),
            Control(stop, on_progress=lines.show),
            ListenAddress(config.host, listener=listener),
        )


async def _wait_for_first(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them has ended, and cancel the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def main() -> None:
    """Run one master to its end."""
    config = msgspec.json.decode(sys.stdin.buffer.read(), type=MasterConfig)
    if config.parent:
        die_with_parent(config.parent)
    if config.remove:
        hold_process_folder()  # The store is there, and this process may outlive its node.
        add_owner(Path(config.remove))
    try:
        outcome = asyncio.run(_run(config))
    except (CannotListen, ValueError) as error:
        _print_line(f"{REFUSED}{error}")
        sys.exit(ExitCode.BAD_INPUT)
    except Exception:  # noqa: BLE001 - the outermost edge of the process
        with suppress(OSError):
            traceback.print_exc()
        sys.exit(ExitCode.TRY_AGAIN)
    if config.remove and outcome.state != "fenced":
        remove_store(Path(config.remove))
    sys.exit(ExitCode.FENCED if outcome.state == "fenced" else outcome.exit_code)


if __name__ == "__main__":
    main()

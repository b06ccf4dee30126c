"""The agent of one node: opens the machine's resources, runs the agent's life cycle, and cleans up."""

import asyncio
import random
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import aiohttp

from everstep.runtime.agent.beside import Beside
from everstep.runtime.agent.client import MasterClient
from everstep.runtime.agent.dependencies import AgentStatus, Dependencies, Ending, LocalResources
from everstep.runtime.agent.life import AgentLifecycle
from everstep.runtime.agent.measuring import measure_beside
from everstep.runtime.agent.neighbours import Questions, make_answer
from everstep.runtime.agent.peer_server import application
from everstep.runtime.agent.settings import Settings
from everstep.runtime.agent.shutdown import Shutdown
from everstep.runtime.diagnosis.admission_client import StartMeasuring
from everstep.runtime.diagnosis.measurement_process import start_measurement_process
from everstep.runtime.net.token_gate import TokenGate, application_of, listen
from everstep.runtime.platform.debris import SHARED_MEMORY, end_processes, memory_prefix
from everstep.runtime.protocol.messages import JOB_HEADER

_THREADS = 64
"""Threads beyond one per worker. All workers' calls may block at once until a call of the agent itself completes."""


class Agent:
    """One node of a job, on an event loop."""

    def __init__(self, settings: Settings, dependencies: Dependencies, chance: random.Random) -> None:
        self._settings = settings
        self._dependencies = dependencies
        self._chance = chance
        self.shutdown = Shutdown(settings, dependencies.say)
        self.client = MasterClient(settings.master, dependencies.find_master, chance, dependencies.say)
        self.status = AgentStatus()
        self._life: AgentLifecycle | None = None
        """While workers can be started."""
        self._is_open = asyncio.Event()

    def leave(self, signum: signal.Signals = signal.SIGTERM) -> None:
        """End gracefully; on a second call, at once."""
        self.shutdown.give_notice(signum)

    @asynccontextmanager
    async def measuring(self) -> AsyncIterator[StartMeasuring]:
        """What starts a process that measures this node, once its workers could be started. Raises MeasurementError.

        Where the fork server cannot fork, it is one that is kept: importing torch takes long.
        """
        if beside := await self._forks():
            yield lambda: measure_beside(beside)
            return
        async with start_measurement_process() as measuring:
            yield lambda: nullcontext(measuring)

    async def _forks(self) -> Beside | None:
        while self._life is None:
            await self._is_open.wait()
        return await self._life.forks()

    async def run(self, may_join: asyncio.Event | None = None) -> Ending:
        """Run until there is a reason to leave, and return it. Joins when `may_join` is set; None: at once."""
        settings, credentials = self._settings, self._dependencies.credentials
        self.client.answered_at = time.monotonic()
        gate, listener = TokenGate(credentials), listen(settings.address, 0)
        host = f"[{settings.address}]" if ":" in settings.address else settings.address
        prefix = "." + memory_prefix(settings.job, settings.node)
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=SHARED_MEMORY))  # A pod's /tmp may go before its nodes.
        threads = ThreadPoolExecutor(_THREADS + settings.slots, "everstep-link")
        resources = LocalResources(f"{host}:{listener.getsockname()[1]}", folder, threads, self._chance)
        self.client.threads = threads
        try:
            questions = Questions(lambda: self.client.session, credentials.scheme)
            life = AgentLifecycle(
                settings, self._dependencies, self.client, self.shutdown, resources, self.status, questions
            )
            try:
                return await self._run(life, questions, threads, gate, listener, may_join)
            finally:
                self._life = None
                self._is_open.clear()
                await life.close()
        finally:
            listener.close()
            end_processes(settings.job, settings.node)
            shutil.rmtree(folder, ignore_errors=True)

    async def _run(
        self,
        life: AgentLifecycle,
        questions: Questions,
        threads: ThreadPoolExecutor,
        gate: TokenGate,
        listener: socket.socket,
        may_join: asyncio.Event | None,
    ) -> Ending:
        """Connect to the master, listen to workers and peers, and run the life cycle."""
        credentials = self._dependencies.credentials
        headers = {**credentials.headers, "Content-Type": "application/json", JOB_HEADER: self._settings.job}
        trust = aiohttp.TCPConnector(ssl=credentials.client or True)
        async with aiohttp.ClientSession(headers=headers, connector=trust) as session:
            self.client.session = session
            await life.open()
            self._life = life
            self._is_open.set()
            served = application(life.keeper, gate, threads, make_answer(self._settings.node, questions))
            async with gate.serve(application_of(served), listener):
                return await life.run(may_join)

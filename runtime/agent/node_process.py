"""The agent of one node as a process: what it needs, made of its settings. `__main__` begins."""

import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from everstep.runtime import faults
from everstep.runtime.agent.agent import Agent
from everstep.runtime.agent.checked_start import run_checked
from everstep.runtime.agent.dependencies import Dependencies, Ending
from everstep.runtime.agent.forkserver_process import ForkServerProcess
from everstep.runtime.agent.master_watch import NextMaster
from everstep.runtime.agent.orphans import bury_orphans
from everstep.runtime.agent.output import NodeLog
from everstep.runtime.agent.settings import Settings
from everstep.runtime.checkpoint.node.core.options import KeeperOptions
from everstep.runtime.checkpoint.node.keeper import Keeper
from everstep.runtime.checkpoint.stored.reports import leave_report
from everstep.runtime.diagnosis.admission import node_check_port
from everstep.runtime.diagnosis.admission_client import AdmissionClient
from everstep.runtime.diagnosis.errors import NoQuorumError
from everstep.runtime.diagnosis.switchbox import SwitchboxError
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.journal.journal import find_master
from everstep.runtime.master.stand_in import stand_in
from everstep.runtime.net.tls import Credentials, credentials_of
from everstep.runtime.protocol.holdings import Holding, Refusal
from everstep.runtime.protocol.messages import Evidence
from everstep.runtime.store import Store, open_store


async def run(settings: Settings, persist_interval: int, fork_server: ForkServerProcess | None) -> int:
    """Run one agent to its end; its exit code."""
    store = open_store(settings.store, bytes_per_s=settings.persist_bytes_per_s)
    credentials = credentials_of(settings.token, settings.job, tls=settings.tls)

    def make_keeper(
        on_persisted: Callable[[Holding], None],
        on_unrestored: Callable[[tuple[Refusal, ...]], None],
        on_evidence: Callable[[Evidence], None],
    ) -> Keeper:
        options = KeeperOptions(
            job=settings.job,
            node=settings.node,
            persist_interval=persist_interval,
            overhead=settings.checkpoint_overhead,
            workers=settings.slots,
            persists=settings.persists,
        )
        return Keeper(options, store, credentials, on_persisted, on_unrestored, on_evidence=on_evidence)

    logging.basicConfig(level=logging.WARNING, format=f"agent {settings.node}: %(message)s")

    def say(text: str) -> None:
        print(f"agent {settings.node}: {text}", file=sys.stderr, flush=True)

    dependencies = Dependencies(
        credentials=credentials,
        make_keeper=make_keeper,
        find_master=lambda: find_master(store, settings.job),
        make_outputs=lambda folder: NodeLog(1, folder),
        keep_log=lambda name, data: store.put(f"jobs/{settings.job}/logs/{settings.node}/{name}", data),
        leave_report=partial(leave_report, store),
        say=say,
        note=say,
        next_master=NextMaster(partial(stand_in, store, settings.job, credentials, settings.address, say))
        if settings.stands_in
        else None,
        fork_server=fork_server,
    )
    agent = Agent(settings, dependencies, random.Random())
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, agent.leave, signum)
    faults.point("agent.start")
    burial = asyncio.create_task(bury_orphans()) if os.getpid() == 1 else None
    ending = await _run_with_check(agent, settings, credentials, store, say)
    if burial is not None:
        burial.cancel()
    return ending.code


async def _run_with_check(
    agent: Agent, settings: Settings, credentials: Credentials, store: Store, say: Callable[[str], None]
) -> Ending:
    """Run the agent, after a check of this node if the settings ask for one."""
    if settings.unfit is None:
        return await agent.run()

    async def where() -> tuple[str, int]:
        master = await asyncio.to_thread(find_master, store, settings.job)
        host, _, port = (master.address if master else urlsplit(settings.master).netloc).rpartition(":")
        return host.strip("[]"), node_check_port(int(port))

    patience_s, box = settings.connect_s, settings.box
    client = AdmissionClient(settings.node, settings.host, settings.address, credentials, where, patience_s, box)
    try:
        ending = await run_checked(agent, client, settings.unfit, say)
    except NoQuorumError as error:
        ending = Ending(ExitCode.TRY_AGAIN, str(error))
    except SwitchboxError as error:
        ending = Ending(ExitCode.BAD_INPUT, str(error))
    if not agent.status.seat:
        say(ending.reason)
    return ending

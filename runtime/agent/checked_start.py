"""Checks the node once its imports are done, before its agent joins. Later it is a partner for the checks of others."""

import asyncio
from collections.abc import Callable

from everstep.runtime.agent.agent import Agent
from everstep.runtime.agent.dependencies import Ending
from everstep.runtime.diagnosis.admission_client import AdmissionClient
from everstep.runtime.diagnosis.errors import CoordinatorLostError, MeasurementError, UnknownNodeError
from everstep.runtime.exit_codes import ExitCode


async def run_checked(agent: Agent, client: AdmissionClient, unfit: int, say: Callable[[str], None]) -> Ending:
    """Run the check and the agent, which joins when the check says so. Exit code `unfit` if it excludes this node.
    `say` gets lines for the log.

    Raises NoQuorumError if too few nodes joined the check.
    """
    may_join = asyncio.Event()
    checking = asyncio.create_task(client.run(agent.measuring, say))
    running = asyncio.create_task(agent.run(may_join))
    try:
        await asyncio.wait([client.verdict, checking, running], return_when=asyncio.FIRST_COMPLETED)
        if checking.done() and not client.verdict.done():
            checking.result()  # Raises if the check itself failed.
        if not client.verdict.done():
            return running.result()  # Asked to stop, or its job has ended.
        try:
            verdict = client.verdict.result()
        except (CoordinatorLostError, UnknownNodeError, MeasurementError) as error:
            return Ending(ExitCode.TRY_AGAIN, str(error))
        if verdict.avoid:
            return Ending(unfit, f"it is left out, as it is {verdict.health}: {verdict.reason}")
        agent.status.checked_s = verdict.best_s or 0.0
        may_join.set()
        return await running
    finally:
        for task in (checking, running):
            task.cancel()
        await asyncio.gather(checking, running, return_exceptions=True)

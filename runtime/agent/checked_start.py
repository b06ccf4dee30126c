"""Checks the node before its agent joins. While the agent runs, the node is a partner for the checks of later nodes."""

import asyncio

from everstep.runtime.agent.agent import Agent
from everstep.runtime.agent.dependencies import Ending
from everstep.runtime.diagnosis.admission_client import AdmissionClient
from everstep.runtime.diagnosis.errors import CoordinatorLostError, MeasurementError, UnknownNodeError
from everstep.runtime.exit_codes import ExitCode


async def run_checked(agent: Agent, checked: AdmissionClient, unfit: int) -> Ending:
    """Run the check, then the agent. Exit code `unfit` if the check excludes this node.

    Raises NoQuorumError if too few nodes came to be checked.
    """
    checking = asyncio.create_task(checked.run())
    notice = asyncio.create_task(agent.shutdown.wait_for_notice())
    try:
        await asyncio.wait([checked.verdict, checking, notice], return_when=asyncio.FIRST_COMPLETED)
        if checking.done() and not checked.verdict.done():
            checking.result()  # Raises if the check itself failed.
        if not checked.verdict.done():
            return Ending(128 + agent.shutdown.signal, "asked to stop during its check")
        try:
            verdict = checked.verdict.result()
        except (CoordinatorLostError, UnknownNodeError, MeasurementError) as error:
            return Ending(ExitCode.TRY_AGAIN, str(error))
        if verdict.avoid:
            return Ending(unfit, f"it is left out, as it is {verdict.health}: {verdict.reason}")
        agent.status.checked_s = verdict.best_s or 0.0
        return await agent.run()
    finally:
        for task in (checking, notice):
            task.cancel()
        await asyncio.gather(checking, notice, return_exceptions=True)

"""Waits for the moment, injects the fault, writes down when it fired."""

import asyncio
import dataclasses
import json
import os
import random
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from everstep.runtime.exit_codes import ExitCode
from everstep.steps.chaos.config import Config
from everstep.steps.entry import Result, StepError

if TYPE_CHECKING:
    from everstep.runtime.chaos import FiredFault, Injector
    from everstep.runtime.chaos.progress import Progress

EARLIEST, LATEST = 0.1, 0.6
"""Shares of the iterations between which the fault comes."""


def run(config: Config) -> Result:
    """Inject the fault, or say why that cannot be done here. Raises StepError with exit code 1: it did not fire."""
    from everstep.runtime.chaos import NotFiredError, NotPossibleError

    try:
        fault_fired = asyncio.run(_inject(config))
    except NotPossibleError as error:
        return Result(f"{config.kind} is refused: {error}", {"fired": ""}, {"refused": str(error)})
    except NotFiredError as error:
        raise StepError(f"{config.kind} did not fire: {error}", ExitCode.FAILED) from None
    facts = dataclasses.asdict(fault_fired)
    where = f" of {fault_fired.node}" if fault_fired.node else ""
    return Result(f"{fault_fired.kind}{where}: {fault_fired.evidence}", {"fired": json.dumps(facts)}, facts)


async def _inject(config: Config) -> "FiredFault":
    from everstep.runtime.chaos import Fault, Kind, NotPossibleError
    from everstep.runtime.chaos.progress import Progress
    from everstep.runtime.store import open_store

    chance, kind = random.Random(f"{config.seed} {config.task}"), Kind(config.kind)
    progress = Progress(open_store(config.store, read_only=True), config.job, _print_line)
    async with injector_of(config, progress, chance) as injector:
        if why := injector.refusal(kind):
            raise NotPossibleError(why)
        preparing = asyncio.create_task(injector.prepare(kind))
        try:
            if kind is not Kind.FAULTY:
                await _wait_for_moment(config, progress, chance)
        finally:
            preparing.cancel()
            with suppress(asyncio.CancelledError):
                await preparing
        return await injector.inject(Fault(kind, config.node, config.seconds, config.share))


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def _wait_for_moment(config: Config, progress: "Progress", chance: random.Random) -> None:
    """A random iteration, and a random part of a second after it. Raises NotFiredError."""
    from everstep.runtime.chaos import NotFiredError

    iteration = round(config.iterations * chance.uniform(EARLIEST, LATEST))
    try:
        await progress.wait_while_it_goes_on(
            lambda: progress.training_nodes() and progress.iteration() >= iteration,
            f"iteration {iteration} was reached",
            config.patience_s,
        )
    except NotFiredError as error:
        if progress.has_ended():
            raise NotFiredError(f"{error}; it is known up to 5 s late: give more --iterations") from None
        raise
    await asyncio.sleep(chance.random())


@asynccontextmanager
async def injector_of(config: Config, progress: "Progress", chance: random.Random) -> AsyncIterator["Injector"]:
    """Of the nodes where this step runs: pods if Argo made its pod, else processes of this machine."""
    from everstep.runtime.platform import POD_VARIABLE

    if os.environ.get(POD_VARIABLE):
        from everstep.runtime.chaos.chaosblade import ChaosBladeInjector
        from everstep.runtime.chaos.on_cluster import ClusterInjector
        from everstep.runtime.platform.kubernetes import Access, KubeApi

        async with KubeApi(Access.of_this_pod(os.environ)) as api:
            if config.chaosblade:
                yield ChaosBladeInjector(api, progress, chance)
            else:
                yield ClusterInjector(api, config.target, progress, chance)
        return
    from everstep.runtime.chaos.on_machine import MachineInjector

    if config.chaosblade:
        raise StepError("--chaosblade: its operator injects faults into pods, and here nodes are processes")
    folder = os.environ.get("EVERSTEP_RUN_DIR")
    if not folder:
        raise StepError("EVERSTEP_RUN_DIR is not set: this step runs beside a train step, in a pipeline")
    injector = MachineInjector(Path(folder), config.target, progress, chance)
    try:
        yield injector
    finally:
        injector.release()

"""`everstep chaos RUN[/STEP] --kind crash`: let one fault happen to a training that is under way."""

import argparse
import asyncio
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from everstep.cli.find_job import find
from everstep.errors import BadInput
from everstep.flags import Flag, add_action
from everstep.runtime.exit_codes import ExitCode

if TYPE_CHECKING:
    from everstep.runtime.chaos import Fired
    from everstep.runtime.chaos.progress import Progress

EXAMPLES = (
    "examples: everstep chaos llama-finetune-x7k2 --kind crash; everstep chaos RUN --kind freeze --node worker-1-0"
)


@dataclass(frozen=True)
class Chaos:
    """Let one fault happen to a training that is under way, and say when it fired. Exit code 1: it did not fire."""

    job: Annotated[str, Flag(metavar="RUN[/STEP]", is_positional=True)]
    """A run of this machine, and its train step if it has several."""
    kind: str = "crash"
    """What happens: crash, fork-server, node, preempt, freeze, slow, oom, memory, cpu, resize, master, store or
    everything."""
    node: str = ""
    """The node that it happens to; empty: one of those that train, by chance."""
    seconds: float = 10.0
    """How long it lasts, where it lasts."""
    share: float = 0.9
    """Share of the CPU, of the memory limit, or of the time that a slow node stands still."""
    runs: Path = Path("runs")
    """Directory of the run folders."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Chaos, run)
    parser.epilog = EXAMPLES


def run(flags: Chaos) -> int:
    """Inject the fault; returns the exit code. Raises BadInput."""
    from everstep.runtime.chaos import Kind, NotFiredError, NotPossibleError
    from everstep.runtime.chaos.progress import Progress

    if flags.kind not in tuple(Kind):
        raise BadInput(f"--kind {flags.kind}: not known; use {', '.join(Kind)}")
    if not 0 < flags.share <= 1 or not flags.seconds > 0:
        raise BadInput("--share must be above 0 and at most 1, --seconds above 0")
    found = find(flags.runs, flags.job)
    if ended := found.state.ended:
        raise BadInput(f"{flags.job}: its training is over ({ended.result.value}: {ended.reason})")
    if flags.node and flags.node not in found.state.nodes:
        raise BadInput(f"--node {flags.node}: no such node; `everstep status {flags.job}` shows them")
    try:
        fired = asyncio.run(_inject(flags, Progress(found.store, found.job)))
    except NotPossibleError as error:
        raise BadInput(f"{flags.kind} cannot be injected into {flags.job}: {error}") from None
    except NotFiredError as error:
        print(f"{flags.kind} did not fire: {error}", file=sys.stderr)
        return ExitCode.FAILED
    at = time.strftime("%H:%M:%S", time.localtime(fired.time))
    print(f"{fired.kind}{f' of {fired.node}' if fired.node else ''} at {at}: {fired.evidence}")
    return ExitCode.DONE


async def _inject(flags: Chaos, progress: "Progress") -> "Fired":
    from everstep.runtime.chaos import Fault, Kind
    from everstep.runtime.chaos.on_machine import MachineInjector

    run, _, step = flags.job.partition("/")
    injector = MachineInjector(flags.runs / run, step, progress, random.Random())
    return await injector.inject(Fault(Kind(flags.kind), flags.node, flags.seconds, flags.share))

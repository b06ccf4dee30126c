"""`everstep chaos RUN[/STEP] --kind crash`: inject one fault into a running training."""

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from everstep.cli.find_job import IN_STORE, find, find_on_cluster, read_started, run_end, store_of
from everstep.errors import BadInput
from everstep.flags import Flag, add_action
from everstep.runtime.exit_codes import ExitCode

if TYPE_CHECKING:
    from everstep.runtime.chaos import Fault, FiredFault
    from everstep.runtime.job.state import State

EXAMPLES = (
    "examples: everstep chaos llama-finetune-x7k2 --kind crash; everstep chaos RUN --kind freeze --node worker-1-0"
)


@dataclass(frozen=True)
class Chaos:
    """Inject one fault into a running training, and say when it fired. Exit code 1: it did not fire."""

    job: Annotated[str, Flag(metavar="RUN[/STEP]", is_positional=True)]
    """A run, and its train step if it has several."""
    kind: str = "crash"
    """What happens: crash, fork-server, node, preempt, freeze, slow, oom, memory, cpu, clock, slow-disk, resize,
    master, store, disk or everything; on a cluster: crash, fork-server, node, preempt, evict, container, slow, network,
    oom, memory, cpu, clock, resize, master, store, everything, cordon, taint; with --chaosblade: preempt, fork-server,
    cpu, memory, network."""
    node: str = ""
    """The node that it hits; empty: a random one of those that train."""
    seconds: float = 10.0
    """How long it lasts, for faults that last."""
    share: float = 0.9
    """Share of the CPU, of the memory limit, or of the time that a slow node stands still."""
    namespace: Annotated[str, Flag("-n")] = ""
    """Namespace of the run, if it is on a cluster (kube context)."""
    chaosblade: bool = False
    """Let ChaosBlade's operator do it, on a cluster where it is installed."""
    yes: bool = False
    """Required on a cluster: confirms that this run may be harmed; with taint also all else that its machine runs."""
    runs: Path = Path("runs")
    """Directory of the run folders."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Chaos, run)
    parser.epilog = EXAMPLES


def run(flags: Chaos) -> int:
    """Inject the fault; returns the exit code. Raises BadInput."""
    from everstep.runtime.chaos import Kind, NotFiredError, NotPossibleError, cut_off, in_pod
    from everstep.runtime.chaos.injector import OF_THE_JOB

    if flags.kind not in tuple(Kind):
        raise BadInput(f"--kind {flags.kind}: not known; use {', '.join(Kind)}")
    if flags.kind == Kind.FAULTY:
        raise BadInput(
            "--kind faulty: nodes are checked before they train, and this training is under way; "
            "`python pipelines/chaos_drill.py --only faulty-at-start` does it in time"
        )
    if not 0 < flags.share <= 1 or not flags.seconds > 0:
        raise BadInput("--share must be above 0 and at most 1, --seconds above 0")
    if flags.chaosblade and not flags.namespace:
        raise BadInput("--chaosblade: its operator injects faults into pods: give --namespace, too")
    if flags.namespace and not flags.yes:
        raise BadInput(f"{flags.job} is on a cluster: give --yes to harm it")
    if flags.node and flags.kind in OF_THE_JOB:
        raise BadInput(f"--node {flags.node}: {flags.kind} happens to the whole job; leave --node out")
    if IN_STORE.fullmatch(flags.job):
        raise BadInput(
            f"{flags.job}: a store does not know where the nodes are that a fault is done to; give RUN[/STEP] with "
            "the --runs that has its folder, or RUN[/STEP] -n NAMESPACE of a cluster"
        )
    told: list[int] = []
    try:
        injection = _on_cluster(flags) if flags.namespace else _on_machine(flags)
        fault_record = asyncio.run(_until_told_to_end(injection, told))
    except asyncio.CancelledError:
        runs_on = flags.namespace and not flags.chaosblade and flags.kind in (*in_pod.KINDS, *cut_off.KINDS)
        rest = f"; what it started in the pod ends within {flags.seconds:g} s" if runs_on else ""
        print(f"{flags.kind}: told to end; what it held is released{rest}", file=sys.stderr)
        return 128 + told[0]
    except NotPossibleError as error:
        raise BadInput(f"{flags.kind} cannot be injected into {flags.job}: {error}") from None
    except NotFiredError as error:
        print(f"{flags.kind} did not fire: {error}", file=sys.stderr)
        return ExitCode.FAILED
    at = time.strftime("%H:%M:%S", time.localtime(fault_record.time))
    print(
        f"{fault_record.kind}{f' of {fault_record.node}' if fault_record.node else ''} at {at}: {fault_record.evidence}"
    )
    return ExitCode.DONE


async def _until_told_to_end(injection: "Coroutine[Any, Any, FiredFault]", told: list[int]) -> "FiredFault":
    """Inject it. SIGTERM, Ctrl-C and a terminal that is closed cancel it, so that it undoes what it did: once, that
    nothing cuts this short. `told` gets the signals."""
    task = asyncio.ensure_future(injection)

    def end(number: int) -> None:
        told.append(number)
        if len(told) == 1:
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # As under nohup.
            asyncio.get_running_loop().add_signal_handler(number, end, number)
    return await task


async def _on_machine(flags: Chaos) -> "FiredFault":
    from everstep.runtime.chaos.on_machine import MachineInjector
    from everstep.runtime.chaos.progress import Progress

    job_run = find(flags.runs, flags.job)
    _check(flags, job_run.state)
    run, _, step = flags.job.partition("/")
    if ended_at := run_end(flags.runs / run):
        raise BadInput(f"{flags.job}: its run ended at {ended_at}; `everstep workflow resume {run}` resumes it")
    progress = Progress(job_run.store, job_run.job, partial(_tell, flags.kind), job_run.state)
    injector = MachineInjector(flags.runs / run, step, progress, random.Random())
    return await injector.inject(_fault(flags))


async def _on_cluster(flags: Chaos) -> "FiredFault":
    from everstep.runtime.chaos.chaosblade import ChaosBladeInjector
    from everstep.runtime.chaos.on_cluster import ClusterInjector
    from everstep.runtime.chaos.progress import Progress
    from everstep.runtime.platform.kubernetes import KubeApi
    from everstep.runtime.submission.kube_config import read_access
    from everstep.runtime.submission.route import ApiError

    try:
        cluster_run = await asyncio.to_thread(find_on_cluster, flags.namespace, flags.job)
        access, _ = read_access(os.environ, flags.namespace)
    except ApiError as error:
        raise BadInput(f"{flags.job}: {error}") from None
    store, state = read_started(store_of(cluster_run.workflow), cluster_run.job, flags.job)
    _check(flags, state)
    step = cluster_run.job.removeprefix(f"{cluster_run.workflow['metadata']['uid']}-")
    async with KubeApi(access) as api:
        progress, chance = Progress(store, cluster_run.job, partial(_tell, flags.kind), state), random.Random()
        injector = (
            ChaosBladeInjector(api, progress, chance)
            if flags.chaosblade
            else ClusterInjector(api, step, progress, chance)
        )
        return await injector.inject(_fault(flags))


def _tell(kind: str, text: str) -> None:
    print(f"{kind} {text}", file=sys.stderr, flush=True)


def _check(flags: Chaos, state: "State") -> None:
    """Raises BadInput: the job is over, or has no such node."""
    if termination := state.ended:
        raise BadInput(f"{flags.job}: its training is over ({termination.result.value}: {termination.reason})")
    if flags.node and flags.node not in state.nodes:
        raise BadInput(f"--node {flags.node}: no such node; `everstep status {flags.job}` shows them")


def _fault(flags: Chaos) -> "Fault":
    from everstep.runtime.chaos import Fault, Kind

    return Fault(Kind(flags.kind), flags.node, flags.seconds, flags.share)

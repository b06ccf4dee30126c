"""The step's process: the job's master runs here; its nodes (see `nodes`) are agents that outlive it.

When told to end (SIGTERM), it removes its nodes only if the run was stopped for good (among others, `spec.shutdown` of
the workflow); otherwise they keep training, and a retry of the step takes them over.
"""

import asyncio
import functools
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.platform import POD_VARIABLE
from everstep.runtime.store.code import script_name
from everstep.steps.entry import Result, StepError, Terminated, disk_error_line
from everstep.steps.model.directory import TINY
from everstep.steps.progress import write_for_argo
from everstep.steps.train.config import COMMAND_SCRIPT, Config
from everstep.steps.train.job import job_of
from everstep.steps.train.memory import require_memory
from everstep.steps.train.nodes import NodeBackend, node_backend, serve_node_checks, stop_on_request

if TYPE_CHECKING:
    from everstep.runtime.job.spec import JobSpec
    from everstep.runtime.master import AgentCommand, Outcome, Progress
    from everstep.runtime.store import Store

RUN_DIR_VARIABLE = "EVERSTEP_RUN_DIR"
FINAL_STATES = ("succeeded", "failed", "no_quorum")
"""Final states: no later master takes the job's nodes over."""
NO_CHECKPOINT = "after a fault it begins again, and no step can read its state; everstep.Checkpointer keeps it"
TAKE_BACK_S = 30.0
"""How long an agent that stands in has the job: what keeps the agents from this process may not be over."""
LINES_EVERY_S = 0.5
"""A line of progress at most this often."""


def run(config: Config) -> Result:
    """Train to the end. Raises StepError: 1 the script's own error, 3 too few nodes, 75 a retry may succeed."""
    from everstep.runtime.master import CannotListen, JournalError
    from everstep.runtime.platform.kubernetes import KubeError
    from everstep.runtime.store import StoreError, open_store

    config = config.with_default_cadence()
    if not config.dataset and not config.script:
        raise StepError("--dataset: missing; give the URI that everstep.steps.preprocess printed")
    if config.model == TINY and not config.script:
        print("model tiny: random weights, trained from scratch", file=sys.stderr)
    store, spec = open_store(config.store), _fit_to_machine(job_of(config))
    if not config.script and not os.environ.get(POD_VARIABLE):
        from everstep.runtime.platform.devices import machine_devices

        devices = machine_devices(os.environ)
        require_memory(config, spec, devices, config.model, config.known_tokens(), f"--dataset {config.dataset}")
    began, folder = time.time(), Path(os.environ.get(RUN_DIR_VARIABLE, f"runs/{config.run}")).absolute()
    iterations = config.iterations if config.script_settings else 0
    lines = ProgressLines(iterations, sys.stderr, time.monotonic, os.environ)
    try:
        outcome = asyncio.run(_train(config, spec, store, folder, lines.show))
    except (StoreError, JournalError) as error:
        raise StepError(f"--store {config.store}: {error}", ExitCode.TRY_AGAIN) from None
    except CannotListen as error:
        raise StepError(str(error)) from None
    except KubeError as error:
        raise StepError(str(error), ExitCode.TRY_AGAIN if error.passing else ExitCode.BAD_INPUT) from None
    except Exception as error:
        if isinstance(error, OSError) and disk_error_line(error, config.store):
            raise
        log = folder / "logs" / f"{spec.job}.master.log"
        raise StepError(_unexpected_error_line(error, log), ExitCode.TRY_AGAIN) from None
    if outcome.state == "stopped":
        print(stopped_line(outcome), file=sys.stderr)
        raise Terminated
    if outcome.state != "succeeded":
        raise StepError(_failure(config, outcome), outcome.exit_code)
    return _result(
        config, spec, store, outcome, {"loss": lines.loss, "seconds": round(time.time() - began, 2)}, lines.rate
    )


def _fit_to_machine(spec: "JobSpec") -> "JobSpec":
    """The spec with no more nodes than this machine has devices for, if it has any. Raises StepError."""
    from everstep.runtime.platform.devices import TooFewDevices, fit_to_devices, machine_devices

    if POD_VARIABLE in os.environ:
        return spec
    try:
        fitted_spec, lines = fit_to_devices(spec, machine_devices(os.environ))
    except TooFewDevices as error:
        raise StepError(str(error)) from None
    for line in lines:
        print(line, file=sys.stderr)
    return fitted_spec


def _result(
    config: Config,
    spec: "JobSpec",
    store: "Store",
    outcome: "Outcome",
    measurements: Mapping[str, float | None],
    rate: float | None,
) -> Result:
    """Raises StepError if our own script left no checkpoint."""
    from everstep.runtime.data.results import read_results

    if outcome.checkpoint is None and not config.script:
        raise StepError("trained to the end, but no checkpoint was committed", 1)
    if outcome.checkpoint is None:
        print(f"{config.script_path().name} keeps no checkpoint: {NO_CHECKPOINT}", file=sys.stderr)
    results = read_results(store, spec.job)
    facts = {
        **round_counts(store, spec.job),
        **reported_settings(config, spec),
        **measurements,
        "iterations": outcome.iterations,
        **({"checkpoint": f"{store.uri}/{outcome.checkpoint}"} if outcome.checkpoint else {}),
        "parameters": checkpoint_parameters(store, outcome.checkpoint) if outcome.checkpoint else None,
        **({"results": results} if results else {}),
    }
    tokens = None if rate is None or config.script else rate * config.global_batch * config.sequence_length
    outputs = {
        "loss": "" if facts["loss"] is None else f"{facts['loss']:g}",
        "restarts": str(facts["restarts"]),
        "goodput": "" if (good := goodput_of(store, spec.job)) is None else f"{good:.4f}",
        "tokens_per_second": "" if tokens is None else f"{tokens:g}",
        "checkpoint": f"{store.uri}/{outcome.checkpoint}" if outcome.checkpoint else "",
        "iterations": str(outcome.iterations),
        "results": json.dumps(results, sort_keys=True),
    }
    return Result(_summary(facts), outputs, facts)


async def _train(
    config: Config, spec: "JobSpec", store: "Store", folder: Path, show: "Callable[[Progress], None]"
) -> "Outcome":
    stop_requested, stop = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop_requested.set)
    loop.add_signal_handler(signal.SIGINT, stop_requested.set)
    async with (
        node_backend(config, spec, folder, os.environ) as place,
        serve_node_checks(config, place) as (port, check),
    ):
        hearing = asyncio.create_task(stop_on_request(stop_requested, stop, place))
        try:
            outcome = await _be_master(config, store, place, port, check, stop, hearing.result, show)
            if place.release and (outcome.state in FINAL_STATES or (outcome.state == "stopped" and hearing.result())):
                await place.release()
            return outcome
        finally:
            hearing.cancel()


async def _be_master(
    config: Config,
    store: "Store",
    place: NodeBackend,
    port: int,
    check: list[str],
    stop: asyncio.Event,
    for_good: Callable[[], bool],
    show: "Callable[[Progress], None]",
) -> "Outcome":
    """Run the job's master until its end, also after an agent has stood in for it meanwhile."""
    from everstep.runtime.master import Control, ListenAddress, is_stood_in_for, run

    agents = _agent_command(config, place, check)
    while True:
        control = Control(stop, for_good, place.sizes() if place.sizes else None, show)
        at = ListenAddress(place.address, port)
        outcome = await run(place.spec, store, place.platform, place.credentials, agents, control, at)
        if outcome.state != "fenced" or not await asyncio.to_thread(is_stood_in_for, store, place.spec.job):
            return outcome
        line = f"a node stands in for this step, which did not answer; the step takes the job back in {TAKE_BACK_S:g} s"
        print(line, file=sys.stderr, flush=True)
        with suppress(TimeoutError):
            async with asyncio.timeout(TAKE_BACK_S):
                await stop.wait()


def _agent_command(config: Config, place: NodeBackend, check: list[str]) -> "AgentCommand":
    from everstep.runtime.job.pod_template import command_of
    from everstep.runtime.master import AgentCommand
    from everstep.runtime.protocol.rounds import Framework

    spec = place.spec
    flags = [
        *(["--preload=everstep.training"] if spec.framework in (Framework.PYTORCH, Framework.VOLCANO) else []),
        *(["--stands-in"] if place.has_pods else []),
        f"--persist-interval={config.persist_interval}",
        f"--checkpoint-overhead={config.checkpoint_overhead}",
        f"--persist-bytes-per-s={config.persist_bytes_per_s}",
        f"--max-restarts={spec.patience.max_restarts}",
        f"--spares={config.spares}",
    ]
    kind = "--any-script" if config.script else "--has-beacon"
    own = {name: command for name, role in spec.roles.items() if (command := command_of(role.template))}
    return AgentCommand(
        [*check, *flags, kind, "--", config.script_of_nodes(), *config.script_arguments()],
        {
            name: [*check, *flags, "--any-script", "--", str(COMMAND_SCRIPT), json.dumps({name: command})]
            for name, command in own.items()
        },
        {**place.environment, **config.script_variables()},
    )


class ProgressLines:
    """`iteration 140/200  loss 3.71  2 nodes  stall 0.3 %`: at most two lines a second; a new reason at once.

    Argo gets the iterations done, of all, if it is known how many they are.
    """

    def __init__(
        self, iterations: int, stream: TextIO, clock: Callable[[], float], environment: Mapping[str, str]
    ) -> None:
        """`iterations`: of the whole training; 0: the script decides."""
        self._environment = environment
        self.loss: float | None = None
        """The newest report."""
        self._first: tuple[float, int] | None = None
        self.rate: float | None = None
        """Iterations a second from the first that was reported to the newest; None: fewer than two were."""
        self._iterations = iterations
        self._stream = stream
        self._clock = clock
        self._next = 0.0
        self._reason = ""

    def show(self, progress: "Progress") -> None:
        """Take the newest progress; print it when its time has come."""
        self.loss = progress.loss if progress.loss is not None else self.loss
        if progress.iteration:
            moment = self._clock()
            began, before = self._first = self._first or (moment, progress.iteration)
            if moment > began and progress.iteration > before:
                self.rate = (progress.iteration - before) / (moment - began)
        if progress.reason != self._reason:
            self._reason = progress.reason
            print(progress.reason, file=self._stream, flush=True)
        if self._clock() < self._next or not progress.iteration:
            return
        self._next = self._clock() + LINES_EVERY_S
        write_for_argo(progress.iteration, self._iterations, self._environment)
        of_all = f"/{self._iterations}" if self._iterations else ""
        words = [f"iteration {progress.iteration}{of_all}"]
        if progress.loss is not None:
            words.append(f"loss {progress.loss:.2f}")
        words.append(f"{progress.nodes} node{'' if progress.nodes == 1 else 's'}")
        if progress.stall is not None:
            words.append(f"stall {progress.stall:.1f} %")
        print("  ".join(words), file=self._stream, flush=True)


def _unexpected_error_line(error: Exception, log: Path) -> str:
    """One line for an unforeseen error; its traceback goes to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        traceback.print_exception(error, file=file)
    words = " ".join(str(error).split())
    what = f"{type(error).__name__}: {words}" if words else type(error).__name__
    return f"the master failed; its nodes train on and wait for the next one: {what}; traceback in {log}"


def stopped_line(outcome: "Outcome") -> str:
    """Where a stopped job continues, and what it has lost."""
    from everstep.runtime.checkpoint.stored.keys import parse_folder

    if outcome.trains_on:
        return "stopped; its nodes train on and wait for the next start (EVERSTEP_DEAD_MAN_S, 300 s)"
    place = parse_folder(outcome.checkpoint.rpartition("/")[2]) if outcome.checkpoint else None
    stored_iteration = place[1] if place else 0
    if not outcome.iterations:
        return "stopped before the first iteration"
    if stored_iteration and stored_iteration >= outcome.iterations - 1:  # That one was being computed.
        return (
            f"stopped; the state of iteration {stored_iteration} is in the store, the next start continues from there"
        )
    where = (
        f"the newest checkpoint is of iteration {stored_iteration}" if stored_iteration else "there is no checkpoint"
    )
    return f"stopped at iteration {outcome.iterations}; {where}, the next start repeats what came after it"


def _failure(config: Config, outcome: "Outcome") -> str:
    """The reason, and below it the first failing rank's traceback."""
    last = f"; newest checkpoint: {outcome.checkpoint}" if outcome.checkpoint else ""
    error = f"\n{outcome.error.rstrip()}" if outcome.error else ""
    return f"{config.script_path().name}: {outcome.reason}{last}{error}"


def _summary(facts: dict[str, Any]) -> str:
    from everstep.runtime.data.results import in_words

    words = [f"{facts['iterations']} iterations"] if facts["iterations"] else ["the script has ended"]
    if facts["loss"] is not None:
        words.append(f"loss {facts['loss']:.2f}")
    if facts["parameters"]:
        million = facts["parameters"] / 1e6
        words.append(f"{million:.1f} M parameters" if million >= 0.1 else f"{facts['parameters']} parameters")
    words += [in_words(facts["results"])] if facts.get("results") else []
    if facts["restarts"]:
        words.append(f"{facts['restarts']} restart{'' if facts['restarts'] == 1 else 's'}")
    return "  ".join(words)


def reported_settings(config: Config, spec: "JobSpec") -> dict[str, Any]:
    """The settings that the report shows."""
    nodes = sum(role.nodes for role in spec.roles.values())
    return {"nodes": nodes, "model": script_name(config.script) if config.script else config.model, "job": spec.job}


def round_counts(store: "Store", job: str) -> dict[str, int]:
    """Rounds, restarts and masters, counted from the job's journal.

    A restart is a broken round; rounds whose checkpoint was skipped as damaged do not count, because they did nothing.
    """
    from everstep.runtime.job.reasons import Reason
    from everstep.runtime.job.records import MasterClaimed, RoundBroken, RoundFormed
    from everstep.runtime.master import read_journal

    records = list(read_journal(store, job))
    record_kinds = {"rounds": RoundFormed, "restarts": RoundBroken, "masters": MasterClaimed}
    counts = {name: sum(isinstance(record, kind) for record in records) for name, kind in record_kinds.items()}
    passed_over = [r for r in records if isinstance(r, RoundBroken) and r.reason is Reason.DAMAGED]
    return {**counts, "restarts": counts["restarts"] - len(passed_over)}


def goodput_of(store: "Store", job: str) -> float | None:
    """The share of the nodes' seconds that was good, as the report says; None: unknown."""
    from everstep.runtime.report import read_job
    from everstep.runtime.report.job_view import view

    history = read_job(store, job).jobs.get(job)
    span = view(job, history, [], time.time(), draws=False).ledger if history else None
    return span.goodput if span else None


def checkpoint_parameters(store: "Store", checkpoint: str) -> int | None:
    """The number of parameters under `model` of a checkpoint, from its safetensors header; None if there are none."""
    from everstep.runtime.checkpoint.stored.manifest import read_commit

    key = read_commit(store, checkpoint).holdings(checkpoint)[0].key
    length = int.from_bytes(store.get(key, 0, 8), "little")
    header = json.loads(store.get(key, 8, length))
    shapes = [entry["shape"] for name, entry in header.items() if name.startswith("model.")]
    return sum(functools.reduce(int.__mul__, shape, 1) for shape in shapes) or None

"""`everstep simulate`: policies side by side on thousands of nodes, in virtual time, decided by the real brain."""

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from everstep.errors import BadInput
from everstep.flags import Flag, add_action

if TYPE_CHECKING:
    from everstep.runtime.simulation import Costs, Outcome, Policy, Trace

EXAMPLES = """\
examples:
  everstep simulate --nodes 2048 --days 7
  everstep simulate --nodes 10000 --burst-hours 24 --policies 'mine: spares=16, shrink-after=60; other: stage=10'

a trace file has lines HOURS MACHINE[-MACHINE] node|silent|process REPAIR_HOURS, such as: 9.5 32-63 silent 2"""
HOUR = 3600.0
SAY_EVERY_S = 2.0
"""Seconds between two lines about how far a simulation is."""


@dataclass(frozen=True)
class Simulate:
    """Simulate a job under faults: goodput, nodes used, work wasted of each policy. The same seed, the same table."""

    nodes: int = 2048
    """Nodes of the job."""
    days: float = 7.0
    """How long it trains."""
    policies: str = ""
    """NAME: FIELD=VALUE, ...; NAME: ... with the fields spares, join-window, shrink-after, cooldown, restart-cost,
    min-share, stage, persist, check and costs; empty: a few that differ in one field."""
    costs: str = "16k-gpus"
    """What a restart costs: local, 16k-gpus, 16k-gpus-dlrover, 16k-gpus-torchrun, or a JSON file with such fields."""
    trace: Path | None = None
    """File with the failures, instead of drawing them."""
    mtbf_hours: float = 6349.0
    """Mean time between failures of one machine; 0: none fails. The default is one failure every 3.1 h on 2,048
    machines, as published for Llama 3."""
    burst_hours: float = 0.0
    """Mean time between losses of a whole switch; 0: never."""
    burst_machines: int = 32
    """Machines under one switch."""
    bad_share: float = 0.0
    """Share of the machines that fail 20 times as often."""
    repair_hours: float = 4.0
    """Mean time to repair a machine."""
    seed: int = 0
    """Seed of the failures."""
    output: Annotated[Literal["text", "json"], Flag("-o")] = "text"
    """For people, or programs."""
    picture: Path | None = None
    """SVG file to write."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_action(parser, Simulate, run)
    parser.epilog = EXAMPLES


def run(flags: Simulate) -> int:
    """Simulate each policy and print the table; returns the exit code. Raises BadInput."""
    from everstep.runtime.simulation import simulate
    from everstep.runtime.simulation.draw import draw

    policies = _policies(flags.policies)
    costs_by_policy = {policy.name: _costs(policy.costs or flags.costs) for policy in policies}
    trace = _trace(flags, flags.nodes + max(policy.spares for policy in policies))
    if flags.picture:
        _write(flags.picture, "", "a")  # Before minutes of simulation that it cannot hold.
    outcomes = []
    for policy in policies:
        began = time.process_time()
        outcomes.append(simulate(flags.nodes, trace, policy, costs_by_policy[policy.name], _progress(policy.name)))
        print(f"{policy.name}: simulated in {time.process_time() - began:.1f} s of CPU time", file=sys.stderr)
    if flags.picture:
        title = f"{flags.nodes} nodes, {flags.days:g} days, {len(trace.failures)} failures, seed {flags.seed}"
        _write(flags.picture, draw(outcomes, title), "w")
    print(json.dumps([facts(outcome) for outcome in outcomes], indent=1) if flags.output == "json" else table(outcomes))
    return 0


def _progress(name: str) -> Callable[[float], None]:
    """Says now and then how much of that policy is simulated, and how long the rest will take."""
    began = told_at = time.monotonic()

    def tell(share: float) -> None:
        nonlocal told_at
        now = time.monotonic()
        if now >= told_at + SAY_EVERY_S:
            told_at = now
            left_s = (now - began) * (1 - share) / share
            print(f"{name}: {share:.0%} simulated, {left_s:.0f} s left", file=sys.stderr, flush=True)

    return tell


def _write(picture: Path, text: str, mode: Literal["a", "w"]) -> None:
    """Write it, or append to it. Raises BadInput."""
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        with picture.open(mode) as file:
            file.write(text)
    except OSError as error:
        raise BadInput(f"--picture {picture}: {error.strerror}") from None


def facts(outcome: "Outcome") -> dict[str, object]:
    """One outcome as JSON."""
    whole = {field.name: getattr(outcome, field.name) for field in dataclasses.fields(outcome)}
    more = {
        "goodput": outcome.goodput,
        "mean_nodes": outcome.mean_nodes,
        "median_recovery_s": outcome.median_recovery_s,
    }
    return {**{name: value for name, value in whole.items() if name not in ("samples", "recoveries")}, **more}


def table(outcomes: "list[Outcome]") -> str:
    """A line for each policy."""
    head = ["POLICY", "GOODPUT", "NODES TRAINING", "MACHINES", "FAILURES", "ROUNDS", "RECOVERY (MEDIAN)", "DOWN",
            "WORK WASTED", "STALLS", "FROM THE STORE"]  # fmt: skip
    rows = [head]
    for outcome in outcomes:
        rows.append(
            [
                outcome.policy, f"{outcome.goodput:.2%}", f"{outcome.mean_nodes:.0f} of {outcome.nodes}",
                str(outcome.machines), str(outcome.failures), str(outcome.rounds), f"{outcome.median_recovery_s:.1f} s",
                *(_share(value, outcome.seconds) for value in (outcome.down_s, outcome.wasted_s, outcome.stall_s)),
                str(outcome.store_restores),
            ]
        )  # fmt: skip
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *(f"{outcome.policy} ended: {outcome.result}" for outcome in outcomes if outcome.result)])


def _share(seconds: float, whole: float) -> str:
    return f"{seconds / whole:.2%}"


def _policies(text: str) -> "list[Policy]":
    from everstep.runtime.simulation import POLICIES, parse_policy

    try:
        policies = [parse_policy(part) for part in text.split(";") if part.strip()] or list(POLICIES)
    except ValueError as error:
        raise BadInput(f"--policies: {error}") from None
    names = [policy.name for policy in policies]
    if twice := {name for name in names if names.count(name) > 1}:
        raise BadInput(f"--policies: {', '.join(sorted(twice))} is named twice")
    if any(policy.stage < 1 or policy.persist <= 0 or not 0 < policy.min_share <= 1 for policy in policies):
        raise BadInput("--policies: stage must be at least 1, persist above 0, min-share above 0 and at most 1")
    return policies


def _costs(name: str) -> "Costs":
    import msgspec

    from everstep.runtime.simulation import COSTS, Costs

    if name in COSTS:
        return COSTS[name]
    try:
        content = Path(name).read_bytes()
        costs = msgspec.json.decode(content, type=Costs)
        if unknown := msgspec.json.decode(content).keys() - dataclasses.asdict(costs).keys():
            raise BadInput(
                f"--costs {name}: {', '.join(sorted(unknown))}: no such field; there are "
                f"{', '.join(field.name for field in dataclasses.fields(costs))}"
            )
    except OSError:
        raise BadInput(f"--costs {name}: not known, and no such file; use {', '.join(COSTS)} or a JSON file") from None
    except msgspec.DecodeError as error:
        raise BadInput(f"--costs {name}: {error}") from None
    seconds = {field: value for field, value in dataclasses.asdict(costs).items() if field.endswith("_s")}
    if wrong := [field for field, value in seconds.items() if value < 0 or not seconds["iteration_s"]]:
        raise BadInput(f"--costs {name}: {wrong[0]}: seconds cannot be negative, and an iteration takes some")
    return costs


def _trace(flags: Simulate, machines: int) -> "Trace":
    from everstep.runtime.simulation import draw_trace, parse_trace
    from everstep.runtime.simulation.trace import Rates

    if flags.nodes < 1 or not 0 < flags.days < math.inf:
        raise BadInput("--nodes must be at least 1, --days above 0")
    if not 0 <= flags.bad_share < 1 or flags.burst_machines < 1 or not 0 < flags.repair_hours < math.inf:
        raise BadInput("--bad-share must be from 0 to below 1, --burst-machines at least 1, --repair-hours above 0")
    if not 0 <= flags.mtbf_hours < math.inf or not 0 <= flags.burst_hours < math.inf:
        raise BadInput("--mtbf-hours and --burst-hours must be hours, or 0: never")
    if flags.trace is None:
        rates = Rates(
            flags.mtbf_hours, burst_h=flags.burst_hours, burst_machines=flags.burst_machines, bad_share=flags.bad_share,
            repair_h=flags.repair_hours,
        )  # fmt: skip
        return draw_trace(machines, flags.days * 24 * HOUR, rates, flags.seed)
    try:
        trace = parse_trace(flags.trace.read_text().splitlines(), machines, flags.days * 24 * HOUR)
    except OSError as error:
        raise BadInput(f"--trace {flags.trace}: {error.strerror}") from None
    except ValueError as error:
        raise BadInput(f"--trace {flags.trace}: {error}") from None
    if trace.left_out:
        failures = f"{trace.left_out} of its {trace.left_out + len(trace.failures)} failures"
        why = f"after the {flags.days:g} days that are simulated; give more --days"
        print(f"--trace {flags.trace}: left out {failures}: {why}", file=sys.stderr)
    return trace

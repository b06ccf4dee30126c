"""Liveness as a property: with a fair network from some moment on, every job reaches an end.

`python -m tests.job.liveness --sequences 1000000 --seed 1 [--processes N]` runs random sequences of `simulated`, over
all cores, and prints the seed and number of each that breaks a rule. `--only NUMBER` runs one of them again, and shows
it with the fewest faults that still break one. Exit code 1 where there was one.
"""

import argparse
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace

from msgspec.structs import replace as replace_

from everstep.runtime.job.snapshot import decode_snapshot, encode_snapshot
from everstep.runtime.job.spec import (
    EndingPolicy,
    FaultRule,
    Hang,
    HangPolicy,
    JobSpec,
    Oom,
    Patience,
    Placement,
    Resources,
    RestartPolicy,
    RestartScope,
    RoleSpec,
    StragglerPolicy,
)
from tests.job.simulated import KINDS, Fault, Plan, Simulation, check_replay

GIB = 1 << 30
PATIENCE = Patience(join_timeout_s=120.0, join_window_s=20.0, no_progress=6)
HANG = Hang(HangPolicy.RESTART, 40.0, 90.0)
BY_THEMSELVES = Placement.JOINED
SPECS = (
    JobSpec("j", {"worker": RoleSpec(3, 2)}, PATIENCE, hang=HANG, stragglers=StragglerPolicy.REPLACE),
    JobSpec("j", {"worker": RoleSpec(2, 2)}, PATIENCE, hang=HANG),
    JobSpec("j", {"worker": RoleSpec(2, 1, max_nodes=4, scale_out_timeout_s=20.0)}, PATIENCE, hang=HANG),
    JobSpec("j", {"worker": RoleSpec(4, 2, node_unit=2)}, PATIENCE, hang=HANG),
    JobSpec("j", {"worker": RoleSpec(2, 1)}, replace_(PATIENCE, max_restarts=1), hang=HANG, hosts=""),
    JobSpec("j", {"worker": RoleSpec(3, 2)}, replace_(PATIENCE, max_relaunches=1), hang=HANG, hosts=""),
    JobSpec(
        "j",
        {
            "chief": RoleSpec(1, 1, waits_for=("worker",), restart_scope=RestartScope.REPLICA),
            "worker": RoleSpec(
                2, 1, resources=Resources(memory_bytes=4 * GIB), restart_limit=9, fail_policy=EndingPolicy.ALL,
                fault_rules=(FaultRule(exit_codes=(137,), restart_scope=RestartScope.ALL),),
            ),
        },
        PATIENCE, hang=Hang(HangPolicy.FAIL, 40.0, 90.0), oom=Oom(limit_bytes=16 * GIB),
    ),
    JobSpec(
        "j", {"worker": RoleSpec(2, 1, restart_policy=RestartPolicy.ON_NODE_FAIL, fail_policy=EndingPolicy.ANY)},
        PATIENCE, hang=HANG,
    ),
    JobSpec("j", {"worker": RoleSpec(2, 2)}, PATIENCE, hang=HANG, placement=BY_THEMSELVES),
    JobSpec(
        "j", {"worker": RoleSpec(3, 1)}, PATIENCE, hang=HANG, placement=BY_THEMSELVES,
        stragglers=StragglerPolicy.REPLACE,
    ),
    JobSpec("j", {"worker": RoleSpec(3, 2, node_unit=1)}, PATIENCE, hang=HANG, placement=BY_THEMSELVES),
)  # fmt: skip


def draw(seed: int, number: int) -> Plan:
    """One sequence of that seed."""
    chance = random.Random(f"{seed}/{number}")
    fair_at = 1000.0 + chance.choice((20.0, 60.0, 120.0, 300.0))
    usual = [kind for kind in KINDS if kind != "stop"]
    kinds_drawn = chance.sample(usual, chance.randint(1, 4)) + ["stop"] * (chance.random() < 0.1)
    faults = tuple(
        Fault(chance.uniform(1000.0, fair_at), chance.choice(kinds_drawn), chance.random(), chance.random())
        for _ in range(chance.choice((1, 2, 4, 8)))
    )
    return Plan(
        seed=f"{seed}/{number}",
        spec=chance.choice(SPECS),
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
        fair_at=fair_at,
        iterations=chance.choice((3, 10, 40)),
        sharded=chance.random() < 0.3,
        has_beacon=chance.random() < 0.8,
    )


def run(plan: Plan) -> Simulation:
    """Raises Violation, or whatever the brain raises."""
    sim = Simulation(plan)
    state = sim.run()
    assert state.ended
    sim.count(f"ended: {state.ended.result.value}")
    chance = random.Random(plan.seed)
    if chance.random() < 0.2:
        check_replay(sim, chance)
        assert decode_snapshot(encode_snapshot(state)) == state
    return sim


def problem(plan: Plan) -> str:
    """What it breaks, one line; empty when it keeps all rules."""
    try:
        run(plan)
    except Exception as error:  # noqa: BLE001 (whatever it is, it is told with the sequence that brings it)
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({os.path.basename(place.filename)}:{place.lineno})"
    return ""


def shrunk(plan: Plan) -> Plan:
    """The same with as few faults as still break a rule."""
    at = 0
    while at < len(plan.faults):
        fewer = replace(plan, faults=plan.faults[:at] + plan.faults[at + 1 :])
        if problem(fewer):
            plan = fewer
        else:
            at += 1
    return plan


def explore(seed: int, numbers: range) -> tuple[int, Counter[str], list[tuple[int, str]]]:
    """(sequences run, what happened how often, (number, problem) of each that breaks a rule)."""
    fired, broken = Counter[str](), []
    for number in numbers:
        plan = draw(seed, number)
        try:
            fired.update(run(plan).fired)
        except Exception:  # noqa: BLE001 (as above)
            broken.append((number, problem(plan)))
    return len(numbers), fired, broken


def explore_all(seed: int, sequences: int, processes: int, first: int = 0) -> Iterator[tuple[int, Counter[str], list]]:
    """What each part of them gave, as it is known."""
    size = max(1, min(500, sequences // (4 * processes) or 1))
    parts = [range(at, min(at + size, first + sequences)) for at in range(first, first + sequences, size)]
    with ProcessPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(explore, seed, part) for part in parts]):
            yield future.result()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.job.liveness", description=__doc__)
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first sequence")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, help="run this one again, and show the fewest faults that break a rule")
    options = parser.parse_args()
    if options.only is not None:
        plan = shrunk(draw(options.seed, options.only))
        print(plan, problem(plan) or "keeps all rules", sep="\n")
        return bool(problem(plan))
    began, count_done, fired, violations = time.monotonic(), 0, Counter[str](), 0
    for count, happened, broken in explore_all(options.seed, options.sequences, options.processes, options.first):
        count_done, violations = count_done + count, violations + len(broken)
        fired.update(happened)
        for number, why in broken:
            print(f"BROKEN --seed {options.seed} --only {number}: {why}", flush=True)
        rate = count_done / (time.monotonic() - began)
        print(
            f"{count_done} of {options.sequences} sequences, {violations} broken, {rate:.0f} a second",
            file=sys.stderr,
            flush=True,
        )
    print(f"seed {options.seed}: {count_done} sequences, {violations} broken")
    print(", ".join(f"{what} {count}" for what, count in sorted(fired.items())))
    return bool(violations)


if __name__ == "__main__":
    sys.exit(main())

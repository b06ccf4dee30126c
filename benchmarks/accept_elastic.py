"""`make accept-elastic`: every promise of the elastic runtime: wanted, measured, holds or not. Exit code 1 if not all.

    python -m benchmarks.accept_elastic                   # all
    python -m benchmarks.accept_elastic straggler hang    # the lines that have one of these words

Times and loads are measured here, first and by the benchmarks of this folder; the rest is proven by tests, each of
which runs once.
"""

import argparse
import resource
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

from benchmarks import master, node_check, recovery
from benchmarks.acceptance import Line, is_asked, judge, parse_options, prove

LAUNCH, JOB, AGENT, MASTER = "tests/launch/", "tests/job/", "tests/agent/", "tests/master/"
DIAGNOSIS, SURVIVAL, FACE, TRAIN = "tests/diagnosis/", "tests/survival/", "tests/face/", "tests/train/"
NODES, CHECKED = f"{LAUNCH}test_nodes.py", f"{LAUNCH}test_checked.py"
WATCHING, ROUNDS = f"{LAUNCH}test_watching.py", f"{AGENT}test_agent_rounds.py"
TRAINING = f"{SURVIVAL}test_training_survives.py"

LAUNCHING = {
    "launch: every flag of torch's own parser, and dlrover-run's": (f"{LAUNCH}test_flags.py",),
    "launch: --logs-specs, --event-log-handler, --numa-binding mean the same": (f"{LAUNCH}test_torchs_hooks.py",),
    "launch: torchrun's environment, logs in whole lines, error files, exit codes": (
        f"{LAUNCH}test_like_torchrun.py", f"{LAUNCH}test_teed_lines.py",
    ),
    "launch: --standalone, MIN:MAX, --rdzv-conf, etcd refused by name": (f"{LAUNCH}test_options.py",),
    "launch: nodes that find each other; NODE_RANK and DLROVER_MASTER_ADDR": (
        f"{NODES}::find_each_other", f"{NODES}::node_rank", f"{NODES}::backend", f"{NODES}::number",
    ),
    "launch: DDP, FSDP and RPC scripts run unchanged": (f"{LAUNCH}test_scripts.py::unchanged",),
    "launch: the fork server; 8 local ranks import once": (
        f"{AGENT}test_fork_server.py", f"{LAUNCH}test_scripts.py::import_once",
    ),
}  # fmt: skip
SPEC = {
    "spec: roles and policies in YAML or Python, refused by name and line": (
        f"{JOB}test_spec_reader.py", f"{TRAIN}test_train_spec.py", f"{LAUNCH}test_roles.py",
        f"{TRAIN}test_train_job.py",
    ),
    "spec: what each policy does": (
        f"{JOB}test_limits.py", f"{JOB}test_job_rules.py", f"{JOB}test_fault_table.py", f"{TRAIN}test_train_step.py",
    ),
    "spec: resources, priority and extras reach the nodes": (
        "tests/platform/test_node_limits.py", f"{MASTER}test_master_run.py::platform_is_told",
    ),
    "status: conditions with reason, message, time; everstep status": (
        f"{JOB}test_conditions.py", f"{FACE}test_status_command.py",
    ),
}  # fmt: skip
MEMBERSHIP = {
    "rounds: node unit, topology, cool-down, windows, gang, extras, a role that waits; hosts in rank order": (
        f"{JOB}test_membership.py", f"{JOB}test_topology.py", f"{JOB}test_roster.py",
    ),
    "scale RUN: 2 -> 1 -> 2 nodes, every sample once; without a master it says what to do": (
        f"{SURVIVAL}test_samples.py", f"{FACE}test_scale_command.py",
    ),
    "leaving: a preemption notice hands over, then leaves": (
        f"{JOB}test_leaving.py", f"{ROUNDS}::leav", f"{NODES}::leave", f"{LAUNCH}test_resuming.py::told_to_end",
        f"{TRAIN}test_train_leaving.py",
    ),
}  # fmt: skip
FAULTS = {
    "docs/faults.md is the table of the code": (f"{JOB}test_fault_table.py::rendered",),
    "a worker crashes at each named point: equal weights": (f"{TRAINING}::worker_killed",),
    "a node is lost": (f"{TRAINING}::node_lost", f"{NODES}::killed_node"),
    "a node that cannot start, faulty hardware, a frozen agent: replaced on another host": (
        f"{TRAINING}::faulty_node", f"{TRAINING}::cannot_start",
    ),
    "a replacement in a train step is checked before it joins": (f"{TRAINING}::unfit_one",),
    "a slow node is left out": (f"{CHECKED}::straggler",),
    "a faulty node at the start, and one that comes later": (f"{CHECKED}::faulty", f"{CHECKED}::comes_later"),
    "network loss: done without, and back again, every sample once; or ended by its dead man": (
        f"{SURVIVAL}test_network_cut.py", f"{LAUNCH}test_network_loss.py", f"{ROUNDS}::packets_vanish",
    ),
    "3 -> 4 -> 3 nodes, every sample once": (f"{LAUNCH}test_samples_follow.py",),
    "out of memory: the cgroup's own count; twice as much the next time": (
        f"{AGENT}test_agent_watching.py::group", f"{WATCHING}::memory", f"{TRAIN}test_train_memory.py",
    ),
    "a hang: the stacks of all ranks first, then the policy": (
        f"{JOB}test_hang.py", f"{ROUNDS}::dump", f"{WATCHING}::hang", f"{AGENT}test_agent_watching.py::still",
    ),
}  # fmt: skip
CHECKING = {
    "check: up to N/4 faulty nodes named exactly, by enumeration to N = 16": (f"{DIAGNOSIS}test_check_rounds.py",),
    "check: alone, as a step, inside the job; switchbox refused without devices": (
        "tests/check/", DIAGNOSIS, CHECKED, "!between_two_devices",
    ),
}  # fmt: skip
MASTERS = {
    "the master killed at any write, or asleep through a takeover": (f"{MASTER}test_master_dies.py",),
    "a master that is gone is followed by one that replays and adopts": (MASTER, "!test_master_dies.py"),
    "workers never stop meanwhile": (
        f"{NODES}::killed_master", f"{NODES}::takes_over", f"{TRAINING}::step_killed", f"{TRAINING}::step_is_gone",
    ),
    "orders of everything in virtual time": (f"{JOB}test_job_properties.py", f"{JOB}test_snapshot.py"),
}  # fmt: skip
BAD_INPUT = {
    "a wrong token 401, malformed or oversized 400, another job 409": (
        f"{MASTER}test_endpoints.py", f"{MASTER}test_server.py", f"{ROUNDS}::another_jobs_master",
    ),
    "a port in use, an unresolvable master, no such script, a wrong flag: one line, exit 2": (
        f"{LAUNCH}test_meeting.py", f"{FACE}test_flag_help.py",
    ),
}  # fmt: skip
PROVEN = {**LAUNCHING, **SPEC, **MEMBERSHIP, **FAULTS, **CHECKING, **MASTERS, **BAD_INPUT}
"""Promise -> the tests that prove it, in the words of `acceptance.proven`."""


def kills(options: argparse.Namespace) -> Iterator[Line]:
    """kill -9 of a worker, compared with torchrun and torch.save."""
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
        folder = Path(name)
        dataset = recovery.make_dataset(folder)
        ours = recovery.kills(folder, dataset, options.kills)
        theirs, hung = recovery.torchrun_kills(folder, dataset, options.kills)
    killed = [kill for kill, _ in ours]
    ours, peer = recovery.format_kills(killed), recovery.format_kills(theirs)
    measured_text = f"{ours}; torchrun: {peer}, not within {recovery.HUNG_S:g} s {hung} more"
    holds = max(kill.seconds for kill in killed) <= recovery.BUDGET_S
    promise = f"kill -9 of a worker -> next iteration, {options.kills} kills"
    yield Line(promise, f"<= {recovery.BUDGET_S:g} s", measured_text, holds)
    lost_iterations, peer = max(kill.lost for kill in killed), max((kill.lost for kill in theirs), default=0)
    holds = lost_iterations <= recovery.BUDGET_LOST
    yield Line("iterations lost at a kill", f"<= {recovery.BUDGET_LOST}", f"{lost_iterations}; torchrun: {peer}", holds)
    parts = [
        f"{field.name} {statistics.median(getattr(part, field.name) for _, part in ours):.2f}"
        for field in fields(recovery.Parts)
    ]
    yield Line("where its seconds go, medians", "told", ", ".join(parts), True)


def simulated_agents(options: argparse.Namespace) -> Iterator[Line]:
    """Simulated agents over real HTTP; heartbeats of the largest crowd."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for many in options.agents:
        rows: list[master.Row] = []
        with master.scene(many, clients=2) as stage:
            master.rounds(stage, rows)
            if many == max(options.agents):
                master.load(stage, options.load_s, rows)
        for what, measured_text, budget, holds in rows:
            yield Line(
                f"{many}: {what}" if holds is None else what, budget or "told", measured_text, holds is not False
            )


def node_checks(options: argparse.Namespace) -> Iterator[Line]:
    """The duration of a node check."""
    seconds, _, verdict_words = node_check.check(2)
    measured_text = f"{seconds:.1f} s, {verdict_words}"
    yield Line(
        "check of 2 nodes on one host",
        "<= 30 s",
        measured_text,
        seconds <= node_check.BUDGET_S and verdict_words == "healthy",
    )


MEASURED: dict[str, Callable[[argparse.Namespace], Iterator[Line]]] = {
    "kill -9 of a worker -> next iteration": kills,
    "crowds of agents: seats, memory, heartbeats": simulated_agents,
    "check of 2 nodes on one host": node_checks,
}


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines: the figures first, with the machine to themselves."""
    for promise, measure in MEASURED.items():
        if is_asked(promise, options.words):
            yield from measure(options)
    yield from prove(PROVEN, options)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--agents", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--load-s", type=float, default=120.0, help="how long only heartbeats come")
    judge(lines(parse_options(parser, [*MEASURED, *PROVEN])))


if __name__ == "__main__":
    main()

"""`make accept-elastic`: every promise of the elastic runtime: wanted, measured, holds or not. Exit code 1 if not all.

Times and loads are measured here, by the benchmarks of this folder; the rest is proven by the tests that a line names.
"""

import argparse
import itertools
import resource
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from benchmarks import master, node_check, recovery
from benchmarks.acceptance import Line, judge, proven

LAUNCH, JOB, AGENT, MASTER = "tests/launch", "tests/job", "tests/agent", "tests/master"
DIAGNOSIS, SURVIVAL = "tests/diagnosis", "tests/survival"


def launching() -> Iterator[Line]:
    """`everstep launch` in place of torchrun."""
    yield proven("launch: every flag of torch's own parser, and dlrover-run's", f"{LAUNCH}/test_flags.py")
    yield proven(
        "launch: torchrun's environment, logs in whole lines, error files, exit codes",
        f"{LAUNCH}/test_like_torchrun.py", f"{LAUNCH}/test_teed_lines.py",
    )  # fmt: skip
    yield proven("launch: --standalone, MIN:MAX, --rdzv-conf, etcd refused by name", f"{LAUNCH}/test_options.py")
    yield proven(
        "launch: nodes that find each other; NODE_RANK and DLROVER_MASTER_ADDR", f"{LAUNCH}/test_nodes.py",
        "-k", "find_each_other or node_rank or backend or number",
    )  # fmt: skip
    yield proven("launch: DDP, FSDP and RPC scripts run unchanged", f"{LAUNCH}/test_scripts.py", "-k", "unchanged")


def spec() -> Iterator[Line]:
    """A job with roles."""
    yield proven(
        "spec: roles and policies in YAML or Python, refused by name and line",
        f"{JOB}/test_spec_reader.py", "tests/train/test_train_spec.py", f"{LAUNCH}/test_roles.py",
        "tests/train/test_train_job.py",
    )  # fmt: skip
    yield proven(
        "spec: what each policy does", f"{JOB}/test_limits.py", f"{JOB}/test_job_rules.py", f"{JOB}/test_fault_table.py"
    )
    yield proven(
        "spec: resources, priority and extras reach the nodes", "tests/platform/test_node_limits.py",
        f"{MASTER}/test_master_run.py", "-k", "limits or platform_is_told",
    )  # fmt: skip
    yield proven(
        "status: conditions with reason, message, time; everstep status", f"{JOB}/test_conditions.py",
        "tests/face/test_status_command.py",
    )  # fmt: skip


def rounds() -> Iterator[Line]:
    """Membership."""
    yield proven(
        "rounds: node unit, topology, cool-down, windows, gang, extras, a role that waits; hosts in rank order",
        f"{JOB}/test_membership.py", f"{JOB}/test_topology.py",
    )  # fmt: skip
    yield proven(
        "scale RUN: 2 -> 1 -> 2 nodes, every sample once; without a master it says what to do",
        f"{SURVIVAL}/test_samples.py", "tests/face/test_scale_command.py",
    )  # fmt: skip
    yield proven(
        "leaving: a preemption notice hands over, then leaves", f"{JOB}/test_leaving.py",
        f"{AGENT}/test_agent_rounds.py", f"{LAUNCH}/test_nodes.py", f"{LAUNCH}/test_resuming.py",
        "tests/train/test_train_leaving.py",
        "-k", "leaving or leave or sigterm or told_to_end or nobody_tells",
    )  # fmt: skip


def faults() -> Iterator[Line]:
    """Whatever dies, slows, hangs: with real processes."""
    training, watching = f"{SURVIVAL}/test_training_survives.py", f"{LAUNCH}/test_watching.py"
    yield proven("docs/faults.md is the table of the code", f"{JOB}/test_fault_table.py", "-k", "rendered")
    yield proven("a worker crashes at each named point: equal weights", training, "-k", "worker_killed")
    yield proven("a node is lost", training, f"{LAUNCH}/test_nodes.py", "-k", "node_lost or killed_node")
    yield proven(
        "a node that cannot start, faulty hardware, a frozen agent: replaced on another host",
        training, "-k", "faulty_node",
    )  # fmt: skip
    yield proven("a replacement in a train step is checked before it joins", training, "-k", "unfit_one")
    yield proven("a slow node is left out", f"{LAUNCH}/test_checked.py", "-k", "straggler")
    yield proven(
        "a faulty node at the start, and one that comes later", f"{LAUNCH}/test_checked.py", "-k", "faulty or later"
    )
    yield proven("network loss: done without, and back again, every sample once", f"{LAUNCH}/test_network_loss.py")
    yield proven("3 -> 4 -> 3 nodes, every sample once", f"{LAUNCH}/test_samples_follow.py")
    yield proven(
        "out of memory: the cgroup's own count; twice as much the next time", f"{AGENT}/test_agent_watching.py",
        watching, "tests/train/test_train_memory.py", "-k", "memory or group",
    )  # fmt: skip
    yield proven(
        "a hang: the stacks of all ranks first, then the policy", f"{JOB}/test_hang.py",
        f"{AGENT}/test_agent_rounds.py", watching, "-k", "hang or dump or moves or stacks",
    )  # fmt: skip


def checking() -> Iterator[Line]:
    """Which nodes are fit."""
    yield proven(
        "check: up to N/4 faulty nodes named exactly, by enumeration to N = 16", f"{DIAGNOSIS}/test_check_rounds.py"
    )
    yield proven(
        "check: alone, as a step, inside the job; switchbox refused without devices", "tests/check", DIAGNOSIS,
        "-k", "not between_two_devices",
    )  # fmt: skip
    seconds, _, found = node_check.check(2)
    told = f"{seconds:.1f} s, {found}"
    yield Line("check of 2 nodes on one host", "<= 30 s", told, seconds <= node_check.BUDGET_S and found == "healthy")


def masters() -> Iterator[Line]:
    """The master can die."""
    yield proven("the master killed at any write, or asleep through a takeover", f"{MASTER}/test_master_dies.py")
    yield proven(
        "a master that is gone is followed by one that replays and adopts", MASTER, "-k", "not test_master_dies"
    )
    yield proven(
        "workers never stop meanwhile", f"{LAUNCH}/test_nodes.py", f"{SURVIVAL}/test_training_survives.py",
        "-k", "killed_master or takes_over or step_killed or step_is_gone",
    )  # fmt: skip
    yield proven("orders of everything in virtual time", f"{JOB}/test_job_properties.py")


def bad_input() -> Iterator[Line]:
    """Refused, and nothing changed."""
    yield proven(
        "a wrong token 401, malformed or oversized 400, another job 409", f"{MASTER}/test_endpoints.py",
        f"{MASTER}/test_server.py", f"{AGENT}/test_agent_rounds.py",
        "-k", "test_endpoints or test_server or another_jobs_master",
    )  # fmt: skip
    yield proven(
        "a port in use, an unresolvable master, no such script, a wrong flag: one line, exit 2",
        f"{LAUNCH}/test_meeting.py", "tests/face/test_flag_help.py",
    )  # fmt: skip


def restarts(folder: Path, count: int) -> Iterator[Line]:
    """kill -9 of a worker, ours beside torchrun with torch.save."""
    yield proven(
        "the fork server; 8 local ranks import once", f"{AGENT}/test_fork_server.py", f"{LAUNCH}/test_scripts.py"
    )
    dataset = recovery.make_dataset(folder)
    ours = recovery.kills(folder, dataset, count)
    theirs, hung = recovery.torchrun_kills(folder, dataset, count)
    killed = [one for one, _ in ours]
    told = f"{recovery.told(killed)}; torchrun: {recovery.told(theirs)}, not within {recovery.HUNG_S:g} s {hung} more"
    holds = max(one.seconds for one in killed) <= recovery.BUDGET_S
    yield Line(f"kill -9 of a worker -> next iteration, {count} kills", f"<= {recovery.BUDGET_S:g} s", told, holds)
    lost, peer = max(one.lost for one in killed), max((one.lost for one in theirs), default=0)
    holds = lost <= recovery.BUDGET_LOST
    yield Line("iterations lost at a kill", f"<= {recovery.BUDGET_LOST}", f"{lost}; torchrun: {peer}", holds)
    parts = [
        f"{field.name} {statistics.median(getattr(part, field.name) for _, part in ours):.2f}"
        for field in fields(recovery.Parts)
    ]
    yield Line("where its seconds go, medians", "told", ", ".join(parts), True)


def crowds(agents: list[int], load_s: float) -> Iterator[Line]:
    """Simulated agents over real HTTP; heartbeats from the largest crowd."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for many in agents:
        rows: list[master.Row] = []
        with master.scene(many, clients=2) as stage:
            master.rounds(stage, rows)
            if many == max(agents):
                master.load(stage, load_s, rows)
        for what, measured, budget, holds in rows:
            yield Line(f"{many}: {what}" if holds is None else what, budget or "told", measured, holds is not False)


def measured(options: argparse.Namespace) -> Iterator[Line]:
    """The figures."""
    with tempfile.TemporaryDirectory(prefix="everstep-accept-") as name:
        yield from restarts(Path(name), options.kills)
    yield from crowds(options.agents, options.load_s)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--agents", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--load-s", type=float, default=120.0, help="how long only heartbeats come")
    options = parser.parse_args()
    tests = (launching, spec, rounds, faults, checking, masters, bad_input)
    judge(itertools.chain(measured(options), *(part() for part in tests)))


if __name__ == "__main__":
    main()

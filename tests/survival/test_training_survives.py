"""kill -9 of a worker, a node, the step: at named points and at random moments. Each test asserts that it was fired."""

import asyncio
import json
import random
import re
from contextlib import suppress
from typing import Any

import psutil
import pytest

from everstep.runtime.chaos import Fault, Kind
from everstep.runtime.chaos.on_machine import MachineInjector
from everstep.runtime.chaos.progress import Progress
from everstep.runtime.protocol.holdings import Tier
from everstep.runtime.store import open_store
from tests.harness import ROUNDS, TrainStep, kill, tensors, wait_until
from tests.trained import tiers_restored

LONG = pytest.mark.long
Points = tuple[str, ...]


def one_after_the_other(first: Points, others: Points, *more: str) -> pytest.MarkDecorator:
    """Points at which one training loses something in turn: in `make test` the first ones, in long tests the others,
    and all of them with workers that live in one of these ways."""
    cases = [
        pytest.param("anew", first, id="first"),
        pytest.param("anew", others, id="others", marks=LONG),
        *(pytest.param(name, (*others, *first), id=name, marks=LONG) for name in more),
    ]
    return pytest.mark.parametrize(("training", "points"), cases, indirect=["training"])


EVERY = 4
"""Iterations between two faults."""
FIRST = 31


def broken_rounds(training: TrainStep) -> list[dict[str, Any]]:
    """The journal's broken rounds."""
    return [record for record in training.records() if record["kind"] == "RoundBroken"]


def assert_whole(training: TrainStep, undisturbed: dict[str, bytes]) -> None:
    """Ended well, with the weights of an undisturbed training, and nothing left behind."""
    assert tensors(training.checkpoint()) == undisturbed
    assert (training.outputs / "iterations").read_text() == training.flags["iterations"]
    assert training.leftovers() == []


def assert_went_on(training: TrainStep) -> None:
    """Each round that a fault ended was followed by one that lost at most its newest iteration."""
    records = training.records()
    broken = {record["round"]: record["iteration"] for record in broken_rounds(training)}
    formed = [record["round"] for record in records if record["kind"] == "RoundFormed"]
    begins = {round_["number"]: (round_["restore"] or {"iteration": 0})["iteration"] for round_ in formed}
    assert all(begins[number + 1] >= reached - 1 for number, reached in broken.items()), (broken, begins)


@pytest.mark.long
def test_an_undisturbed_training_gives_the_same_weights_twice(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    training.start()
    assert training.finish() == 0, training.last_words()
    assert broken_rounds(training) == []
    assert_whole(training, undisturbed)


@one_after_the_other(
    ("checkpoint.mid_copy", "checkpoint.after_commit"),
    ("train.iteration", "checkpoint.before_copy", "checkpoint.after_copy"),
    "survive", "spares",
)  # fmt: skip
def test_a_worker_killed_at_a_point_changes_no_weight_and_asks_for_no_test(
    points: Points, training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    faults = enumerate(points * ROUNDS, start=1)
    training.arm(";".join(f"{point},iteration={FIRST + EVERY * i},rank={i % 2}=kill" for i, point in faults))
    training.start()
    assert training.finish() == 0, training.last_words()
    assert training.fired_points() == sorted(points * ROUNDS)
    assert len(broken_rounds(training)) == len(points) * ROUNDS
    assert not [record for record in training.records() if record["kind"] == "CheckRequested"]
    assert_went_on(training)
    assert_whole(training, undisturbed)


@pytest.mark.parametrize(
    ("training", "point"),
    [
        ("anew", "keeper.after_put"),
        pytest.param("anew", "keeper.before_put", marks=LONG),
        pytest.param("survive", "keeper.before_put", marks=LONG),
        pytest.param("spares", "keeper.after_put", marks=LONG),
    ],
    indirect=["training"],
)
def test_a_node_lost_at_a_point_changes_no_weight(
    point: str, training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    nodes = [f"worker-0-{launch}" for launch in range(ROUNDS)]
    training.arm(";".join(f"{point},node={node}=kill" for node in nodes))
    training.start()
    assert training.finish() == 0, training.last_words()
    assert training.fired_points() == [point] * ROUNDS
    assert [record["node"] for record in training.records() if record["kind"] == "NodeLost"][:ROUNDS] == nodes
    assert {Tier.MEMORY, Tier.PEER} in tiers_restored(training), "the survivor's own memory, and a peer's"
    assert_went_on(training)
    assert_whole(training, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_a_node_that_cannot_start_is_replaced_on_another_host_and_changes_no_weight(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    replace_faulty(training, "agent.start,node=worker-1-0=exit:1", "start failed", undisturbed)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (f"train.iteration,iteration={FIRST},node=worker-1-0=exit:201", "hardware"),
        pytest.param("keeper.after_put,node=worker-0-0=stop", "no heartbeat", marks=LONG),
    ],
    ids=["hardware", "frozen"],
)
def test_a_faulty_node_is_replaced_on_another_host_and_changes_no_weight(
    fault: str, reason: str, training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    replace_faulty(training, fault, reason, undisturbed)


def replace_faulty(training: TrainStep, fault: str, reason: str, undisturbed: dict[str, bytes]) -> None:
    """Train with that fault of a node, of which the master judges this."""
    spec = {"replicaSpecs": {"worker": {"replicas": 2}}, "patience": {"silence": 15}}
    training.flags = {**training.flags, "job-spec": json.dumps(spec)}
    training.arm(fault)
    training.start()
    assert training.finish() == 0, training.last_words()
    assert training.fired_points() == [fault.partition(",")[0]]
    records = training.records()
    assert [record["reason"] for record in records if record["kind"] == "FaultJudged"] == [reason]
    (replacement,) = [record for record in records if record["kind"] == "NodeRequested" and record["replaces"]]
    assert replacement["replaces"] in fault
    assert replacement["host"] == "local-2"
    assert_went_on(training)
    assert_whole(training, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_a_node_whose_measurements_are_killed_before_the_training_is_replaced(training: TrainStep) -> None:
    training.flags = {**training.flags, "network-check": "True"}
    training.start()
    wait_until(training.jobs, "the job's name")
    progress = Progress(open_store(str(training.store)), training.jobs()[0])
    injector = MachineInjector(training.folder, "", progress, random.Random(0))
    fired = asyncio.run(injector.inject(Fault(Kind.FAULTY)))
    assert re.match(r"[1-9]\d* measurements killed; (hardware|start failed)", fired.evidence)
    assert training.finish() == 0, training.last_words()
    requested = [record for record in training.records() if record["kind"] == "NodeRequested"]
    assert fired.node in {record["replaces"] for record in requested}


@pytest.mark.long
def test_a_replacement_is_checked_before_it_joins_and_an_unfit_one_replaced(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    more = {"network-check": "True", "replacement-wait-s": "600", "max-relaunches": str(20 + 2 * ROUNDS)}
    training.flags = {**training.flags, **more}
    broken = [f"worker-1-{2 * i}" for i in range(ROUNDS + 1)]
    training.arm(
        ";".join(
            f"train.iteration,iteration={FIRST + EVERY * i},node={broken[i]}=exit:201;"
            f"check.matmul,host=local-{2 + 2 * i}=kill"
            for i in range(ROUNDS)
        )
    )
    training.start()
    assert training.finish() == 0, training.last_words()
    assert training.fired_points() == ["check.matmul"] * ROUNDS + ["train.iteration"] * ROUNDS
    records = training.records()
    judged = [(record["node"], record["reason"]) for record in records if record["kind"] == "FaultJudged"]
    assert judged == [(f"worker-1-{launch}", "hardware") for launch in range(2 * ROUNDS)]
    joined = {record["node"]: record["checked"] for record in records if record["kind"] == "NodeJoined"}
    assert set(joined) == {"worker-0-0", *broken}
    assert all(seconds > 0 for seconds in joined.values())
    round_lines = [line for line in training.log.read_text().splitlines() if line.startswith("Round")]
    for node in broken[1:]:
        assert any("worker-0-0-" in line and f"{node}-" in line for line in round_lines), round_lines
    assert_went_on(training)
    assert_whole(training, undisturbed)


@one_after_the_other(("master.before_manifest",), ("master.after_journal", "master.after_manifest"), "survive")
def test_a_step_killed_at_a_point_is_taken_up_by_its_retry(
    points: Points, training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    for point in points * ROUNDS:
        training.arm(f"{point}=kill")
        training.start()
        assert training.finish() == -9, training.last_words()
        assert training.fired_points() == [point]
    training.arm("")
    training.start()
    assert training.finish() == 0, training.last_words()
    assert_whole(training, undisturbed)


@pytest.mark.long
def test_nodes_train_on_while_the_step_is_gone(training: TrainStep) -> None:
    training.flags = {**training.flags, "iterations": str(200 + 200 * ROUNDS)}
    training.start()
    at = training.wait_iteration(20)
    agents = {agent.pid for agent in training.agents()}
    assert len(agents) == 2
    for number in range(1, ROUNDS + 1):
        step = training.step()
        assert step is not None
        kill(step)
        at = min(training.iteration() + 20, int(training.flags["iterations"]))
        wait_until(lambda at=at: training.iteration() >= at, "iterations without a step")
        training.start()
        wait_until(lambda number=number: claims(training) > number or training.over(), "the takeover")
    assert training.finish() == 0, training.last_words()
    assert claims(training) == ROUNDS + 1
    assert broken_rounds(training) == []
    assert training.leftovers() == []


def claims(training: TrainStep) -> int:
    """Masters that the job has had."""
    return [record["kind"] for record in training.records()].count("MasterClaimed")


@pytest.mark.long
def test_everything_killed_goes_on_from_the_store(training: TrainStep, undisturbed: dict[str, bytes]) -> None:
    training.start()
    for number in range(1, ROUNDS + 1):
        training.wait_iteration(25 + EVERY * number)
        wait_until(lambda: training.has_commit() or training.over(), "a checkpoint in the store")
        for process in training.processes():
            process.kill()
        wait_until(lambda: not training.processes(), "the end of everything")
        training.start()
        wait_until(
            lambda number=number: len(rounds_from_the_store(training)) == number or training.over(), "the next round"
        )
    assert training.finish() == 0, training.last_words()
    assert len(rounds_from_the_store(training)) == ROUNDS
    assert tiers_restored(training).count({Tier.STORE}) == ROUNDS
    assert_whole(training, undisturbed)


def rounds_from_the_store(training: TrainStep) -> list[int]:
    """Iterations of the checkpoints in the store that rounds began from."""
    formed = [record["round"]["restore"] for record in training.records() if record["kind"] == "RoundFormed"]
    return [restore["iteration"] for restore in formed if restore and all(s["key"] for s in restore["sources"])]


def try_kill(process: psutil.Process) -> bool:
    """Kill it; False when it was gone or about to go, as a worker is whose agent was killed just before."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        process.kill()
    except psutil.NoSuchProcess:
        return False
    with suppress(psutil.NoSuchProcess):
        wait_until(lambda: process.status() == psutil.STATUS_ZOMBIE, f"the end of {process}")
    return True


@pytest.mark.parametrize(
    ("training", "seed"),
    [("anew", 0), *(pytest.param(*case, marks=LONG) for case in (("survive", 1), ("spares", 2), ("spares", 3)))],
    indirect=["training"],
)
def test_kills_at_random_moments_change_no_weight(
    seed: int, training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    choose = random.Random(seed)
    training.start()
    at = fired = 0
    for victim in [victim for _ in range(ROUNDS) for victim in choose.sample(["worker", "agent", "step"], 3)]:
        at = training.wait_iteration(at + choose.randrange(2, 15))
        if training.over() or at >= int(training.flags["iterations"]) - 2:
            break
        victims = {"worker": training.workers, "agent": training.agents, "step": lambda: [training.step()]}[victim]()
        alive = [process for process in victims if process is not None]
        if not alive:
            continue
        if not try_kill(choose.choice(alive)):
            continue
        fired += 1
        if victim == "step":
            training.finish()
            training.start()
    assert training.finish() == 0, training.last_words()
    assert fired >= ROUNDS
    assert_whole(training, undisturbed)

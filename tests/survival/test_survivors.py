"""Workers that keep their processes when a peer dies: what is kept, what is made anew, what is left behind."""

import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.harness import TrainStep, all_tensors, kill, tensors, wait_until
from tests.survival.conftest import WARMING


def processes(training: TrainStep) -> dict[int, dict[int, int]]:
    """For each round: rank -> process id, as the workers said."""
    by_rank = defaultdict[int, dict[int, int]](dict)
    for path in training.node_logs():
        for pid, rank, round_ in re.findall(r"process (\d+) is rank (\d+) of \d+ in round (\d+)", path.read_text()):
            by_rank[int(round_)][int(rank)] = int(pid)
    return dict(sorted(by_rank.items()))


@pytest.mark.parametrize("training", ["survive"], indirect=True)
def test_a_killed_worker_alone_is_made_anew_and_changes_no_weight(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    training.arm("checkpoint.mid_copy,iteration=33,rank=1=kill;train.iteration,iteration=41,rank=0=kill")
    training.start()
    assert training.finish() == 0, training.last_words()
    assert training.fired_points() == ["checkpoint.mid_copy", "train.iteration"]
    first, second, third = processes(training).values()
    assert first[0] == second[0]
    assert second[1] != first[1]
    assert second[1] == third[1]
    assert third[0] != second[0]
    assert tensors(training.checkpoint()) == undisturbed


def reasons(training: TrainStep) -> list[str]:
    """Why rounds ended."""
    return [record["reason"] for record in training.records() if record["kind"] == "RoundBroken"]


def faults(training: TrainStep) -> list[dict[str, Any]]:
    """What was counted against ranks and nodes, and why."""
    return [record for record in training.records() if record["kind"] in ("WorkerFaulted", "FaultJudged")]


@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_an_interrupted_network_ends_rounds_but_no_process_and_changes_no_weight(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    training.flags = {**training.flags, "script-args": "--survive --cut 1,33,1;2,41,0"}
    training.start()
    assert training.finish() == 0, training.last_words()
    assert len(re.findall(r"cut [1-9]\d* connections", logs(training))) == 2, training.last_words()
    first, second, third = processes(training).values()
    assert first == second == third
    assert reasons(training) == ["connections failed"] * 2
    assert faults(training) == []
    assert tensors(training.checkpoint()) == undisturbed


@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_a_rank_that_failed_is_blamed_though_the_others_tell_of_their_connections_before_it_ends(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    training.flags = {**training.flags, "script-args": "--survive --fail 33,1"}
    training.start()
    assert training.finish() == 0, training.last_words()
    assert reasons(training) == ["connections failed"]
    fault, judged = faults(training)
    assert (fault["rank"], fault["exit_code"], fault["error"].splitlines()[-1]) == (1, 1, "ValueError: the cause")
    assert (judged["node"], judged["reason"], judged["decision"]) == (fault["node"], "user error", "restart in place")
    first, second = processes(training).values()
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert tensors(training.checkpoint()) == undisturbed


@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_a_rank_that_dies_while_others_join_it_is_followed_by_a_round_that_trains(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    training.flags = {**training.flags, "script-args": "--survive"}
    training.arm("group.join,rank=1=kill")
    training.start()
    assert training.finish() == 0, training.last_words()
    assert training.fired_points() == ["group.join"]
    assert log_lines(training, "local ranks [0] continue in their processes") == 1, training.last_words()
    assert tensors(training.checkpoint()) == undisturbed


@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_a_round_that_ends_within_an_evaluation_changes_no_weight(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    training.flags = {**training.flags, "script-args": "--survive --evaluate"}
    training.arm("script.evaluation,iteration=33,rank=1=kill")
    training.start()
    assert training.finish() == 0, training.last_words()
    assert training.fired_points() == ["script.evaluation"]
    first, second = processes(training).values()
    assert first[0] == second[0]
    assert "trains in mode evaluation" not in logs(training)
    assert tensors(training.checkpoint()) == undisturbed


def logs(training: TrainStep) -> str:
    """What the nodes wrote."""
    return "\n".join(path.read_text() for path in training.node_logs())


def log_lines(training: TrainStep, words: str) -> int:
    """How many lines of the nodes' logs have these words."""
    return logs(training).count(words)


@pytest.mark.long
@pytest.mark.parametrize("script", ["sharded_survivor.py", "trainer_survivor.py"])
@pytest.mark.parametrize("training", ["anew"], indirect=True)
def test_survivors_of_other_frameworks_keep_their_processes_and_end_with_equal_weights(
    training: TrainStep, tmp_path: Path, script: str
) -> None:
    flags = {**training.flags, "script": str(Path(__file__).with_name(script)), "min-nodes": "2"}
    training.flags = flags
    training.arm("checkpoint.mid_copy,iteration=33,rank=1=kill;checkpoint.mid_copy,iteration=41,rank=0=kill")
    calm = TrainStep(tmp_path / "calm", tmp_path / "calm-store", flags=flags)
    try:
        for run in (training, calm):
            run.start()
            assert run.finish() == 0, run.last_words()
    finally:
        calm.kill_all()
    assert training.fired_points() == ["checkpoint.mid_copy"] * 2
    first, second, third = processes(training).values()
    assert first[0] == second[0]
    assert second[1] != first[1]
    assert second[1] == third[1]
    assert all_tensors(training.checkpoint()) == all_tensors(calm.checkpoint())


@pytest.mark.long
@pytest.mark.parametrize("training", ["spares"], indirect=True)
def test_a_killed_worker_is_followed_by_a_warm_spare_and_changes_no_weight(
    training: TrainStep, long_undisturbed: dict[str, bytes]
) -> None:
    training.flags = {**training.flags, **WARMING, "min-nodes": "2"}
    training.start()
    wait_until(lambda: log_lines(training, "a spare is warm") == 2 or training.over(), "two warm spares")
    first = {pid for ranks in processes(training).values() for pid in ranks.values()}
    victim = next(worker for worker in training.workers() if worker.pid in first)
    kill(victim)
    assert training.finish() == 0, training.last_words()
    assert log_lines(training, "come from warm spares") == 1, training.last_words()
    assert log_lines(training, "its rehearsal ended early") == 0, training.last_words()
    assert tensors(training.checkpoint()) == long_undisturbed
    assert training.leftovers() == []


def formed_rounds(training: TrainStep) -> list[list[str]]:
    """The nodes of each round so far, in rank order."""
    records = [record for record in training.records() if record["kind"] == "RoundFormed"]
    return [[member["node"] for member in record["round"]["members"]["worker"]] for record in records]


def agent_of(training: TrainStep, node: str) -> psutil.Process:
    """The node's agent."""
    return next(agent for agent in training.agents() if node in agent.cmdline())


@pytest.mark.long
@pytest.mark.parametrize("training", ["spares"], indirect=True)
def test_a_lost_node_is_followed_by_a_warm_spare_node_and_changes_no_weight(
    training: TrainStep, long_undisturbed: dict[str, bytes]
) -> None:
    training.flags = {**training.flags, **WARMING, "min-nodes": "2", "spare-nodes": "1"}
    training.start()
    wait_until(lambda: log_lines(training, "a spare is warm") >= 3 or training.over(), "warm spares of all nodes")
    wait_until(lambda: formed_rounds(training) or training.over(), "a round")
    first, second = formed_rounds(training)[0]  # The two nodes that came first: the third waits as a spare.
    spare = ({"worker-0-0", "worker-1-0", "worker-2-0"} - {first, second}).pop()
    (spare_log,) = training.node_logs(spare)
    assert "a spare is warm" in spare_log.read_text(), training.last_words()
    kill(agent_of(training, second))
    assert training.finish() == 0, training.last_words()
    assert [{*nodes} for nodes in formed_rounds(training)[:2]] == [{first, second}, {first, spare}]
    assert "local ranks [0] come from warm spares" in spare_log.read_text(), training.last_words()
    assert tensors(training.checkpoint()) == long_undisturbed
    assert training.leftovers() == []


class Residue(NamedTuple):
    """What a process and its job hold."""

    files: int
    threads: int
    memory: int
    """Resident, in MiB."""
    segments: int


def residue(training: TrainStep, process: psutil.Process) -> Residue:
    return Residue(process.num_fds(), process.num_threads(), process.memory_info().rss >> 20, len(training.segments()))


def residues(training: TrainStep, rounds: int) -> list[Residue]:
    """What one survivor holds after each of so many rounds.

    A survivor that does not leave a round within 2 s is killed and made anew, as on a busy machine: begin again then.
    """
    for _ in range(3):
        survivor = training.workers()[0]
        try:
            measurements = []
            for _ in range(rounds):
                kill(training.workers()[1])
                training.wait_iteration(training.iteration() + 4)
                measurements.append(residue(training, survivor))
        except psutil.NoSuchProcess:
            continue
        assert training.workers()[0].pid == survivor.pid
        return measurements
    raise AssertionError(f"no worker survived {rounds} rounds: {training.last_words()}")


@pytest.mark.long
@pytest.mark.parametrize("training", ["survive"], indirect=True)
def test_fifty_rounds_leave_no_descriptor_thread_or_memory_in_a_survivor(training: TrainStep) -> None:
    training.flags = {**training.flags, "iterations": "1000000"}
    training.start()
    training.wait_iteration(5)
    measurements = residues(training, 50)
    assert len(processes(training)) > 50
    settled, last = measurements[9:19], measurements[-10:]
    assert min(reading.files for reading in last) <= max(reading.files for reading in settled)
    assert min(reading.threads for reading in last) <= max(reading.threads for reading in settled)
    assert min(reading.segments for reading in last) <= max(reading.segments for reading in settled)
    assert min(reading.memory for reading in last) <= max(reading.memory for reading in settled) + 16, measurements

"""A real TensorFlow with parameter servers: chief, workers, ps and evaluator are nodes of a job, and each dies once.

The four experiments with TensorFlow of DLRover's blog about ChaosBlade (October 2023): a worker is evicted, chief and
worker run out of memory, a parameter server is evicted.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.frameworks.environments import environment
from tests.harness import TrainStep, wait_until
from tests.job_roles import (
    evict,
    example,
    flags,
    log_of,
    nodes_requested,
    numbers_after,
    rounds_broken,
    wait_for_line,
)
from tests.memory_groups import memory_group
from tests.trained import Start

SHARDS = 100
EVALUATED = "evaluated model.ckpt-"
TWO_GIB, FOUR_GIB = "2Gi", "with 4 GiB of memory instead of 2 GiB"
READ = """
import json, sys
import tensorflow as tf
newest = tf.train.load_checkpoint(tf.train.latest_checkpoint(sys.argv[1]))
names = ("done", "global_step", "weights")
print(json.dumps({name: newest.get_tensor(name).tolist() for name in names}))
"""


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has TensorFlow."""
    return environment("tensorflow", "tensorflow-cpu>=2.19,<3")


def spec_of(memory: Mapping[str, str] = MappingProxyType({}), workers: int = 1, evaluators: int = 0) -> dict[str, Any]:
    roles: dict[str, Any] = {
        "ps": {"replicas": 1, "completePolicy": "None"},
        "chief": {"replicas": 1},
        "worker": {"replicas": workers},
    }
    if evaluators:
        roles["evaluator"] = {"replicas": evaluators, "completePolicy": "None"}
    for role, size in memory.items():
        roles[role]["resources"] = {"memory": size}
    return {"frameworkType": "tensorflow", "replicaSpecs": roles}


def command(python: Path, folder: Path, *before: str) -> list[str]:
    """The script's, with these words before the script."""
    words = [example("tensorflow_ps.py"), "--folder", str(folder), "--shards", str(SHARDS)]
    return [str(python), *before, *words, "--shard-seconds", "0.1"]


def held_commands(python: Path, folder: Path, mark: Path) -> dict[str, list[str]]:
    """Of the roles that take shards, if they shall not take all of them before this file is there."""
    words = command(python, folder, str(Path(__file__).with_name("held_shards.py")), str(mark))
    return dict.fromkeys(("chief", "worker"), words)


def final_state(python: Path, folder: Path) -> dict[str, Any]:
    """Of the newest checkpoint."""
    completed = subprocess.run([python, "-c", READ, str(folder)], capture_output=True, text=True, check=True)
    return json.loads(completed.stdout)


def assert_each_shard_counts_once(python: Path, folder: Path) -> None:
    state = final_state(python, folder)
    assert state["done"] == [1] * SHARDS
    assert state["global_step"] == SHARDS
    expected = [-1 + 2 * number / 7 for number in range(8)]
    assert state["weights"] == pytest.approx(expected, abs=1e-3)


def train(
    trained: Start,
    python: Path,
    folder: Path,
    spec: dict[str, Any],
    replaced: Mapping[str, list[str]],
    **settings: Any,
) -> TrainStep:
    """A job whose roles run the script, except those of `replaced`."""
    usual = dict.fromkeys(spec["replicaSpecs"], command(python, folder))
    commands = {**usual, "evaluator": [sys.executable, "-m", "everstep.keep_running", *usual["chief"]], **replaced}
    used = {role: words for role, words in commands.items() if role in usual}
    return trained(flags=flags(spec, used), **settings)


def test_an_evicted_workers_shards_are_done_by_others(trained: Start, python: Path, tmp_path: Path) -> None:
    folder, mark = tmp_path / "checkpoints", tmp_path / "goes on"
    step = train(trained, python, folder, spec_of(workers=2, evaluators=1), held_commands(python, folder, mark))
    wait_for_line(step, "worker-1-0", "shard ")
    wait_for_line(step, "evaluator-0-0", EVALUATED)
    evict(step, "worker-1-0")
    wait_until(lambda: log_of(step, "evaluator-0-0").count(EVALUATED) > 1 or step.over(), "the next checkpoint")
    mark.touch()
    assert step.finish() == 0, step.last_words()
    assert "worker-1-1" in nodes_requested(step)
    assert rounds_broken(step) == 1
    assert_each_shard_counts_once(python, folder)
    began = set(numbers_after(log_of(step, "worker-1-0"), "shard"))
    assert began, "it had taken shards"
    assert "restored model.ckpt-" in log_of(step, "chief-0-0")
    evaluated = log_of(step, "evaluator-0-0")
    assert float(evaluated.rpartition("loss ")[2].split()[0]) < float(evaluated.partition("loss ")[2].split()[0])


def test_an_evicted_parameter_servers_state_is_restored(trained: Start, python: Path, tmp_path: Path) -> None:
    folder, mark = tmp_path / "checkpoints", tmp_path / "goes on"
    step = train(trained, python, folder, spec_of(), held_commands(python, folder, mark))
    wait_until(lambda: (folder / "checkpoint").exists() or step.over(), "a checkpoint")
    evict(step, "ps-0-0")
    mark.touch()
    assert step.finish() == 0, step.last_words()
    assert "ps-0-1" in nodes_requested(step)
    assert rounds_broken(step) == 1
    restored = log_of(step, "chief-0-0").partition("restored model.ckpt-")[2]
    assert int(restored.split()[0]) > 0
    assert_each_shard_counts_once(python, folder)


@pytest.mark.parametrize("role", ["chief", "worker", "ps"])
def test_a_node_that_runs_out_of_memory_comes_back_with_twice_as_much(
    trained: Start, python: Path, tmp_path: Path, role: str
) -> None:
    mark, folder = tmp_path / "grew", tmp_path / "checkpoints"
    once = [str(Path(__file__).with_name("oom_once.py")), str(mark), str(folder)]
    mib_by_role = {"chief": 0, role: 1900}
    replaced = {name: command(python, folder, *once, str(mib)) for name, mib in mib_by_role.items()}
    with memory_group(9 << 30) as group:
        step = train(trained, python, folder, spec_of({role: TWO_GIB}), replaced, group=group)
        assert step.finish() == 0, step.last_words()
    assert mark.exists(), "the fault"
    judged = [record for record in step.records() if record["kind"] == "FaultJudged"]
    assert [(judgement["reason"], judgement["detail"]) for judgement in judged] == [("out of memory", FOUR_GIB)]
    assert f"{role}-0-1" in nodes_requested(step)
    assert_each_shard_counts_once(python, folder)

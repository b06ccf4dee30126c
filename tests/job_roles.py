"""Jobs with roles as the train step runs them here: commands for the roles, and the nodes that die."""

import json
import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from tests.harness import TrainStep, kill, wait_until


def flags(spec: Mapping[str, Any], commands: Mapping[str, Sequence[str]], **more: str) -> dict[str, str]:
    """The train step's flags for a job whose roles run these commands."""
    joined = json.dumps({role: shlex.join(command) for role, command in commands.items()})
    step_flags = {"script": "@command", "script-args": shlex.quote(joined), "job-spec": json.dumps(spec)}
    return {**step_flags, "replacement-wait-s": "120", "global-batch": "16", **more}


def agent_of(step: TrainStep, node: str) -> psutil.Process:
    """The agent of a node."""
    processes = [process for line, process in step.commands("everstep.runtime.agent") if node in line]
    assert len(processes) == 1, f"{node}: {processes}"
    return processes[0]


def evict(step: TrainStep, node: str) -> None:
    """End a node as an eviction without grace does, with all that it runs."""
    kill(agent_of(step, node))


def log_of(step: TrainStep, node: str) -> str:
    """What a node's agent and workers have written."""
    return "".join(path.read_text(errors="replace") for path in step.node_logs(node))


def wait_for_line(step: TrainStep, node: str, words: str) -> None:
    """Until a node has written these words."""
    wait_until(lambda: words in log_of(step, node) or step.over(), f"{words!r} of {node}")
    assert words in log_of(step, node), step.last_words()


def nodes_requested(step: TrainStep) -> list[str]:
    """Each node that the master asked for, in this order."""
    return [record["node"] for record in step.records() if record["kind"] == "NodeRequested"]


def rounds_broken(step: TrainStep) -> int:
    """How many rounds ended before their workers had finished."""
    return sum(record["kind"] == "RoundBroken" for record in step.records())


def numbers_after(text: str, word: str) -> list[int]:
    """The numbers that stand behind a word, in order."""
    words = text.split()
    return [int(after) for before, after in pairwise(words) if before == word and after.isdecimal()]


def example(name: str) -> str:
    """The path of an example."""
    return str(Path(__file__).parents[1] / "examples" / name)

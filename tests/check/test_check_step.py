"""The node check with real processes: real products, real gloo, real deaths."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from everstep.steps.check import Config
from everstep.steps.entry import StepError
from tests.harness import wait_until
from tests.watch.named_after import NAMED_S, Note

Outcome = tuple[int, str, dict[str, Any]]
"""Exit code, stderr and verdict of the step."""


def check(tmp_path: Path, *flags: str, faults: Sequence[str] = (), all_fire: bool = True) -> Outcome:
    """Run the step; every fault has fired, or at least one."""
    marks = tmp_path / "faults"
    marks.mkdir(parents=True)
    environment = {**os.environ, "EVERSTEP_FAULT": ";".join(faults), "EVERSTEP_FAULT_DIR": str(marks)}
    command = [
        sys.executable,
        "-m",
        "everstep.steps.check",
        f"--store={tmp_path}/store",
        f"--outputs={tmp_path}/out",
        *flags,
    ]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    fired = len(list(marks.iterdir()))
    assert fired == len(faults) or (fired and not all_fire), completed.stderr
    verdict = tmp_path / "out/verdict.json"
    return completed.returncode, completed.stderr, json.loads(verdict.read_text()) if verdict.exists() else {}


def pace_s(tmp_path: Path, count: int = 2) -> float:
    """Seconds of the slowest of so many healthy nodes, at the pace that this machine has now."""
    code, output, verdict = check(tmp_path, f"--nodes={count}")
    assert code == 0, output
    return max(verdict["rounds"][0]["elapsed_s"].values())


def late_s(tmp_path: Path) -> float:
    """By how much one of two nodes must be late to be slow, at the pace that this machine has now."""
    return 5 + 4 * pace_s(tmp_path)


def check_a_slow_node(tmp_path: Path, count: int) -> tuple[str, dict[str, Any]]:
    """Check nodes of which local-1 is late by twice what a healthy one takes: so it is slow, unless the machine becomes
    slower meanwhile. Then they are checked again, at the pace that the healthy ones had at last."""
    pace, best_s = pace_s(tmp_path / "calm", count), dict[str, float]()
    for number in range(5):
        faults = in_rounds("check.matmul,node=local-1", f"sleep:{1 + 2 * pace:.1f}", 2)
        flags = (f"--nodes={count}", "--exclude-straggler=True")
        code, output, verdict = check(tmp_path / f"slow-{number}", *flags, faults=faults, all_fire=False)
        assert code == 0, output
        rounds = [round_["elapsed_s"] for round_ in verdict["rounds"]]
        best_s = {node: min(seconds[node] for seconds in rounds if node in seconds) for node in rounds[0]}
        pace = max(seconds for node, seconds in best_s.items() if node != "local-1")
        if best_s["local-1"] > 2 * pace:
            return output, verdict
    raise AssertionError(f"local-1 was never twice as slow as the others, at last {best_s}")


def processes_with(variable: str) -> list[int]:
    processes = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                processes.append(int(path.parent.name))
    return processes


def in_rounds(fault: str, action: str, rounds: int) -> list[str]:
    """The same fault in each of the first rounds: a rule fires once."""
    return [f"{fault},round={number}={action}" for number in range(1, rounds + 1)]


def test_two_healthy_nodes_are_told_with_their_times(tmp_path: Path) -> None:
    code, output, verdict = check(tmp_path)
    assert code == 0, output
    lines = output.strip().splitlines()
    assert lines[0].startswith("Round 1: {local-0: ")
    assert lines[-1].startswith("2 nodes healthy  matmul ") or "slow" in lines[-1]
    assert verdict["faulty"] == verdict["undecided"] == []
    assert all(0 < node["matmul_s"] < 3600 and 0 < node["all_reduce_s"] < 3600 for node in verdict["nodes"])
    assert verdict["rounds"][0]["groups"] == [["local-0", "local-1"]]
    assert (tmp_path / "out/avoid_hosts").read_text() == "[]"


def test_a_node_that_dies_in_its_products_is_avoided_and_its_partner_is_not_kept_waiting(tmp_path: Path) -> None:
    code, output, verdict = check(tmp_path, faults=["check.matmul,node=local-1=kill"])
    assert code == 0, output
    assert json.loads((tmp_path / "out/avoid_hosts").read_text()) == ["local-1"]
    assert verdict["nodes"][1]["reason"] == "its check was ended by SIGKILL, during cpu: matmul"
    assert verdict["nodes"][0]["verdict"] == "healthy"
    assert "faulty: local-1" in output


def test_two_nodes_that_only_fail_together_are_undecided_by_name(tmp_path: Path) -> None:
    code, output, verdict = check(tmp_path, faults=in_rounds("check.all_reduce,node=local-1", "raise", 2))
    assert code == 0, output
    assert verdict["undecided"] == ["local-0", "local-1"]
    assert verdict["avoid_hosts"] == ["local-1"]
    assert "undecided: local-0, local-1" in output


@pytest.mark.parametrize(
    ("count", "node", "rounds"), [(4, "local-1", 2), pytest.param(5, "local-2", 3, marks=pytest.mark.long)]
)
def test_a_node_with_which_every_group_fails_is_named_exactly(
    tmp_path: Path, count: int, node: str, rounds: int
) -> None:
    faults = in_rounds(f"check.all_reduce,node={node}", "raise", rounds)
    code, output, verdict = check(tmp_path, f"--nodes={count}", faults=faults)
    assert code == 0, output
    assert verdict["faulty"] == verdict["avoid_hosts"] == [node]
    assert verdict["undecided"] == []
    assert len(verdict["rounds"]) == rounds


@pytest.mark.parametrize("count", [2, pytest.param(5, marks=pytest.mark.long)])
def test_a_slow_node_is_a_straggler(tmp_path: Path, count: int) -> None:
    output, verdict = check_a_slow_node(tmp_path, count)
    assert "local-1" in verdict["stragglers"]
    assert "local-1" in verdict["avoid_hosts"]
    assert verdict["faulty"] == verdict["undecided"] == []
    assert "local-1 is a straggler: " in output


def test_a_node_that_hangs_is_faulty_when_the_time_is_up(tmp_path: Path, record_property: Note) -> None:
    half_s = max(12.0, math.ceil(6 * pace_s(tmp_path / "calm")))  # A healthy node's half must not take as long.
    fault = "check.all_reduce,node=local-0=stop"
    code, output, verdict = check(tmp_path, f"--timeout={2 * half_s}", faults=[fault])
    assert code == 0, output
    assert [node["verdict"] for node in verdict["nodes"]] == ["faulty", "healthy"]
    assert verdict["nodes"][0]["reason"] == f"its all-reduce neither ended nor failed within {half_s:g} s"
    (hung,) = (tmp_path / "faults").iterdir()
    record_property(NAMED_S, round((tmp_path / "out/verdict.json").stat().st_mtime - hung.stat().st_mtime - half_s, 1))


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_check_that_is_ended_leaves_no_process(tmp_path: Path, signum: signal.Signals, code: int) -> None:
    fault = {"EVERSTEP_FAULT": "check.matmul,node=local-1=stop", "EVERSTEP_FAULT_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "everstep.steps.check", f"--store={tmp_path}/store", f"--outputs={tmp_path}/out"]
    step = subprocess.Popen(command, env={**os.environ, **fault}, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: (tmp_path / "check.matmul").exists(), "the fault")
    step.send_signal(signum)
    output = step.communicate(timeout=60)[1]
    assert step.returncode == code, output
    assert "Traceback" not in output
    wait_until(lambda: not processes_with(f"EVERSTEP_FAULT_DIR={tmp_path}"), "the end of all processes")


def test_too_few_healthy_nodes_end_with_exit_code_3_and_a_verdict(tmp_path: Path) -> None:
    code, output, verdict = check(tmp_path, "--min-nodes=2", faults=["check.matmul,node=local-0=exit:9"])
    assert code == 3
    assert "1 of 2 nodes usable, 2 needed" in output
    assert verdict["nodes"][0]["reason"] == "its check ended with exit code 9, during cpu: matmul"


def test_without_devices_the_switchbox_check_is_refused_by_name(tmp_path: Path) -> None:
    code, events, verdict = check(tmp_path, "--switchbox-check=True", "--box-pairs=100:101", "--min-channels=1")
    assert code == 2
    assert "--switchbox-check: --box-pairs needs devices 0 to 101, this machine has " in events
    assert verdict == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": 0}, "--nodes 0"),
        ({"min_nodes": 0}, "--min-nodes 0"),
        ({"nodes": 1, "min_nodes": 2}, "more than --nodes 1"),
        ({"timeout": 0.0}, "--timeout 0"),
        ({"timeout": float("nan")}, "--timeout nan"),
        ({"switchbox_check": True, "box_pairs": "0:1 2"}, "--box-pairs: '2'"),
        ({"switchbox_check": True, "min_bandwidth": 0.0}, "--min-bandwidth 0"),
    ],
)
def test_values_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(StepError, match=words) as caught:
        Config(**changes).check()
    assert caught.value.code == 2

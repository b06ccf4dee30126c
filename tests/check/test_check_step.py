"""The node check with real processes: real products, real gloo, real deaths."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from steps.check import Config
from steps.check.run import summary
from steps.entry import StepError


def check(tmp_path: Path, *flags: str, fault: str = "") -> tuple[int, str, dict]:
    marks = tmp_path / "faults"
    marks.mkdir()
    environment = {**os.environ, "EVERSTEP_FAULT": fault, "EVERSTEP_FAULT_DIR": str(marks)}
    command = [sys.executable, "-m", "steps.check", f"--store={tmp_path}/store", f"--outputs={tmp_path}/out", *flags]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    if fault:
        assert any(marks.iterdir()), "the fault did not fire"
    return done.returncode, done.stderr, json.loads((tmp_path / "out/verdict.json").read_text())


def test_two_healthy_nodes_are_told_with_their_times(tmp_path: Path) -> None:
    code, told, verdict = check(tmp_path)
    assert code == 0, told
    assert told.strip().splitlines()[-1].startswith("2 nodes healthy  matmul ")
    assert [node["verdict"] for node in verdict["nodes"]] == ["healthy", "healthy"]
    assert all(0 < node["matmul_s"] < 3600 and 0 < node["all_reduce_s"] < 3600 for node in verdict["nodes"])
    assert (tmp_path / "out/avoid_hosts").read_text() == "[]"


def test_a_node_that_dies_in_its_products_is_avoided_and_its_partner_is_not_kept_waiting(tmp_path: Path) -> None:
    code, told, verdict = check(tmp_path, fault="check.matmul,node=local-1=kill")
    assert code == 0, told
    assert json.loads((tmp_path / "out/avoid_hosts").read_text()) == ["local-1"]
    assert verdict["nodes"][1]["reason"] == "its check was ended by SIGKILL"
    assert verdict["nodes"][0]["verdict"] == "healthy"


def test_a_node_that_hangs_is_faulty_when_the_time_is_up(tmp_path: Path) -> None:
    code, told, verdict = check(tmp_path, "--time-limit-s=6", fault="check.all_reduce,node=local-0=stop")
    assert code == 0, told
    assert [node["verdict"] for node in verdict["nodes"]] == ["faulty", "healthy"]


def test_too_few_healthy_nodes_end_with_exit_code_3_and_a_verdict(tmp_path: Path) -> None:
    code, told, verdict = check(tmp_path, "--min-nodes=2", fault="check.matmul,node=local-0=exit:9")
    assert code == 3
    assert "1 of 2 nodes usable, 2 needed" in told
    assert verdict["nodes"][0]["reason"] == "its check ended with exit code 9"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": 0}, "--nodes 0"),
        ({"min_nodes": 0}, "--min-nodes 0"),
        ({"nodes": 1, "min_nodes": 2}, "more than --nodes 1"),
        ({"time_limit_s": 0.0}, "--time-limit-s 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(changes: dict, words: str) -> None:
    with pytest.raises(StepError, match=words) as caught:
        Config(**changes).check()
    assert caught.value.code == 2


def test_the_summary_names_whom_to_avoid() -> None:
    good = {"host": "a", "verdict": "healthy", "avoid": False, "matmul_s": 0.4, "all_reduce_s": 3600.0}
    bad = {"host": "b", "verdict": "faulty", "avoid": True, "matmul_s": 3600.0, "all_reduce_s": 3600.0}
    assert summary([good, bad]) == "1 of 2 nodes healthy  matmul 0.40 s  avoid b"

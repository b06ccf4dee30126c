"""The named points: what fires, where, and that it fires once."""

import subprocess
import sys
from pathlib import Path

import pytest

from everstep.runtime.faults import parse_rules

PASS = "from everstep.runtime import faults\nfor n in range(10): faults.point('loop', iteration=n)\nprint('through')"


def run(folder: Path, rules: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"EVERSTEP_FAULT": rules, "EVERSTEP_FAULT_DIR": str(folder), **environment}
    return subprocess.run(
        [sys.executable, "-c", PASS], env=variables, capture_output=True, text=True, check=False, timeout=60
    )


def test_without_a_rule_a_point_does_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, "").stdout == "through\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("action", "code"), [("kill", -9), ("exit:7", 7)])
def test_a_rule_fires_once_in_a_job_and_leaves_its_mark(tmp_path: Path, action: str, code: int) -> None:
    rules = f"loop,iteration=3={action}"
    assert run(tmp_path, rules).returncode == code
    assert [path.name for path in tmp_path.iterdir()] == ["loop"]
    assert run(tmp_path, rules).stdout == "through\n"


def test_two_rules_for_one_point_fire_one_each(tmp_path: Path) -> None:
    rules = "loop,iteration=3=exit:3; loop,iteration=5=exit:5"
    assert [run(tmp_path, rules).returncode for _ in range(3)] == [3, 5, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "loop.2"]


def test_conditions_name_facts_the_node_and_the_rank(tmp_path: Path) -> None:
    rules = "loop,node=worker-1-0,rank=2=exit:9"
    assert run(tmp_path, rules, EVERSTEP_NODE="worker-0-0", RANK="2").returncode == 0
    assert run(tmp_path, rules, EVERSTEP_NODE="worker-1-0", RANK="1").returncode == 0
    assert run(tmp_path, rules, EVERSTEP_NODE="worker-1-0", RANK="2").returncode == 9


def test_a_point_may_raise_or_be_slow(tmp_path: Path) -> None:
    completed = run(tmp_path, "loop,iteration=2=sleep:0.01;loop,iteration=3=raise")
    assert completed.returncode == 1
    assert "InjectedError: injected at loop" in completed.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "loop.2"]


@pytest.mark.parametrize(
    "text", ["loop", "loop=", "=kill", "loop,iteration=kill", "loop=exit:", "loop=pause", "loop=sleep:"]
)
def test_a_rule_that_cannot_be_read_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        list(parse_rules(text))

"""How a step's process ends: outputs as files, a summary in the store, errors in one line."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

STEP = '''
import sys, time
from dataclasses import dataclass
from everstep.runtime.store import StoreError, Unavailable
from everstep.steps.entry import Result, StepError, main

@dataclass(frozen=True)
class Config:
    """A step for tests."""
    how: str = "well"
    store: str = "store"
    run: str = "r"
    task: str = "t"
    outputs: str = "out"

    def check(self) -> None:
        if self.how == "badly":
            raise StepError("how: badly is not a way; say well")

def work(config: Config) -> Result:
    if config.how == "later":
        raise StepError("no quorum", 3)
    if config.how == "long":
        print("working", file=sys.stderr, flush=True)
        time.sleep(60)
    if config.how == "busy":
        raise Unavailable("s3://b: answers 503")
    if config.how == "refused":
        raise StoreError("s3://b: refuses to GET")
    if config.how == "full":
        raise OSError(28, "No space left on device", "store/x")
    return Result("done well", outputs={"uri": "a/b"}, facts={"n": 1})

main("demo", Config, work)
'''


@pytest.fixture
def step(tmp_path: Path) -> list[str]:
    """The command of a small step."""
    (tmp_path / "demo.py").write_text(STEP)
    return [sys.executable, "demo.py"]


def test_outputs_are_files_and_the_summary_lies_in_the_store(step: list[str], tmp_path: Path) -> None:
    run = subprocess.run(step, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (tmp_path / "out" / "uri").read_text() == "a/b"
    summary = json.loads((tmp_path / "store/runs/r/steps/t.json").read_text())
    assert summary["facts"] == {"n": 1}
    assert summary["summary"] == "done well"
    assert run.stderr.splitlines()[-1] == "done well"


@pytest.mark.parametrize(
    ("how", "code", "part"),
    [
        ("badly", 2, "say well"),
        ("later", 3, "no quorum"),
        ("full", 2, "no space"),
        ("busy", 75, "answers 503"),
        ("refused", 2, "refuses to GET"),
    ],
)
def test_an_error_is_one_line_and_its_exit_code(
    step: list[str], how: str, code: int, part: str, tmp_path: Path
) -> None:
    run = subprocess.run([*step, "--how", how], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == code
    assert part in run.stderr
    assert run.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_sigterm_ends_it_without_outputs(step: list[str], tmp_path: Path) -> None:
    process = subprocess.Popen([*step, "--how", "long"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "working\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 143
    assert not (tmp_path / "out").exists()


def test_told_to_end_within_an_import_a_step_ends_right_after_it(tmp_path: Path) -> None:
    """There an exception could be lost, and leave the lock of imports to nobody."""
    script = """
import signal
from everstep.steps import entry
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append("again"))
inside = compile("import signal; signal.raise_signal(signal.SIGTERM); went_on = True", "<frozen importlib._x>", "exec")
signal.signal(signal.SIGTERM, entry._terminate)
here = {}
exec(inside, here)
assert here["went_on"]
signal.pause()
assert seen == ["again"]
try:
    entry._terminate(signal.SIGALRM, None)
except entry.Terminated:
    print("ended")
"""
    (tmp_path / "told.py").write_text(script)
    completed = subprocess.run([sys.executable, "told.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert completed.stdout == "ended\n"

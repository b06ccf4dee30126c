"""How a step's process ends: outputs as files, a summary in the store, errors in one line."""

import itertools
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.runtime import store
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import StoreError, Unavailable
from everstep.steps import entry
from everstep.steps.entry import StepError

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


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(entry, "_LONGEST_PAUSE_S", 0.0)


@pytest.mark.usefixtures("no_pauses")
def test_a_bucket_that_does_not_answer_is_waited_for_and_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[object] = [Unavailable("s3://b: refused"), Unavailable("s3://b: refused"), None]

    def open_store(uri: str) -> None:
        if isinstance(answer := answers.pop(0), Exception):
            raise answer

    monkeypatch.setattr(store, "open_store", open_store)
    entry.wait_for_store("s3://b/p", 60.0)
    assert not answers
    assert (
        capsys.readouterr().err == "waits for the store, at most 60 s: s3://b: refused\nthe store answers: s3://b/p\n"
    )


@pytest.mark.usefixtures("no_pauses")
def test_a_bucket_that_does_not_answer_for_too_long_is_for_another_try(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def open_store(uri: str) -> None:
        asked.append(uri)
        raise Unavailable("s3://b: refused")

    monkeypatch.setattr(store, "open_store", open_store)
    with pytest.raises(StepError, match="--store s3://b/p: s3://b: refused") as caught:
        entry.wait_for_store("s3://b/p", 60.0, now=itertools.count(0.0, 20.0).__next__)
    assert caught.value.code == ExitCode.TRY_AGAIN
    assert len(asked) > 1


def test_what_is_wrong_with_a_bucket_for_good_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_store(uri: str) -> None:
        raise StoreError("s3://b: no such bucket")

    monkeypatch.setattr(store, "open_store", open_store)
    entry.wait_for_store("s3://b/p", 60.0)

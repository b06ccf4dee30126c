"""The whole pipeline, killed from outside: the launcher, everything; Ctrl-C. The same command takes it up again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import ROUNDS, Pipeline, kill, wait_until
from tests.tokenized import SMALL_MODEL, fill_store, small_corpus

EVERY = 20
"""Iterations between two faults."""
RETRIES = 3
"""What the train step's retryStrategy allows in one run."""


@pytest.fixture
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Flags of a small job: little text, short samples, two of them an iteration."""
    return ("--corpus", small_corpus(tmp_path_factory), "--sequence-length", "16", "--global-batch", "2")


@pytest.fixture
def quick(tmp_path_factory: pytest.TempPathFactory, pipeline: Pipeline) -> None:
    """The run trains a small model, with a pause before each iteration, on tokens that its store has already."""
    fill_store(tmp_path_factory, "small", small_corpus(tmp_path_factory), Path(pipeline.store))
    pipeline.flags += SMALL_MODEL


@pytest.fixture
def pipeline(tmp_path: Path, small: tuple[str, ...]) -> Iterator[Pipeline]:
    """A run on a small corpus; whatever a failed test leaves is ended."""
    flags = (*small, "--iterations", str(60 + EVERY * ROUNDS))
    run = Pipeline(tmp_path / "runs" / "x", tmp_path / "store", name="x", flags=flags)
    yield run
    run.kill_all()


def assert_done(run: Pipeline) -> None:
    """Every step has succeeded, there is a report, and nothing is left behind."""
    bad = {name: phase for name, phase in run.phases().items() if phase not in ("Succeeded", "Failed", "Error")}
    assert run.workflow()["status"]["phase"] == "Succeeded"
    assert bad == {}
    assert (run.folder / "report.html").stat().st_size > 10_000
    assert run.leftovers() == []


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_a_killed_launcher_is_followed_by_one_that_goes_on(pipeline: Pipeline) -> None:
    launcher = pipeline.start()
    for number in range(1, ROUNDS + 1):
        pipeline.wait_iteration(EVERY * number)
        os.kill(launcher.pid, signal.SIGKILL)
        assert pipeline.finish() == -9
        assert pipeline.step() is not None
        launcher = pipeline.start()
    assert pipeline.finish() == 0, pipeline.log.read_text()
    tries = [name for name in pipeline.phases() if name.startswith("train(")]
    assert tries == ["train(0)"]
    assert [record["kind"] for record in pipeline.records()].count("MasterClaimed") == 1
    assert_done(pipeline)


@pytest.mark.long
def test_a_run_of_which_everything_was_killed_goes_on_at_the_unfinished_step(pipeline: Pipeline) -> None:
    launcher = pipeline.start()
    for number in range(1, ROUNDS + 1):
        pipeline.wait_iteration(40 + EVERY * number)
        wait_until(lambda: pipeline.has_commit() or pipeline.over(), "a checkpoint in the store")
        before = (pipeline.folder / "logs" / "tokenize(0).log").stat().st_mtime
        os.kill(launcher.pid, signal.SIGKILL)
        for process in pipeline.processes():
            process.kill()
        pipeline.finish()
        wait_until(lambda: not pipeline.processes(), "the end of everything")
        launcher = pipeline.start()
        if number % (RETRIES + 1) == 0:
            launcher = taken_up_again(pipeline)
        wait_until(lambda number=number: masters(pipeline) > number or pipeline.over(), "the next master")
        assert (pipeline.folder / "logs" / "tokenize(0).log").stat().st_mtime == before
    assert pipeline.finish() == 0, pipeline.log.read_text()
    formed = [record["round"] for record in pipeline.records() if record["kind"] == "RoundFormed"]
    assert formed[-1]["restore"]["iteration"] >= 50
    assert_done(pipeline)


def taken_up_again(run: Pipeline) -> subprocess.Popen[bytes]:
    """The step's retries are used up: the run fails, and the same command gives it as many again."""
    assert run.finish() > 0, run.log.read_text()
    assert "No more retries left" in run.log.read_text()
    return run.start()


def masters(run: Pipeline) -> int:
    """Masters that the run's job has had."""
    return [record["kind"] for record in run.records()].count("MasterClaimed")


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_a_killed_step_is_tried_again_within_the_run(pipeline: Pipeline) -> None:
    pipeline.start()
    for number in range(1, ROUNDS + 1):
        pipeline.wait_iteration(EVERY * number)
        wait_until(lambda number=number: masters(pipeline) == number, "the master")
        step = pipeline.step()
        assert step is not None
        kill(step)
        if number % (RETRIES + 1) == 0:
            taken_up_again(pipeline)
    assert pipeline.finish() == 0, pipeline.log.read_text()
    tries = ROUNDS % (RETRIES + 1)
    assert [pipeline.phases()[f"train({number})"] for number in range(tries)] == ["Failed"] * tries
    assert pipeline.phases()[f"train({tries})"] == "Succeeded"
    broken = [record["reason"] for record in pipeline.records() if record["kind"] == "RoundBroken"]
    unplanned_losses = [
        reason for reason in broken if reason != "grow"
    ]  # On a busy machine one of two nodes may come late.
    assert len(unplanned_losses) <= ROUNDS // (RETRIES + 1), broken  # Only a failed run ends its nodes.
    assert_done(pipeline)


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_ctrl_c_stops_everything_and_the_run_can_be_taken_up(pipeline: Pipeline) -> None:
    launcher = pipeline.start()
    for number in range(1, ROUNDS + 1):
        pipeline.wait_iteration(40 + EVERY * number)
        launcher.send_signal(signal.SIGINT)
        assert pipeline.finish() == 130, pipeline.log.read_text()
        assert pipeline.workflow()["status"]["phase"] == "Failed"
        assert pipeline.log.read_text().count("--name x") == number
        assert pipeline.leftovers() == []
        launcher = pipeline.start()
        wait_until(lambda number=number: masters(pipeline) > number or pipeline.over(), "the next master")
    assert pipeline.finish() == 0, pipeline.log.read_text()
    assert_done(pipeline)


def test_the_same_name_with_another_manifest_is_refused(pipeline: Pipeline) -> None:
    launcher = pipeline.start()
    wait_until(lambda: "check(0)" in pipeline.phases() or pipeline.over(), "the first steps")
    os.kill(launcher.pid, signal.SIGINT)
    pipeline.finish()
    pipeline.flags = (*pipeline.flags[:-1], "31")
    pipeline.start()
    assert pipeline.finish() == 2
    assert "another manifest" in pipeline.log.read_text().splitlines()[-1]

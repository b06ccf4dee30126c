"""The whole pipeline, killed from outside: the launcher, everything; Ctrl-C. The same command takes it up again."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Pipeline, kill, wait_until

TEXT = Path(__file__).parents[2] / "runtime"


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    """A run on a small corpus; whatever a failed test leaves is ended."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for path in TEXT.rglob("*.py"):
        (texts / f"{path.parent.name}-{path.stem}.txt").write_text(path.read_text())
    flags = ("--corpus", f"{texts}/*.txt", "--iterations", "150")
    run = Pipeline(tmp_path / "runs" / "x", tmp_path / "store", name="x", flags=flags)
    yield run
    run.kill_all()


def assert_done(run: Pipeline) -> None:
    """Every step has succeeded, there is a report, and nothing is left behind."""
    bad = {name: phase for name, phase in run.phases().items() if phase not in ("Succeeded", "Failed", "Error")}
    assert run.workflow()["status"]["phase"] == "Succeeded"
    assert bad == {}
    assert (run.folder / "report.html").stat().st_size > 10_000
    assert run.left() == []


def test_a_killed_launcher_is_followed_by_one_that_goes_on(pipeline: Pipeline) -> None:
    launcher = pipeline.start()
    pipeline.wait_iteration(20)
    os.kill(launcher.pid, signal.SIGKILL)
    assert pipeline.finish() == -9
    step = pipeline.step()
    assert step is not None
    pipeline.start()
    assert pipeline.finish() == 0, pipeline.log.read_text()
    tries = [name for name in pipeline.phases() if name.startswith("train(")]
    assert tries == ["train(0)"]
    assert [record["kind"] for record in pipeline.records()].count("MasterClaimed") == 1
    assert_done(pipeline)


def test_a_run_of_which_everything_was_killed_goes_on_at_the_unfinished_step(pipeline: Pipeline) -> None:
    pipeline.start()
    pipeline.wait_iteration(60)
    before = (pipeline.folder / "logs" / "tokenize(0).log").stat().st_mtime
    launcher = pipeline.started[-1]
    os.kill(launcher.pid, signal.SIGKILL)
    for process in pipeline.processes():
        process.kill()
    pipeline.finish()
    wait_until(lambda: not pipeline.processes(), "the end of everything")
    pipeline.start()
    assert pipeline.finish() == 0, pipeline.log.read_text()
    assert (pipeline.folder / "logs" / "tokenize(0).log").stat().st_mtime == before
    formed = [record["round"] for record in pipeline.records() if record["kind"] == "RoundFormed"]
    assert formed[-1]["restore"]["iteration"] >= 50
    assert_done(pipeline)


def test_a_killed_step_is_tried_again_within_the_run(pipeline: Pipeline) -> None:
    pipeline.start()
    pipeline.wait_iteration(20)
    step = pipeline.step()
    assert step is not None
    kill(step)
    assert pipeline.finish() == 0, pipeline.log.read_text()
    assert pipeline.phases()["train(0)"] == "Failed"
    assert pipeline.phases()["train(1)"] == "Succeeded"
    assert not [record for record in pipeline.records() if record["kind"] == "RoundBroken"]
    assert_done(pipeline)


def test_ctrl_c_stops_everything_and_the_run_can_be_taken_up(pipeline: Pipeline) -> None:
    launcher = pipeline.start()
    pipeline.wait_iteration(60)
    launcher.send_signal(signal.SIGINT)
    assert pipeline.finish() == 130, pipeline.log.read_text()
    assert pipeline.workflow()["status"]["phase"] == "Failed"
    assert "--name x" in pipeline.log.read_text()
    assert pipeline.left() == []
    pipeline.start()
    assert pipeline.finish() == 0, pipeline.log.read_text()
    assert_done(pipeline)


def test_the_same_name_with_another_manifest_is_refused(pipeline: Pipeline) -> None:
    launcher = pipeline.start()
    pipeline.wait_iteration(1)
    os.kill(launcher.pid, signal.SIGINT)
    pipeline.finish()
    pipeline.flags = (*pipeline.flags[:-1], "151")
    pipeline.start()
    assert pipeline.finish() == 2
    assert "another manifest" in pipeline.log.read_text().splitlines()[-1]

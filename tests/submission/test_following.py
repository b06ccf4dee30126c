"""A submitted pipeline as a person meets it: the command, its lines, its exit code."""

import io
import itertools
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import requests
import yaml

from everstep.runtime.submission import choose, submit
from everstep.runtime.submission.follow import UNSEEN, Follower, updates
from everstep.runtime.submission.route import ApiError, Trouble
from everstep.runtime.submission.run import watch
from tests.submission.clusters import BREAK, DELETED, END, Cluster
from tests.submission.conftest import Environment

PIPELINE = Path(__file__).parents[2] / "pipelines" / "llama_finetune.py"
ON_ARGO = ("--store", "s3://bucket/prefix", "--image", "registry.example/everstep:1", "--name", "drill-1")
DEADLINE_S = 120


def states(phase: str, code: str = "0", message: str = "") -> list[Any]:
    """A run of one step: it starts, then ends so."""

    def state(phase: str, node: str, **more: Any) -> dict[str, Any]:
        root = {"id": "drill-1", "name": "drill-1", "displayName": "drill-1", "type": "DAG", "phase": phase}
        step = {
            "id": "drill-1-7", "name": "drill-1.train", "displayName": "train", "type": "Pod", "templateName": "train",
            "boundaryID": "drill-1", "phase": node, "startedAt": "2026-01-01T00:00:00Z", **more,
        }  # fmt: skip
        nodes = {"drill-1": {**root, "outboundNodes": ["drill-1-7"]}, "drill-1-7": step}
        return {"phase": phase, "message": message, "progress": "1/1", "nodes": nodes}

    outputs = {"exitCode": code, "parameters": [{"name": "iterations", "value": "200"}]}
    end = {"finishedAt": "2026-01-01T00:00:07Z", "message": message, "outputs": outputs}
    return [state("Running", "Running"), state(phase, phase, **end)]


def train_pod() -> str:
    """The step's pod, as Argo names it."""
    from everstep.runtime.workflow.engine.nodes import pod_name

    return pod_name("drill-1", "drill-1.train", "train")


class CommandEnd(NamedTuple):
    """How a pipeline's command ended."""

    returncode: int
    stdout: str
    stderr: str


Call = Callable[..., CommandEnd]


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """The pipeline as a user calls it, in an empty folder; in this process, for importing takes most of the time."""

    def call(environment: Environment, *arguments: str) -> CommandEnd:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", [str(PIPELINE), *arguments])
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(os, "_exit", sys.exit)
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(PIPELINE), run_name="__main__")
        captured = capfd.readouterr()
        return CommandEnd(int(end.value.code or 0), captured.out, captured.err)

    return call


def test_a_pipeline_is_submitted_watched_and_ends_with_its_outputs(
    pipeline: Call, environment: Environment, cluster: Cluster
) -> None:
    cluster.states = states("Succeeded")
    completed = pipeline(environment, *ON_ARGO)
    assert completed.returncode == 0, completed.stderr
    lines = completed.stderr.splitlines()
    assert lines[0].startswith("drill-1 · target argo (")
    assert "drill-1" in lines[0].rpartition("·")[2]
    assert lines[1].split() == ["●", "train", "started"] or lines[1].split()[:3] == ["●", "train", "started"]
    assert lines[2].split() == ["✔", "train", "7", "s"]
    assert lines[3] == "iterations: 200"
    assert cluster.submitted[0]["metadata"]["name"] == "drill-1"
    assert "secret-token" not in completed.stderr + completed.stdout


def test_a_failed_step_ends_with_its_exit_code_and_the_end_of_its_log(
    pipeline: Call, environment: Environment, cluster: Cluster
) -> None:
    cluster.states = states("Failed", "3", "main: Error (exit code 3)")
    argos = 'time="2026-11-23T11:43:03 UTC" level=info msg="sub-process exited" argo=true'
    of_41 = 'time=2026-11-27T03:51:18.818Z level=INFO msg="saving parameter" argo=true src=/tmp/outputs/fired'
    cluster.logs[train_pod()] = [*(f"line {n}" for n in range(40)), "no healthy quorum", argos, of_41]
    completed = pipeline(environment, *ON_ARGO)
    assert completed.returncode == 3, completed.stderr
    assert "✖ train" in completed.stderr
    assert "     no healthy quorum\n" in completed.stderr
    assert "line 39" in completed.stderr
    assert "argo=true" not in completed.stderr
    assert "line 3\n" not in completed.stderr


def test_detached_it_only_submits(pipeline: Call, environment: Environment, cluster: Cluster) -> None:
    completed = pipeline(environment, *ON_ARGO, "--detach")
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr.count("\n") == 1
    assert len(cluster.submitted) == 1
    assert not any("watch" in query or "workflow-events" in path for _, path, query in cluster.asked)


def test_logs_go_to_stdout_line_by_line(pipeline: Call, environment: Environment, cluster: Cluster) -> None:
    cluster.states = states("Succeeded")
    cluster.logs[train_pod()] = ["iteration 1", "iteration 2"]
    completed = pipeline(environment, *ON_ARGO, "--logs")
    assert completed.stdout == "train: iteration 1\ntrain: iteration 2\n"


def test_the_printed_manifest_is_the_submitted_one(pipeline: Call, environment: Environment, cluster: Cluster) -> None:
    manifest_run = pipeline(environment, *ON_ARGO, "--service-account", "runner", "-o", "yaml")
    pipeline(environment, *ON_ARGO, "--service-account", "runner", "--detach")
    assert cluster.submitted == [yaml.safe_load(manifest_run.stdout)]


def test_ctrl_c_leaves_the_run_to_itself(environment: Environment, cluster: Cluster, tmp_path: Path) -> None:
    cluster.states = states("Running")
    running = subprocess.Popen(
        [sys.executable, "-c", START, str(PIPELINE), *ON_ARGO],
        cwd=tmp_path,
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stderr
    wanted_line = next(line for line in running.stderr if "train" in line and "target" not in line)
    assert "started" in wanted_line
    running.send_signal(signal.SIGINT)
    rest = running.communicate(timeout=DEADLINE_S)[1]
    assert running.returncode == 130, rest
    assert "drill-1 continues" in rest
    assert not any(method == "DELETE" for method, _, _ in cluster.asked)


START = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A shell's background processes ignore SIGINT; a person's do not."""


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--target", "argo"], "--store s3://"),
        (["--store", "s3://b/p"], "needs --image"),
        ([*ON_ARGO, "--watch", "--detach"], "give only one of them"),
        ([*ON_ARGO, "--detach", "--logs"], "--logs"),
        ([*ON_ARGO[:-1], "Not_A_Name"], "Not_A_Name"),
        (
            ["--target", "local", "--image", "x", "--detach"],
            "--detach, --image: only for Argo, and the target is local (--target local): run without, or give --target "
            "argo",
        ),
    ],
)
def test_what_cannot_be_submitted_is_one_line_and_nothing_is_sent(
    pipeline: Call, by_server: Environment, cluster: Cluster, tmp_path: Path, arguments: list[str], part: str
) -> None:
    before = set(tmp_path.iterdir())
    completed = pipeline(by_server, *arguments)
    assert completed.returncode == 2
    assert part in completed.stderr
    assert completed.stderr.count("\n") == 1, completed.stderr
    assert not cluster.submitted
    assert set(tmp_path.iterdir()) == before


def test_what_the_argo_refuses_is_one_line(pipeline: Call, environment: Environment, cluster: Cluster) -> None:
    cluster.refuse = [(403, "workflows.argoproj.io is forbidden")]
    completed = pipeline(environment, *ON_ARGO)
    assert completed.returncode == 2
    assert completed.stderr.count("\n") == 1, completed.stderr
    assert "is forbidden (403)" in completed.stderr


@pytest.fixture
def follower(environment: Environment, manifest: Callable[..., dict[str, Any]]) -> Callable[[], Iterator[Any]]:
    """Submits a run and follows it without waiting."""

    def start() -> Iterator[Any]:
        route = choose("argo", environment).route
        assert route
        submit(route, manifest())
        return updates(route, "drill-1", lambda _: None)

    return start


def test_a_stream_that_breaks_is_opened_again(cluster: Cluster, follower: Callable[[], Iterator[Any]]) -> None:
    first, last = states("Succeeded")
    cluster.states = [first, BREAK, BREAK, last]
    phases = [news["status"]["phase"] for news in follower() if not isinstance(news, ApiError) and "status" in news]
    assert phases[-1] == "Succeeded"
    assert cluster.states == []


@pytest.mark.parametrize("length_is_told", [True, False])
def test_an_answer_that_breaks_off_is_asked_for_again(
    cluster: Cluster, follower: Callable[[], Iterator[Any]], length_is_told: bool
) -> None:
    cluster.states = states("Succeeded")
    news_read = follower()
    cluster.torn = [length_is_told]
    first, *others = news_read
    assert isinstance(first, ApiError)
    assert first.trouble is Trouble.LOST
    assert others[-1]["status"]["phase"] == "Succeeded"


def test_a_line_that_is_cut_in_a_stream_is_no_trouble(by_server: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    route = choose("argo", by_server).route
    assert route
    cut = requests.Response()
    cut.raw = io.BytesIO(b'data: {"result": {"object": {}}}\n\ndata: {"result": {"obj')
    monkeypatch.setattr(route, "_request", lambda *_, **__: cut)
    assert list(route.changes("drill-1")) == [{}]


def test_whatever_ends_the_thread_that_reads_ends_following() -> None:
    class WrongRoute:
        def get(self, name: str) -> dict[str, Any]:
            raise RuntimeError("not foreseen")

    shown_count = itertools.count()

    def show(_: object) -> None:
        assert next(shown_count) < 4, "it is followed for ever"

    route: Any = WrongRoute()
    with (
        Follower(route, {"metadata": {"name": "drill-1"}}, tails=False) as follower,
        pytest.raises(RuntimeError, match="not foreseen"),
    ):
        follower.follow(show)


def test_a_stream_that_the_other_side_ends_is_no_trouble(
    cluster: Cluster, follower: Callable[[], Iterator[Any]]
) -> None:
    first, last = states("Succeeded")
    cluster.states = [first, END, END, last]
    news_list = list(follower())
    assert not [news for news in news_list if isinstance(news, ApiError)]
    assert news_list[-1]["status"]["phase"] == "Succeeded"


def test_a_refusal_of_what_was_allowed_until_now_is_asked_again(
    by_kube: Environment, cluster: Cluster, manifest: Callable[..., dict[str, Any]]
) -> None:
    """As of an API server that has just started and has not read its own rules yet."""
    route = choose("argo", by_kube).route
    assert route
    submit(route, manifest())
    first, last = states("Succeeded")
    cluster.states = [first, BREAK, last]
    tokens = iter(["another", cluster.token])

    def wait(_: float) -> None:
        cluster.token = next(tokens)

    news_list = list(updates(route, "drill-1", wait))
    assert [news.trouble for news in news_list if isinstance(news, ApiError)] == [Trouble.BUSY]
    assert not isinstance(news_list[-1], ApiError)
    assert news_list[-1]["status"]["phase"] == "Succeeded"


def test_a_deleted_run_ends_the_watch(
    route: Any, cluster: Cluster, manifest: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    submission = submit(route, manifest())
    cluster.states = [states("Succeeded")[0], DELETED]
    assert watch(route, submission.workflow, logs=False) == 75
    assert "drill-1: workflow drill-1 was deleted" in capsys.readouterr().err


def test_nobody_who_takes_a_run_up_is_told(
    route: Any,
    cluster: Cluster,
    manifest: Callable[..., dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("everstep.runtime.submission.follow.TAKEN_UP_S", -1.0)
    submission = submit(route, manifest())
    cluster.states = [{}, *states("Succeeded")]
    assert watch(route, submission.workflow, logs=False) == 0
    assert UNSEEN in capsys.readouterr().err

"""`everstep top RUN -n NAMESPACE` shows the ranks of all pods of a job together; a small server speaks the API."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from everstep.cli.main import main
from everstep.cli.top_table import RankRow, Window
from everstep.runtime.platform.kubernetes import Owner
from everstep.runtime.platform.kubernetes.pods import JOB, NODE, digest
from everstep.runtime.platform.kubernetes.sizes import sizes_config_map
from everstep.runtime.watch.board_fields import Board
from everstep.runtime.watch.slow_ranks import Pace
from everstep.runtime.watch.timeline import chrome_trace
from tests.platform.pod_api import PodApi
from tests.submission.conftest import kube_config

TOP = ["top", "run", "-n", "ml", "--every", "2"]
PODS = ["python", "-m", "everstep", "top", "u-1-train"]
"""What begins the command in a pod."""


@contextmanager
def served(server: PodApi) -> Iterator[str]:
    """Its URL; it runs in a thread, beside the command."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result()
        asyncio.run_coroutine_threadsafe(server.__aexit__(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PodApi]:
    """A run whose step trains in two pods; another pod of it has ended."""
    server = PodApi()
    parameters = [{"name": "store", "value": str(tmp_path / "store")}]
    metadata = {"name": "run", "uid": "u-1"}
    server.workflows["run"] = {"metadata": metadata, "spec": {"arguments": {"parameters": parameters}}}
    sizes = sizes_config_map("u-1-train", Owner("run", "u-1"), {"worker": 2})
    server.configmaps[sizes["metadata"]["name"]] = sizes
    for number, phase in enumerate(("Running", "Running", "Succeeded")):
        labels = {JOB: digest("u-1-train"), NODE: f"worker-{number}-0"}
        server.pods[f"pod-{number}"] = {"metadata": {"name": f"pod-{number}", "labels": labels, "annotations": {}},
                                        "spec": {}, "status": {"phase": phase}}  # fmt: skip
    with served(server) as url:
        monkeypatch.setenv("KUBECONFIG", str(kube_config(tmp_path, url, server.token)))
        yield server


def words_of(rank: int) -> bytes:
    """What the command prints in the pod of that rank; the other one waits for rank 1."""
    pace = Pace(rank, 20, 100, 0.0 if rank else 0.9, 0.1)
    row = RankRow(
        f"worker-{rank}-0", 40 + rank, 2, 120, 10.0, 0.25, 1.0, 3 << 20, "-", "", None if rank else 500.0, pace
    )
    return msgspec.json.encode(Window("u-1-train", 2, (row,))) + b"\n"


def test_the_ranks_of_all_pods_are_one_table(server: PodApi, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter((words_of(1), words_of(0)))
    server.execute = lambda _: (next(answers), "")
    assert main([*TOP, "--times", "1"]) == 0
    head, _, first, second, slow, event = capsys.readouterr().out.splitlines()
    assert head == "u-1-train: iteration 120, 10.00 iterations/s, 500 tokens/s, 2 of 2 ranks, 2 nodes"
    assert (first.split()[:2], second.split()[:2]) == (["0", "worker-0-0"], ["1", "worker-1-0"])
    assert "rank 1" in slow
    assert event.startswith("last event: ")
    words = [*PODS, "-o", "json", "--times", "1", "--every", "2"]
    assert sorted(server.executed) == [("pod-0", "agent", words), ("pod-1", "agent", words)]


def test_for_programs_it_is_the_same_lines_together(server: PodApi, capsys: pytest.CaptureFixture[str]) -> None:
    answers = iter((words_of(0), words_of(1)) * 2)
    server.execute = lambda _: (next(answers), "")
    assert main([*TOP, "--times", "2", "-o", "json"]) == 0
    for line in capsys.readouterr().out.splitlines():
        shown = msgspec.json.decode(line, type=Window)
        assert [row.rank for row in shown.ranks] == [0, 1]


def test_a_pod_without_an_answer_is_said_and_the_end_of_all_pods_is_the_end(
    server: PodApi, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter((words_of(0), b""))

    def execute(_: list[str]) -> tuple[bytes, str]:
        answer = next(answers)
        if not answer:
            for name in server.pods:
                server.become(name, phase="Succeeded")
        return answer, "" if answer else "it has no worker"

    server.execute = execute
    assert main(TOP) == 0
    printed = capsys.readouterr()
    assert "1 of 2 ranks, 1 node\n" in printed.out
    assert "it has no worker" in printed.err


def test_the_timeline_of_all_pods_is_one_file(server: PodApi, tmp_path: Path) -> None:
    boards = [Board(40 + rank, rank, 2, 0, 1, iteration=2, ended_at=9.0, recent=(0.0, 0.5, 0.5)) for rank in (0, 1)]
    answers = iter(chrome_trace([(f"worker-{board.rank}-0", board)]).encode() for board in boards)
    server.execute = lambda _: (next(answers), "")
    assert main([*TOP, "--timeline", str(tmp_path / "t.json")]) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    nodes = {event["args"]["name"]: event["pid"] for event in events if event["name"] == "process_name"}
    assert set(nodes) == {"worker-0-0", "worker-1-0"}
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} == {
        (nodes["worker-0-0"], 0), (nodes["worker-1-0"], 1)
    }  # fmt: skip
    assert len(set(nodes.values())) == 2
    assert all(words == [*PODS, "--timeline", "-"] for _, _, words in server.executed)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ([*TOP], "run: no pod of it has said what its ranks do"),
        (["top", "-n", "ml"], "--namespace ml: name the run"),
        (["top", "run/check", "-n", "ml"], "give RUN/STEP with one of its training steps: train"),
        ([*TOP, "--timeline", "t.json"], "run: no pod of it has sent its iterations"),
        (["top", "-n", "ml", "--timeline", "t.json"], "--namespace ml: name the run"),
        (
            [*TOP, "--profile", "to"],
            "--profile to is of the ranks on this machine; in a pod of the job: kubectl exec POD -c agent -n ml -- "
            "python -m everstep top --profile DIR",
        ),
    ],
)
def test_what_cannot_be_shown_is_one_line(
    server: PodApi, words: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line

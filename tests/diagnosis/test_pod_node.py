"""A pod of a check: on all its cores, and what it does when it is over."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from everstep.runtime.diagnosis import pod_node
from everstep.runtime.diagnosis.errors import MeasurementError, UnknownNodeError
from everstep.runtime.diagnosis.pod_node import main, wait_for_start
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.protocol.handover import NodeStart, encode_start, start_key
from everstep.runtime.store import open_store
from everstep.runtime.system.cpus import usable_cpus

KEY, TOKEN = start_key("u-train", "pod-1"), "hush"
ENVIRONMENT = {"EVERSTEP_HOST": "a", "EVERSTEP_IP": "127.0.0.1", "EVERSTEP_JOB": "j", "EVERSTEP_JOB_TOKEN": "t"}


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The process that runs the tests keeps its own answer to SIGTERM."""
    monkeypatch.setattr(pod_node, "LOOK_S", 0.01)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def test_it_measures_on_all_cores_that_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []

    def start(threads: int) -> NoReturn:
        used.append(threads)
        raise MeasurementError("no more is asked here")

    monkeypatch.setattr(pod_node, "start_measurement_process", start)
    assert main(["--coordinator", "127.0.0.1:1", "--node", "check-0"], ENVIRONMENT) == ExitCode.TRY_AGAIN
    assert used == [usable_cpus()]


def test_a_node_that_its_coordinator_does_not_know_may_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_part(*_: object) -> NoReturn:
        raise UnknownNodeError("node check-0 has not arrived here")

    monkeypatch.setattr(pod_node, "_take_part", take_part)
    assert main(["--coordinator", "127.0.0.1:1", "--node", "check-0"], ENVIRONMENT) == ExitCode.TRY_AGAIN


def test_what_the_training_left_is_what_it_runs(tmp_path: Path) -> None:
    store, start = open_store(str(tmp_path)), NodeStart(("--node", "worker-0-0"), {"EVERSTEP_JOB": "u-train"})
    store.put(KEY, encode_start(start, KEY, TOKEN))
    assert wait_for_start(store, KEY, TOKEN, 60) == start


def test_nobody_is_waited_for_longer_than_it_is_held(tmp_path: Path) -> None:
    assert wait_for_start(open_store(str(tmp_path)), KEY, TOKEN, 0.01) is None


def test_it_starts_when_the_training_comes(tmp_path: Path) -> None:
    store, start = open_store(str(tmp_path)), NodeStart((), {})
    threading.Timer(0.05, lambda: store.put(KEY, encode_start(start, KEY, TOKEN))).start()
    assert wait_for_start(store, KEY, TOKEN, 60) == start


@pytest.mark.parametrize(
    "data",
    [
        b"no JSON", b"{}", encode_start(NodeStart((), {}), KEY, "another job's token"),
        encode_start(NodeStart((), {}), start_key("u-train", "pod-2"), TOKEN),
    ],
)  # fmt: skip
def test_what_the_trainings_master_did_not_write_for_this_pod_is_not_run(data: bytes, tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put(KEY, data)
    assert wait_for_start(store, KEY, TOKEN, 0.01) is None

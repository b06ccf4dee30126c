"""How a worker that survives leaves its round and takes a seat in the next one."""

import json
import os
import re
import threading
from pathlib import Path

import pytest
import torch.distributed as dist

from everstep.left_behind import LeftBehind
from everstep.reentry import _lost_connection, _may_follow
from tests.forks import Forks
from tests.training.failed_network_script import ENDED_ALONE, LEAVING

SCRIPT = Path(__file__).with_name("leaving_script.py")
FAILED_NETWORK = Path(__file__).with_name("failed_network_script.py")
KEPT_READER = Path(__file__).with_name("kept_reader_script.py")
STARTING_READER = Path(__file__).with_name("starting_reader_script.py")
ENDING_READER = Path(__file__).with_name("ending_reader_script.py")
ENTRY_STATE = Path(__file__).with_name("entry_state_script.py")
RETURNING = Path(__file__).with_name("returning_script.py")
LAST_ITERATION = Path(__file__).with_name("last_iteration_script.py")
RELEASING = Path(__file__).with_name("releasing_script.py")


def caused(error: BaseException, by: BaseException) -> BaseException:
    """The error, from another."""
    error.__cause__ = by
    return error


def test_a_seat_that_comes_at_once_is_taken(tmp_path: Path, forks: Forks) -> None:
    number = forks.start([str(SCRIPT)], {}, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()


def test_no_group_is_aborted_while_a_survivor_releases_its_groups(tmp_path: Path, forks: Forks) -> None:
    number = forks.start([str(RELEASING)], {}, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()


def test_an_iteration_is_ended_when_its_round_has_lost_no_rank(tmp_path: Path, forks: Forks) -> None:
    number = forks.start([str(LAST_ITERATION), str(tmp_path / "out")], {}, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()
    assert (tmp_path / "out").read_text() == "[[1, 2], [1, 2, 3]]"


def test_a_kept_data_reader_goes_on_in_the_next_round_with_the_same_worker(tmp_path: Path, forks: Forks) -> None:
    number = forks.start([str(KEPT_READER), str(tmp_path / "out")], {}, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()
    survivor, before, after = json.loads((tmp_path / "out").read_text())
    assert len(before) == 1
    assert before == after
    assert before != [survivor]


def test_a_round_that_ends_while_a_data_loader_starts_leaves_no_process(tmp_path: Path, forks: Forks) -> None:
    number = forks.start([str(STARTING_READER), str(tmp_path / "out")], {}, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()
    assert json.loads((tmp_path / "out").read_text()) == {"read": [*range(6)], "left": 0}


@pytest.mark.parametrize(
    ("where", "fired", "left"),
    [
        ("loop", ["loop"], [0]),
        ("next", ["_try_get_data"], [0]),
        ("reset", ["_reset", "loop"], [2, 0]),
        ("answer", [], [2]),
    ],
)
def test_a_data_loader_that_reads_when_its_round_ends_gives_each_sample_in_the_next_one(
    where: str, fired: list[str], left: list[int], tmp_path: Path, forks: Forks
) -> None:
    number = forks.start([str(ENDING_READER), str(tmp_path / "out"), where], {}, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()
    result = json.loads((tmp_path / "out").read_text())
    assert sorted(set(result["fired"]) - {"answer"}) == fired
    assert "answer" in result["fired"], "an answer was received whole"
    last = len(left) + 1
    assert [100 * last + sample for sample in range(6)] == result["seen"][-1]
    assert result["left"] == left
    assert (tmp_path / "err").read_text() == ""


def test_a_function_that_is_entered_again_finds_the_process_as_it_first_did(tmp_path: Path, forks: Forks) -> None:
    number = forks.start([str(ENTRY_STATE), str(tmp_path / "out")], {}, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()
    first, second = json.loads((tmp_path / "out").read_text())
    assert first == second


@pytest.mark.parametrize("how", ["returns", "exits", "swallows"])
def test_a_worker_whose_function_is_done_is_no_survivor_any_more(how: str, tmp_path: Path, forks: Forks) -> None:
    number = forks.start([str(RETURNING), str(tmp_path / "out"), how], {}, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()
    assert (tmp_path / "out").read_text() == "[1, 2] ['Survive', 'Left', 'Seated']"


@pytest.mark.parametrize(
    ("word", "code"), [("lost", LEAVING), ("told", LEAVING), ("raised", LEAVING), ("alone", ENDED_ALONE)]
)
def test_a_communicators_error_is_told_to_the_agent_and_ends_the_worker_only_if_nobody_ends_the_round(
    word: str, code: int, tmp_path: Path, forks: Forks
) -> None:
    number = forks.start([str(FAILED_NETWORK), word], {}, tmp_path / "err")
    assert forks.wait(number) == code, (tmp_path / "err").read_text()
    printed = (tmp_path / "err").read_text()
    told = "LostConnection(round=1, error='COMM_ERROR of default_pg on cuda')"
    assert printed.count(told) == (0 if word == "lost" else 1)
    assert ("COMM_ERROR of default_pg on cuda: this worker ends" in printed) is (word == "alone")


def test_an_error_of_the_scripts_own_that_the_rounds_end_interrupts_is_said(tmp_path: Path, forks: Forks) -> None:
    number = forks.start([str(FAILED_NETWORK), "cleaning"], {}, tmp_path / "err")
    assert forks.wait(number) == LEAVING, (tmp_path / "err").read_text()
    said = "everstep: the end of the round has interrupted this: ValueError: a bad batch (failed_network_script.py:"
    assert said in (tmp_path / "err").read_text()


GLOO = "[../gloo/transport/tcp/pair.cc:547]"
MISMATCH = (
    f"[enforce fail at {GLOO}] op.preamble.length <= op.nbytes. 72 vs 4. Received data size doesn't match expected "
    "size. Is there a distributed collective mismatch in your code?"
)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"{GLOO} Connection closed by peer [127.0.0.1]:4242"),
        RuntimeError(f"{GLOO} Read error [10.0.0.2]:4242: Connection reset by peer"),
        RuntimeError(f"{GLOO} writev [10.0.0.2]:4242: Broken pipe"),
        RuntimeError(f"{GLOO} Read error [10.0.0.2]:4242: Connection timed out"),
        RuntimeError("Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:141] Connect: No route to host"),
        dist.DistNetworkError("failed to recv, got 0 bytes"),
        dist.DistBackendError(
            "NCCL error in: a.cpp:94, remote process exited or there was a network error\nncclRemoteError"
        ),
        dist.DistBackendError("NCCL error in: a.cpp:94, unhandled system error\nncclSystemError: System call failed"),
        RuntimeError("NCCL AllReduce failed: unhandled system error (run with NCCL_DEBUG=INFO for details)"),
        caused(ValueError("in the script's own words"), RuntimeError(f"{GLOO} Connection closed by peer [::1]:4242")),
    ],
    ids=str,
)
def test_an_error_of_a_connection_is_told_in_a_line(error: BaseException) -> None:
    line = _lost_connection(error)
    assert line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("error", "may_follow"),
    [
        (RuntimeError(MISMATCH), False),
        (
            dist.DistBackendError("NCCL error in: a.cpp:94, invalid usage\nncclInvalidUsage: Duplicate GPU detected"),
            False,
        ),
        (dist.DistBackendError("NCCL error in: a.cpp:94\nncclInvalidArgument: Invalid value"), False),
        (ValueError("Connection closed by peer"), False),
        (RuntimeError(f"{GLOO} Timed out waiting 600000ms for recv operation to complete"), False),
        (dist.DistStoreError("wait timeout after 300000ms, keys: /default_pg/0"), False),
        (RuntimeError(f"{GLOO} something that nobody knows"), True),
        (caused(ValueError("in the script's own words"), dist.DistError("something that nobody knows")), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (RuntimeError("Connection to a database was lost"), True),
    ],
    ids=str,
)
def test_an_error_of_the_scripts_own_is_no_connections_and_waits_only_if_it_may_follow_from_another_ranks_end(
    error: BaseException, may_follow: bool
) -> None:
    assert _lost_connection(error) == ""
    assert _may_follow(error) is may_follow


def test_files_and_threads_that_each_round_leaves_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    left_behind, ended, files = LeftBehind(), threading.Event(), list[int]()
    for number in range(20):  # Others that were there before.
        threading.Thread(target=ended.wait, name=f"Thread-{number}", daemon=True).start()
    try:
        for _ in range(15):
            left_behind.look()
            files += [os.open(__file__, os.O_RDONLY) for _ in range(2)]
            threading.Thread(target=ended.wait, name="Ticker-1", daemon=True).start()
        printed = capsys.readouterr().err
    finally:
        ended.set()
        for file in files:
            os.close(file)
    assert printed.count("\n") == 2
    assert re.search(rf"left more open files .* 10 are {__file__};", printed)
    assert re.search(r"left more threads .* 5 are thread Ticker;", printed)


def test_what_grows_in_some_rounds_alone_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    left_behind, files = LeftBehind(), list[int]()
    try:
        for round_ in range(15):
            left_behind.look()
            if round_ % 5:
                files.append(os.open(__file__, os.O_RDONLY))
    finally:
        for file in files:
            os.close(file)
    assert capsys.readouterr().err == ""

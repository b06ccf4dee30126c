"""How a worker that survives leaves its round and takes a seat in the next one."""

import json
from pathlib import Path

import pytest

from tests.forks import Forks
from tests.training.failed_network_script import ENDED_ALONE, LEAVING

SCRIPT = Path(__file__).with_name("leaving_script.py")
FAILED_NETWORK = Path(__file__).with_name("failed_network_script.py")
KEPT_READER = Path(__file__).with_name("kept_reader_script.py")
LAST_ITERATION = Path(__file__).with_name("last_iteration_script.py")


def test_a_seat_that_comes_at_once_is_taken(tmp_path: Path, forks: Forks) -> None:
    number = forks.start([str(SCRIPT)], {}, tmp_path / "err")
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


@pytest.mark.parametrize(("word", "code"), [("lost", LEAVING), ("alone", ENDED_ALONE)])
def test_a_communicators_error_ends_a_worker_unless_a_peer_was_lost(
    word: str, code: int, tmp_path: Path, forks: Forks
) -> None:
    number = forks.start([str(FAILED_NETWORK), word], {}, tmp_path / "err")
    assert forks.wait(number) == code, (tmp_path / "err").read_text()
    said = "COMM_ERROR of default_pg on cuda: this worker ends" in (tmp_path / "err").read_text()
    assert said is (word == "alone")

"""A worker that survives takes its seat however soon the agent answers that it has left."""

from pathlib import Path

from tests.forks import Forks

SCRIPT = Path(__file__).with_name("leaving_script.py")


def test_a_seat_that_comes_at_once_is_taken(tmp_path: Path, forks: Forks) -> None:
    number = forks.start([str(SCRIPT)], {}, tmp_path / "err")
    assert forks.wait(number) == 0, (tmp_path / "err").read_text()

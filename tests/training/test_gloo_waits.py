"""A rank whose peer dies within a message waits for ever in gloo, unless the wait is ended for it."""

import random
import threading
import time
from pathlib import Path

import pytest

from everstep.gloo_waits import GlooWaits
from everstep.runtime.agent.ports import free_port
from tests.forks import Forks

SCRIPT = Path(__file__).with_name("half_message_script.py")

ENDED = "gloo: the connection ended within a message"


@pytest.mark.parametrize(("direction", "raised"), [("send", ENDED), ("receive", ENDED), ("release", "nothing")])
def test_a_wait_that_gloo_has_forgotten_is_ended(tmp_path: Path, forks: Forks, direction: str, raised: str) -> None:
    done_path, places = tmp_path / "done", {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    places["MASTER_PORT"] = str(free_port(random.Random()))
    numbers = [
        forks.start([str(SCRIPT), direction, str(done_path)], {**places, "RANK": str(rank)}, tmp_path / f"{rank}.err")
        for rank in range(2)
    ]
    assert [forks.wait(number) for number in numbers] == [0, -9], (tmp_path / "0.err").read_text()
    assert done_path.read_text() == f"1 {raised}"


def test_waits_of_others_go_on() -> None:
    woken, waits = threading.Event(), GlooWaits()
    thread = threading.Thread(target=woken.wait)
    thread.start()
    for _ in range(3):
        assert waits.end_forgotten() == 0
        time.sleep(0.01)
    assert thread.is_alive()
    woken.set()
    thread.join()

"""What waits for a peer that does not come raises when the groups' sockets are cut; other sockets are left alone."""

import random
from pathlib import Path

import pytest

from everstep.runtime.agent.ports import free_port
from tests.forks import Forks

SCRIPT = Path(__file__).with_name("cut_script.py")


@pytest.mark.parametrize(
    ("where", "raised"),
    [("collective", "RuntimeError"), ("store", "DistNetworkError"), ("new group", "DistNetworkError")],
)
def test_a_wait_for_a_peer_ends_when_the_sockets_are_cut(tmp_path: Path, forks: Forks, where: str, raised: str) -> None:
    done_path, places = tmp_path / "done", {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    places["MASTER_PORT"] = str(free_port(random.Random()))
    process_numbers = [
        forks.start([str(SCRIPT), where, str(done_path)], {**places, "RANK": str(rank)}, tmp_path / f"{rank}.err")
        for rank in range(2)
    ]
    codes = [forks.wait(number) for number in process_numbers]
    assert codes == [0, 0], [(tmp_path / f"{rank}.err").read_text() for rank in range(2)]
    assert done_path.read_text() == f"{raised} own"

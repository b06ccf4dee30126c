"""Many rounds leave nothing behind in a process that survives them."""

import random
from pathlib import Path

import pytest

from everstep.runtime.agent.ports import free_port
from tests.forks import Forks
from tests.training import many_rounds

ROUNDS = 150
"""`make accept-survivors` has 500."""


@pytest.mark.long
def test_many_rounds_leave_no_descriptor_thread_or_memory(tmp_path: Path, forks: Forks) -> None:
    lines, places = tmp_path / "lines", {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    places["MASTER_PORT"] = str(free_port(random.Random()))
    errors = [tmp_path / f"{rank}.err" for rank in range(2)]
    numbers = [
        forks.start([many_rounds.__file__, str(ROUNDS), str(lines)], {**places, "RANK": str(rank)}, errors[rank])
        for rank in range(2)
    ]
    codes = [forks.wait(number) for number in numbers]
    assert codes == [0, 0], [path.read_text() for path in errors]
    assert lines.read_text().count("\n") == ROUNDS
    assert not many_rounds.left_behind(lines)

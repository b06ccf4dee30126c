"""Five hundred rounds leave nothing behind in a process that survives them."""

import json
import random
from pathlib import Path

import pytest

from everstep.runtime.agent.ports import free_port
from tests.forks import Forks
from tests.harness import wait_until

SCRIPT = Path(__file__).with_name("many_rounds.py")
ROUNDS = 500
WHILE_SETTLING, LAST = slice(50, 100), slice(-50, None)
LONGEST_S = 1800.0
MORE_MIB = 8
"""Less than two of the script's models."""


@pytest.mark.long
def test_five_hundred_rounds_leave_no_descriptor_thread_or_memory(tmp_path: Path, forks: Forks) -> None:
    lines, places = tmp_path / "lines", {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    places["MASTER_PORT"] = str(free_port(random.Random()))
    numbers = [
        forks.start([str(SCRIPT), str(ROUNDS), str(lines)], {**places, "RANK": str(rank)}, tmp_path / f"{rank}.err")
        for rank in range(2)
    ]
    wait_until(lambda: lines.exists() and lines.read_text().count("\n") == ROUNDS, f"{ROUNDS} rounds", LONGEST_S, 0.5)
    codes = [forks.wait(number) for number in numbers]
    assert codes == [0, 0], [(tmp_path / f"{rank}.err").read_text() for rank in range(2)]
    rounds = [json.loads(line) for line in lines.read_text().splitlines()]
    for name, more in (("files", 0), ("threads", 0), ("memory_mib", MORE_MIB)):
        settled, last = ([one[name] for one in rounds[part]] for part in (WHILE_SETTLING, LAST))
        assert min(last) <= max(settled) + more, (name, settled, last)

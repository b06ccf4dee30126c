"""Each rank gets its own random state back, and another one's where there are more ranks than states."""

import json
from pathlib import Path

from everstep.random_state import gather_random_states, set_random_state
from everstep.seeding import generators_state, set_generators_state
from tests.forks import Forks
from tests.training.random_ranks import draw


def test_each_rank_gets_its_own_state_back_and_of_fewer_that_of_its_rank_modulo_their_number(
    tmp_path: Path, forks: Forks
) -> None:
    log = tmp_path / "log"
    assert forks.run(["-m", "tests.training.random_ranks", str(tmp_path / "drawn")], {}, log) == 0, log.read_text()
    first, second = (json.loads((tmp_path / f"drawn-{rank}").read_text()) for rank in range(2))
    assert first[0] != second[0]
    assert first == [first[0]] * 4
    assert second == [second[0], second[0], first[0], second[0]]


def test_a_process_by_itself_continues_its_random_numbers() -> None:
    outside = generators_state()
    try:
        draw()
        (state,) = gather_random_states()
        numbers = draw()
        set_random_state([state, "of another rank"])
        assert draw() == numbers
    finally:
        set_generators_state(outside)

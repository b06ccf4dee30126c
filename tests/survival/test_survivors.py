"""Workers that keep their processes when a peer dies: what is kept, what is made anew, what is left behind."""

import re
from collections import defaultdict

import pytest

from tests.harness import TrainStep, tensors


def processes(training: TrainStep) -> dict[int, dict[int, int]]:
    """For each round: rank -> process id, as the workers said."""
    found = defaultdict[int, dict[int, int]](dict)
    for path in (training.folder / "logs").glob("*.log"):
        for pid, rank, round_ in re.findall(r"process (\d+) is rank (\d+) of \d+ in round (\d+)", path.read_text()):
            found[int(round_)][int(rank)] = int(pid)
    return dict(sorted(found.items()))


@pytest.mark.parametrize("training", ["survive"], indirect=True)
def test_a_killed_worker_alone_is_made_anew_and_changes_no_weight(
    training: TrainStep, undisturbed: dict[str, bytes]
) -> None:
    training.arm("checkpoint.mid_copy,iteration=33,rank=1=kill;train.iteration,iteration=41,rank=0=kill")
    training.start()
    assert training.finish() == 0, training.last_words()
    assert training.fired_points() == ["checkpoint.mid_copy", "train.iteration"]
    first, second, third = processes(training).values()
    assert first[0] == second[0]
    assert second[1] != first[1]
    assert second[1] == third[1]
    assert third[0] != second[0]
    assert tensors(training.checkpoint()) == undisturbed

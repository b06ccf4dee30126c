"""The tiers that a checkpoint reached, and from which each round restored it."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.job import records as job
from everstep.runtime.job.certification import NO_REPLICA
from everstep.runtime.protocol.holdings import Tier
from everstep.runtime.report import Run, render
from everstep.runtime.report.history import history
from everstep.runtime.report.job_view import CheckpointView, view
from everstep.runtime.report.restores import Restores
from tests.report.test_history import at, round_broken, round_formed


def restored(number: int, rank: int, tier: str, iteration: int = 5) -> dict[str, Any]:
    return {
        "kind": "restored", "time": 9.0, "round": number, "from_round": number - 1, "iteration": iteration,
        "rank": rank, "tier": tier, "seconds": 0.1,
    }  # fmt: skip


def checkpoints(lines: list[dict[str, Any]]) -> tuple[CheckpointView, ...]:
    """Those of a job that has stored iteration 4, and restored iteration 5."""
    stored = job.Committed(time=5.5, round=1, iteration=4, key="k")
    records = [round_formed(1, 1), stored, round_broken(8, 1, 5), round_formed(8.5, 2, 5)]
    saves = [at(iteration, 1, iteration, staged_bytes=10, stall_s=0.1) for iteration in (4, 5)]
    return view("train", history(records, [*saves, *lines]), [], 20.0).checkpoints


def test_each_checkpoint_is_shown_with_the_tiers_that_it_reached() -> None:
    stored, in_memory = checkpoints([restored(2, 0, "memory"), restored(2, 1, "peer")])
    assert (stored.iteration, stored.in_memory, stored.in_store, stored.restores) == (4, 4.0, 5.5, ())
    assert (in_memory.iteration, in_memory.in_memory, in_memory.in_store) == (5, 5.0, None)
    assert [str(restore) for restore in in_memory.restores] == ["round 2, ranks: 1 from memory, 1 from peer"]


def test_a_checkpoint_whose_save_nobody_reported_is_not_said_to_be_in_memory() -> None:
    *_, restored_later = checkpoints([restored(3, 0, "store", iteration=7)])
    assert (restored_later.iteration, restored_later.in_memory, restored_later.in_store) == (7, None, None)
    assert str(restored_later.restores[0]) == "round 3 from store"


def test_the_report_says_of_each_checkpoint_whether_its_replicas_agreed() -> None:
    records = [
        round_formed(1, 1),
        job.StateCertified(time=2, round=1, iteration=4, detail="2 replicas agree"),
        job.Committed(time=2.5, round=1, iteration=4, key="k"),
        job.Committed(time=2.6, round=1, iteration=6, key="k"),
        job.StateRejected(time=3, round=1, iteration=8, detail="worker-1-0 differs", nodes=("worker-1-0",)),
        job.Committed(time=3.5, round=1, iteration=8, key="k"),
        job.StateCertified(time=4, round=2, iteration=8, detail=NO_REPLICA),
    ]
    seen = view("train", history(records, [at(9, 2, 9)]), [], 20.0)
    judged = [(one.iteration, one.judgement) for one in seen.checkpoints]
    assert judged == [(4, "certified: 2 replicas agree"), (6, ""), (8, "rejected: worker-1-0 differs")]
    alone = "1 of those certified had no replica to compare: a flipped bit in them does not show."
    assert seen.comparisons == f"Of 3 states, 2 are certified, 1 rejected. {alone}"
    page = render(Run("r", jobs={"train": history(records, [])}), 20.0)
    assert seen.comparisons in page
    assert [page.count(f"<td>{text}</td>") for text in ("rejected: worker-1-0 differs", "not compared")] == [1, 1]


@pytest.mark.parametrize(
    "damage", [{"rank": None}, {"round": "2"}, {"from_round": True}, {"tier": 3}, {"tier": []}, {"kind": ""}]
)
def test_a_damaged_line_is_skipped(damage: dict[str, Any]) -> None:
    restores = Restores()
    restores.add({**restored(2, 0, "memory"), **damage})
    assert restores.by_round() == ()


@given(
    st.dictionaries(st.tuples(st.integers(2, 4), st.integers(0, 5)), st.sampled_from(list(Tier))),
    st.integers(0, 2**32),
)
def test_each_rank_counts_once_in_any_order_of_lines(ranks: dict[tuple[int, int], str], seed: int) -> None:
    lines = [restored(number, rank, tier) for (number, rank), tier in ranks.items()] * 2
    Random(seed).shuffle(lines)
    restores = Restores()
    for line in lines:
        restores.add(line)
    counts = {state.round: sum(state.ranks.values()) for state in restores.by_round()}
    assert counts == {number: sum(n == number for n, _ in ranks) for number, _ in ranks}

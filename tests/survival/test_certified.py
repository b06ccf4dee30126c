"""A bit that changes in the memory of one of three nodes is found, the node is named, and the training ends as ever."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import TrainStep, tensors
from tests.trained import Start

FLIPPED, EVERY = 24, 5
OFTEN_COMPARED = {"certify-interval": str(EVERY), "iterations": "40"}
DUE = 25
"""An iteration of which a state is compared."""


@pytest.fixture
def certified(tmp_path: Path, flags: dict[str, str]) -> Iterator[TrainStep]:
    """A training of three nodes whose states are compared."""
    step = TrainStep(tmp_path / "run", tmp_path / "store", flags={**flags, **OFTEN_COMPARED, "nodes": "3"})
    yield step
    step.kill_all()


@pytest.mark.parametrize(
    "what", ["weights", *(pytest.param(w, marks=pytest.mark.long) for w in ("optimizer", "gradient"))]
)
def test_a_flipped_bit_is_found_its_node_named_and_no_state_with_it_restored(what: str, certified: TrainStep) -> None:
    certified.flags = {**certified.flags, "script-args": f"--flip {FLIPPED},1,{what}"}
    certified.start()
    assert certified.finish() == 0, certified.last_words()
    records = certified.records()
    (rejected,) = [record for record in records if record["kind"] == "StateRejected"]
    assert rejected["nodes"] == ["worker-1-0"]
    assert rejected["iteration"] == FLIPPED + 1
    assert [record["node"] for record in records if record["kind"] == "FaultJudged" and record["avoid"]] == [
        "worker-1-0"
    ]
    restored = [
        r["round"]["restore"]["iteration"] for r in records if r["kind"] == "RoundFormed" and r["round"]["restore"]
    ]
    assert restored == [FLIPPED + 1 - EVERY]
    assert certified.leftovers() == []


@pytest.mark.long
def test_the_weights_after_a_flipped_bit_are_those_of_a_training_without_one(
    certified: TrainStep, tmp_path: Path
) -> None:
    calm = TrainStep(tmp_path / "calm", tmp_path / "calm-store", flags=certified.flags)
    try:
        calm.start()
        assert calm.finish() == 0, calm.last_words()
        certified.flags = {**certified.flags, "script-args": f"--flip {FLIPPED},2,weights"}
        certified.start()
        assert certified.finish() == 0, certified.last_words()
        assert [record["nodes"] for record in certified.records() if record["kind"] == "StateRejected"] == [
            ["worker-2-0"]
        ]
        assert tensors(certified.checkpoint()) == tensors(calm.checkpoint())
    finally:
        calm.kill_all()


@pytest.mark.parametrize(
    "nodes", [pytest.param("2", marks=pytest.mark.long), "3"], ids=["nobody-is-named", "the-node-is-named"]
)
def test_a_gradient_that_is_wrong_before_it_is_reduced_is_found_by_another_rank(
    nodes: str, certified: TrainStep, tmp_path: Path
) -> None:
    certified.flags = {**certified.flags, "nodes": nodes, "certify-replay": "true"}
    calm = TrainStep(tmp_path / "calm", tmp_path / "calm-store", flags=certified.flags)
    certified.flags = {**certified.flags, "script-args": f"--flip {DUE},1,own-gradient"}
    train_both(calm, certified)
    assert not [record for record in calm.records() if record["kind"] == "StateRejected"]
    check_replay(certified, ["worker-1-0"] if nodes == "3" else [])
    assert tensors(certified.checkpoint()) == tensors(calm.checkpoint())


@pytest.mark.long
def test_another_rank_gets_the_gradients_of_a_replica_with_dropout(certified: TrainStep) -> None:
    script = Path(__file__).with_name("replicated_script.py")
    certified.flags = {**certified.flags, "certify-replay": "true", "script": str(script)}
    certified.flags["script-args"] = f"--flip {DUE},1"
    certified.start()
    assert certified.finish() == 0, certified.last_words()
    check_replay(certified, ["worker-1-0"])


def train_both(calm: TrainStep, certified: TrainStep) -> None:
    """One after the other, to their ends."""
    try:
        for step in (calm, certified):
            step.start()
            assert step.finish() == 0, step.last_words()
    finally:
        calm.kill_all()


def check_replay(step: TrainStep, named: list[str]) -> None:
    """The iteration's state was rejected once, for that, and never certified before; that node was replaced."""
    records = step.records()
    (rejected,) = [record for record in records if record["kind"] == "StateRejected"]
    assert (rejected["iteration"], rejected["nodes"]) == (DUE, named)
    assert "computed again" in rejected["detail"]
    certified = [
        record["iteration"] for record in records if record["kind"] == "StateCertified" and record["round"] == 1
    ]
    assert max(certified) < DUE
    assert [record["node"] for record in records if record["kind"] == "FaultJudged" and record["avoid"]] == named
    assert step.leftovers() == []


@pytest.mark.long
def test_a_batch_whose_loss_is_unsound_again_is_skipped_and_the_rest_is_trained_as_without_it(
    trained: Start, flags: dict[str, str]
) -> None:
    bad, usual = FLIPPED, {**flags, **OFTEN_COMPARED, "nodes": "2"}
    calm = trained("calm", flags={**usual, "script-args": f"--omit {bad}"})
    assert calm.finish() == 0, calm.last_words()
    for factor in ("nan", "100"):
        more = {"script-args": f"--bad {bad},{factor}", "loss-spike": "3", "skip-batches": "1"}
        certified = trained(factor, flags=usual | more)
        assert certified.finish() == 0, certified.last_words()
        records = certified.records()
        assert [record["iteration"] for record in records if record["kind"] == "StateRejected"] == [bad, bad]
        assert [record["iteration"] for record in records if record["kind"] == "BatchSkipped"] == [bad]
        restores = [record["round"]["restore"] for record in records if record["kind"] == "RoundFormed"]
        assert [restore["iteration"] for restore in restores if restore] == [bad - bad % EVERY] * 2
        assert tensors(certified.checkpoint()) == tensors(calm.checkpoint())
        assert certified.leftovers() == []

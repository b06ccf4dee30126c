"""Who keeps the others waiting, from where all ranks stand."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.watch.board_fields import GROUP_PHASE, Board
from everstep.runtime.watch.hang_culprit import Cause, ProcessState, Standing, judge
from everstep.runtime.watch.looks import standing_of
from everstep.runtime.watch.stacks import Frame, RankStacks, Thread


def waits(rank: int, number: int = 412, collective: str = "all_reduce [1024]", **more: object) -> Standing:
    """A rank that waits in that collective."""
    signs = {"place": "train (train.py:30)", "counted_ago_s": 0.1, **more}
    return Standing(rank, 4, entered=number, completed=number - 1, collective=collective, **signs)  # type: ignore[arg-type]


def absent(rank: int, state: str = "S", cpu: float = 0.0, **more: object) -> Standing:
    """A rank that has not entered #412."""
    process = ProcessState(state, wait_channel="folio_wait_bit", **more)  # type: ignore[arg-type]
    return Standing(rank, 4, entered=411, completed=411, counted_ago_s=0.1, process=process, cpu=cpu,
                    place="load (data_loader.py:88)")  # fmt: skip


OTHERS = [waits(0), waits(1), waits(2)]


@pytest.mark.parametrize(
    ("culprit", "cause", "sentence"),
    [
        (absent(3), Cause.NEVER_ENTERED,
         "rank 3 of 4 never entered all_reduce #412; it is in load (data_loader.py:88)"),
        (absent(3, "R", 1.0), Cause.COMPUTES,
         "rank 3 of 4 never entered all_reduce #412; it computes (1.0 cores) in load (data_loader.py:88)"),
        (absent(3, "T"), Cause.STOPPED,
         "rank 3 of 4 is stopped by a signal (SIGSTOP); it is in load (data_loader.py:88)"),
        (absent(3, "D"), Cause.KERNEL,
         "rank 3 of 4 is in an uninterruptible wait of the kernel (disk, network file system) at folio_wait_bit; "
         "it is in load (data_loader.py:88)"),
        (absent(3, "Z"), Cause.GONE, "rank 3 of 4 is dead; it is in load (data_loader.py:88)"),
        (absent(3, call="read", file="/mnt/data/shard"), Cause.BLOCKED_FILE,
         "rank 3 of 4 never entered all_reduce #412; it is blocked in read of /mnt/data/shard in "
         "load (data_loader.py:88)"),
        (absent(3, call="write", file="pipe:[12]"), Cause.BLOCKED_FILE,
         "rank 3 of 4 never entered all_reduce #412; it is blocked in write of a pipe in load (data_loader.py:88)"),
        (Standing(3, 4, entered=411, completed=411, place="train (train.py:30)",
                  data_worker="process 7 is blocked in read of /mnt/data/shard in load (data.py:3)"), Cause.DATA,
         "rank 3 of 4 never entered all_reduce #412; it waits for its data loader in train (train.py:30): process 7 is "
         "blocked in read of /mnt/data/shard in load (data.py:3)"),
        (waits(3, collective="broadcast [1024]"), Cause.DIFFERENT_COLLECTIVE,
         "rank 3 of 4 waits in broadcast #412 (train (train.py:30)), the others in all_reduce #412 "
         "(train (train.py:30))"),
        (waits(3, collective="all_reduce [7]"), Cause.DIFFERENT_SHAPE,
         "rank 3 of 4 waits in all_reduce [7] #412 (train (train.py:30)), the others in all_reduce [1024] #412 "
         "(train (train.py:30))"),
        (waits(3, number=411), Cause.BEHIND,
         "rank 3 of 4 never entered all_reduce #412; it is in train (train.py:30), and #411 is not marked as finished"),
    ],
)  # fmt: skip
def test_the_culprit_is_named_with_what_it_does(culprit: Standing, cause: Cause, sentence: str) -> None:
    verdict = judge([*OTHERS, culprit])
    assert (verdict.cause, verdict.ranks, verdict.sentence) == (cause, (3,), sentence)


@pytest.mark.parametrize("one_computes", [True, False])
def test_of_a_pipeline_the_rank_is_named_for_which_another_waits_in_a_transfer(one_computes: bool) -> None:
    """Two stages of two ranks: rank 2 does not come out of its loss, rank 0 waits for what rank 2 sends."""
    trains = Frame("train", "/home/user/train.py", 30)
    receives = Frame("recv", "/venv/site-packages/torch/distributed/distributed_c10d.py", 2600)
    computes = Frame("loss_fn", "/home/user/train.py", 9)

    def stands(rank: int, frame: Frame, entered: int, completed: int) -> Standing:
        board = Board(7 + rank, rank, 4, rank, 1, entered=entered, completed=completed, collective="all_reduce [3]")
        stacks = RankStacks(rank, (Thread("MainThread", (trains, frame)),))
        return standing_of("", board, stacks, (ProcessState("S"), ProcessState("S"), 1.0), 0.0)

    standings = [stands(rank, receives, 12, 11) for rank in (1, 3)]
    standings += [stands(0, receives, 11, 11), stands(2, computes if one_computes else receives, 11, 11)]
    verdict = judge(standings)
    if one_computes:
        assert verdict.ranks == (2,)
        assert verdict.sentence.endswith("never entered all_reduce #12; it is in loss_fn (train.py:9)")
    else:
        assert verdict.ranks == (0, 2), "if all that are missing wait for each other"


def test_a_rank_that_cannot_count_holds_the_interpreters_lock() -> None:
    silent = Standing(3, 4, entered=411, completed=411, counted_ago_s=40.0, lock_holder="user", place="spin (own.py:3)")
    verdict = judge([*OTHERS, silent])
    assert verdict.sentence == (
        "rank 3 of 4 never entered all_reduce #412; it holds the interpreter's lock (thread user) and is in "
        "spin (own.py:3)"
    )


def test_if_all_are_in_the_same_collective_it_is_the_network() -> None:
    verdict = judge([*OTHERS, waits(3)])
    assert verdict.cause is Cause.NETWORK
    assert "all 4 ranks are in all_reduce #412 and none is missing" in verdict.sentence


@pytest.mark.parametrize(
    ("seen", "ranks", "sentence"),
    [
        (OTHERS, (3,), "all 3 ranks that could be looked at wait in all_reduce #412; rank 3 of 4 was not"),
        ([waits(1)], (0, 2, 3),
         "the only rank that could be looked at waits in all_reduce #412; ranks 0,2-3 of 4 were not"),
        ([Standing(rank, 4, phase=GROUP_PHASE) for rank in (0, 1)], (2, 3),
         "all 2 ranks that could be looked at wait in the making of a process group; ranks 2-3 of 4 were not"),
    ],
)  # fmt: skip
def test_if_all_that_are_known_wait_it_may_be_one_that_is_not_known(
    seen: list[Standing], ranks: tuple[int, ...], sentence: str
) -> None:
    verdict = judge(seen)
    assert (verdict.cause, verdict.ranks, verdict.sentence) == (Cause.UNSEEN, ranks, sentence)


def test_of_ever_so_many_that_are_not_known_the_first_are_named() -> None:
    size = 10**15
    verdict = judge([msgspec.structs.replace(waits(rank), world_size=size) for rank in range(0, 100, 2)])
    assert (verdict.cause, verdict.ranks) == (Cause.UNSEEN, (*range(1, 99, 2), *range(99, 114)))
    assert verdict.sentence.endswith(f"61,63,... of {size} were not")
    assert judge([msgspec.structs.replace(waits(1), world_size=size)]).sentence.endswith(
        f"ranks 0,2-{size - 1} of {size} were not"
    )


def test_a_rank_that_is_known_to_be_missing_is_named_although_others_are_not_known() -> None:
    assert judge([waits(0), absent(3)]).ranks == (3,)


def test_ranks_that_wait_for_nobody_are_not_blamed() -> None:
    verdict = judge([absent(rank) for rank in range(4)])
    assert (verdict.cause, verdict.ranks) == (Cause.NOBODY, ())


def test_all_ranks_that_wait_for_the_disk_are_no_rank_of_their_own() -> None:
    assert judge([absent(rank, "D") for rank in range(4)]).ranks == ()


def test_without_standings_nobody_is_named() -> None:
    assert judge([]).ranks == ()


RANKS = st.lists(
    st.builds(
        Standing,
        st.integers(0, 7),
        st.just(8),
        iteration=st.integers(0, 2),
        entered=st.integers(0, 3),
        completed=st.integers(0, 3),
        collective=st.sampled_from(["", "all_reduce [3]", "broadcast [3]"]),
        counted_ago_s=st.sampled_from([None, 0.1, 60.0]),
        process=st.builds(ProcessState, st.sampled_from("RSDTZ")),
        cpu=st.sampled_from([0.0, 1.0]),
    ),
    max_size=6,
    unique_by=lambda standing: standing.rank,
)


@given(RANKS, st.randoms(use_true_random=False))
def test_the_verdict_does_not_depend_on_the_order_and_names_ranks_that_exist(
    standings: list[Standing], chance: random.Random
) -> None:
    mixed = [*standings]
    chance.shuffle(mixed)
    verdict = judge(standings)
    assert judge(mixed) == verdict
    assert verdict.cause is Cause.UNSEEN or set(verdict.ranks) <= {standing.rank for standing in standings}


def test_an_iteration_is_named_as_counted_from_the_beginning_of_the_training() -> None:
    board = Board(7, 0, 1, 0, 2, iteration=3, earlier=160)
    standing = standing_of("node", board, RankStacks(0), (ProcessState("R"), ProcessState("R"), 1.0), 0.0)
    assert "stands at iteration 163" in judge([standing]).sentence

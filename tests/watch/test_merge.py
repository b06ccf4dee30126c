"""Stacks of all ranks, merged."""

import json
import random
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.watch.merge import Call, fold_ranks, merge, odd_ones, text, walk
from everstep.runtime.watch.pictures import speedscope, svg
from everstep.runtime.watch.stacks import Frame, RankStacks, Thread
from tests.watch.sampled import STACKS, stack


@given(STACKS)
def test_a_rank_is_in_the_tree_exactly_where_one_of_its_threads_is(stacks: list[RankStacks]) -> None:
    for rank_stacks in stacks:
        expected = {
            (thread.name, *(frame.place for frame in thread.frames))[: length + 1]
            for thread in rank_stacks.threads
            for length in range(len(thread.frames) + 1)
        }
        assert set(_paths(merge(stacks).threads, rank_stacks.rank)) == expected


@given(STACKS, st.randoms(use_true_random=False))
def test_the_tree_does_not_depend_on_the_order(stacks: list[RankStacks], chance: random.Random) -> None:
    mixed = [*stacks]
    chance.shuffle(mixed)
    assert text(merge(mixed)) == text(merge(stacks))


@given(STACKS)
def test_each_line_accounts_for_every_rank_once(stacks: list[RankStacks]) -> None:
    merged = merge(stacks)
    for line in text(merged).splitlines():
        here, missing = line.rpartition("@")[2].split("|")
        assert _unfold(here) | _unfold(missing) == merged.ranks
        assert not _unfold(here) & _unfold(missing)


@given(st.sets(st.integers(0, 60)))
def test_folded_ranks_read_back(ranks: set[int]) -> None:
    assert _unfold(fold_ranks(ranks)) == ranks


def test_ranks_are_folded_as_people_write_them() -> None:
    assert fold_ranks([3, 1, 0, 2, 9]) == "0-3,9"


@given(STACKS)
def test_a_picture_is_xml_and_no_wider_than_itself(stacks: list[RankStacks]) -> None:
    root = ElementTree.fromstring(svg(merge(stacks), "a <title> & more"))
    for box in root.iter("{http://www.w3.org/2000/svg}rect"):
        if "x" in box.attrib:
            assert float(box.attrib["x"]) + float(box.attrib["width"]) <= 1200 + 1


@given(STACKS)
def test_speedscope_gets_a_profile_of_each_rank_whose_frames_exist(stacks: list[RankStacks]) -> None:
    speedscope_json = json.loads(speedscope(stacks, "job"))
    assert len(speedscope_json["profiles"]) == len(stacks)
    assert all(
        place < len(speedscope_json["shared"]["frames"])
        for profile in speedscope_json["profiles"]
        for sample in profile["samples"]
        for place in sample
    )


def test_the_rank_that_is_elsewhere_comes_first() -> None:
    waits = [stack(rank, ("train", "train.py", 30), ("backward", "/lib/python3/site-packages/torch/x.py", 1))
             for rank in (0, 1, 2)]  # fmt: skip
    description = odd_ones([*waits, stack(3, ("train", "train.py", 12), ("load", "/home/me/data_loader.py", 88))])
    assert description == "rank 3 of 4 is in load (data_loader.py:88); ranks 0-2 are in train (train.py:30)"


def test_all_in_one_place_is_said_in_one_sentence() -> None:
    assert odd_ones([stack(0, ("f", "a.py", 1)), stack(1, ("f", "a.py", 1))]) == "all 2 ranks are in f (a.py:1)"


def test_a_rank_without_a_stack_is_named() -> None:
    description = odd_ones([stack(0, ("f", "a.py", 1)), RankStacks(1, failure="process 7 has ended")])
    assert description == "rank 1: no stack; rank 0 is in f (a.py:1)"


def test_a_call_is_written_with_the_ranks_here_and_missing() -> None:
    merged_text = text(merge([RankStacks(0, (Thread("main", (Frame("f", "a.py", 3),)),)), RankStacks(1)]))
    assert merged_text == "main@0|1\n  f@a.py:3@0|1\n"


def _paths(calls: dict[str, Call], rank: int) -> list[tuple[str, ...]]:
    paths, path = [], []
    for depth, call in walk(calls):
        path[depth:] = [call.name]
        if rank in call.ranks:
            paths.append(tuple(path))
    return paths


def _unfold(text_: str) -> set[int]:
    ranks: set[int] = set()
    for part in filter(None, text_.split(",")):
        first, _, last = part.partition("-")
        ranks |= set(range(int(first), int(last or first) + 1))
    return ranks

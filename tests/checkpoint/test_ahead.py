"""The memory that a worker begins from is mapped before it asks for it, where it lies there already."""

import threading
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.checkpoint.node import keeper_io
from everstep.runtime.checkpoint.shard.segment import NewSegment, SegmentFile
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer, map_segment_ahead


def mapped_bytes(path: str) -> int:
    """Of that file, how much of this process's memory has pages."""
    kilobytes, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(path)
        elif inside and line.startswith("Rss:"):
            kilobytes += int(line.split()[1]) << 10
    return kilobytes


def populated_bytes(path: str) -> int:
    """The same, once the thread that maps is done."""
    for thread in threading.enumerate():
        if thread.name == "everstep-populate":
            thread.join()
    return mapped_bytes(path)


def test_a_restarted_worker_maps_its_start_when_it_greets_and_loads_from_there(
    node: Any, make_state: Any, same: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_state, live = make_state(3), make_state(0)
    node.begin(1)
    first = node.link(1)
    assert map_segment_ahead(first) is None
    checkpointer = Checkpointer(saved_state, keeper=first)
    assert checkpointer.load(saved_state) == 0
    checkpointer.save(7, saved_state)
    node.keeper.worker_died(0)
    node.begin(2, node.newest())
    place = node.keeper.wait_for_restore(0)
    link = node.link(2)
    ahead = map_segment_ahead(link)
    assert ahead is not None
    assert populated_bytes(place.path) >= place.size
    opened: list[Path] = []
    monkeypatch.setattr(SegmentFile, "open", lambda path: opened.append(path))
    assert Checkpointer(live, keeper=link, ahead=ahead).load(live) == 7
    assert same(live, saved_state)
    assert map_segment_ahead(node.link(2), ahead) is ahead, "a survivor's mapping"
    assert opened == []


def test_it_is_mapped_while_the_agent_still_looks_whether_it_is_whole(
    node: Any, make_state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_state = make_state(3)
    node.begin(1)
    checkpointer = Checkpointer(saved_state, keeper=node.link(1))
    checkpointer.load(saved_state)
    checkpointer.save(7, saved_state)
    node.keeper.worker_died(0)
    newest, looks, may = node.newest(), threading.Event(), threading.Event()

    def check(*_: object) -> None:
        looks.set()
        assert may.wait(60)

    monkeypatch.setattr(keeper_io, "check_shard", check)
    node.begin(2, newest)
    try:
        assert looks.wait(60)
        assert node.link(2).welcome.path
    finally:
        may.set()


def test_memory_that_another_file_took_the_place_of_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "segment"
    NewSegment(path, 2, 4096).close()
    mapped = SegmentFile.open(path)
    assert mapped.is_current()
    NewSegment(path, 2, 8192).close()
    assert not mapped.is_current()
    path.unlink()
    assert not mapped.is_current()

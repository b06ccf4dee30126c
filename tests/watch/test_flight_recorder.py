"""Collectives of gloo and NCCL, as torch's two recorders write them."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.runtime.watch.flight_recorder import count_collectives, find_unfinished, groups_of, read_traces


def trace(entered: int, completed: int, *entries: dict[str, Any]) -> bytes:
    """Of one process group. Counters are texts, -1 before the first collective."""
    status = {"last_enqueued_collective": str(entered), "last_completed_collective": str(completed)}
    status["last_started_collective"] = "-1"
    return json.dumps({"pg_status": {"0": status}, "entries": entries, "version": "2.10"}).encode()


def entry(name: str, created: int, retired: bool) -> dict[str, Any]:
    """A collective of 3 numbers."""
    return {
        "profiling_name": name, "time_created_ns": created, "record_id": 0, "retired": retired, "is_p2p": False,
        "input_sizes": [[3]], "pg_id": 0,
    }  # fmt: skip


GLOO = trace(4, 4, entry("gloo:barrier", 5, True))
NCCL = trace(9, 7, entry("nccl:all_reduce", 6, False), entry("nccl:broadcast", 4, False))


@pytest.mark.parametrize(
    ("uses_cuda", "counts", "unfinished"), [(False, (4, 4), (0, "")), (True, (13, 11), (2, "broadcast [3]"))]
)
def test_nccls_own_recorder_counts_too_where_the_process_uses_cuda(
    monkeypatch: pytest.MonkeyPatch, uses_cuda: bool, counts: tuple[int, int], unfinished: tuple[int, str]
) -> None:
    current = [0]

    @contextmanager
    def select(device: int) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    def dump_nccl(entries: bool, _: bool) -> bytes:
        assert current[-1] == (2 if entries else 0), "its events are asked on the device that the process uses"
        return NCCL

    cuda = SimpleNamespace(is_initialized=lambda: uses_cuda, device_count=lambda: 4, device=select)
    driver = SimpleNamespace(_cuda_hasPrimaryContext=lambda device: device == 2)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, _C=driver))  # type: ignore[arg-type]
    recorder = SimpleNamespace(_dump_fr_trace_json=lambda *_: GLOO, _dump_nccl_trace_json=dump_nccl)
    assert count_collectives(read_traces(recorder)) == counts
    assert find_unfinished(read_traces(recorder, entries=True)) == unfinished


def test_a_group_without_collectives_and_a_completed_count_that_is_ahead_count_as_none() -> None:
    traces = [json.loads(trace(-1, -1)), json.loads(trace(3, 5))]
    assert count_collectives(traces) == (3, 3)
    assert find_unfinished(traces) is None


def test_a_group_of_an_earlier_round_does_not_count_though_its_last_collective_is_never_marked_as_finished() -> None:
    recorder = SimpleNamespace(_dump_fr_trace_json=lambda *_: trace(4, 3, entry("gloo:all_reduce", 5, False)))
    old_groups = groups_of(read_traces(recorder))
    new = json.loads(trace(4, 3, entry("gloo:all_reduce", 5, False), entry("gloo:barrier", 6, False) | {"pg_id": 1}))
    new["pg_status"]["1"] = {"last_enqueued_collective": "2", "last_completed_collective": "1"}
    recorder._dump_fr_trace_json = lambda *_: json.dumps(new).encode()
    assert count_collectives(read_traces(recorder, without=old_groups)) == (2, 1)
    assert find_unfinished(read_traces(recorder, entries=True, without=old_groups)) == (1, "barrier [3]")

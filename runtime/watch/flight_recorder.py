"""What torch's flight recorders say of a process's collectives. Standard library only, as `in_worker` imports it.

torch has two: `_dump_fr_trace_json` writes what gloo records, `_dump_nccl_trace_json` what NCCL does, in one format.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Set
from contextlib import AbstractContextManager, nullcontext
from typing import Any

UNREADABLE = (ValueError, KeyError, TypeError, RuntimeError)
"""What reading raises while a recorder changes, or in a torch that writes it otherwise."""
Trace = Mapping[str, Any]
Group = tuple[int, str]
"""A process group: the place of its recorder in `read_traces`, and its id there, which no later group gets."""


def read_traces(recorder: Any, *, entries: bool = False, without: Set[Group] = frozenset()) -> list[Trace]:
    """What is recorded, with the single collectives on request. `recorder`: `torch._C._distributed_c10d`; `without`:
    groups that do not count, as they are no more. torch never forgets one.

    NCCL's is read once the process uses CUDA: each takes some 40 us. Raises an error of `UNREADABLE`.
    """
    texts = [recorder._dump_fr_trace_json(entries, False)]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and hasattr(recorder, "_dump_nccl_trace_json"):
        with _on_used_device(torch) if entries else nullcontext():
            texts.append(recorder._dump_nccl_trace_json(entries, False))
    return [_without_groups(at, json.loads(text), without) for at, text in enumerate(texts)]


def _without_groups(at: int, trace: dict[str, Any], groups: Set[Group]) -> Trace:
    trace["pg_status"] = {id_: status for id_, status in trace["pg_status"].items() if (at, id_) not in groups}
    if "entries" in trace:
        trace["entries"] = [entry for entry in trace["entries"] if (at, str(entry["pg_id"])) not in groups]
    return trace


def groups_of(traces: Iterable[Trace]) -> frozenset[Group]:
    """The groups that have begun a collective."""
    return frozenset((at, id_) for at, trace in enumerate(traces) for id_ in trace["pg_status"])


def _on_used_device(torch: Any) -> AbstractContextManager[None]:
    """Select a device that this process uses: for each entry torch asks an event whether it is over, and in a new
    thread that would make a context on the first device, which takes half a GB there."""
    devices = range(torch.cuda.device_count())
    return torch.cuda.device(next((number for number in devices if torch._C._cuda_hasPrimaryContext(number)), -1))


def count_collectives(traces: Iterable[Trace]) -> tuple[int, int]:
    """(Entered, completed) collectives of all groups, by the counters: cheap to read.

    The second may be too low: gloo's two threads each set it to the collective that they have just finished, so it goes
    back if the later one of two was faster.
    """
    status = [
        {key: max(int(number), 0) for key, number in group.items()}
        for trace in traces
        for group in trace["pg_status"].values()
    ]
    entered_count = sum(group["last_enqueued_collective"] for group in status)
    return entered_count, sum(
        min(group["last_completed_collective"], group["last_enqueued_collective"]) for group in status
    )


def find_unfinished(traces: Iterable[Trace]) -> tuple[int, str] | None:
    """How many collectives the rank entered that are not finished, and the oldest of them: (1, `all_reduce [1024]`).

    None if no recorder keeps entries. Each collective is retired by itself, so their order does not matter.
    """
    entries = [entry for trace in traces for entry in trace.get("entries", ()) if not entry.get("is_p2p")]
    if not entries:
        return None
    waiting = [entry for entry in entries if not entry.get("retired")]
    if not waiting:
        return 0, ""
    entry = min(waiting, key=lambda candidate: (int(candidate["time_created_ns"]), candidate["record_id"]))
    sizes = " ".join(str(size).replace(" ", "") for size in entry.get("input_sizes") or ())
    return len(waiting), f"{str(entry['profiling_name']).rpartition(':')[2]} {sizes}".strip()

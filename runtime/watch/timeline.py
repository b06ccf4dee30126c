"""The newest iterations of every rank as a Chrome trace, for chrome://tracing and ui.perfetto.dev. Pure.

Format: "Trace Event Format", complete events (`ph: X`), times in microseconds. Iterations lie before the newest one
without gaps, so what a script does between them is not shown.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from everstep.runtime.watch.board import RECENT
from everstep.runtime.watch.board_fields import Board


def chrome_trace(ranks: Sequence[tuple[str, Board]]) -> str:
    """The trace of these (node, board)s."""
    nodes = list(dict.fromkeys(node for node, _ in ranks))
    names = [_name(number, "process_name", node) for number, node in enumerate(nodes)]
    names += [_name(nodes.index(node), "thread_name", f"rank {board.rank}", board.rank) for node, board in ranks]
    events = [event for node, board in ranks for event in _iterations(nodes.index(node), board)]
    return json.dumps({"traceEvents": [*names, *events], "displayTimeUnit": "ms"})


def join_traces(traces: Iterable[str]) -> str:
    """One trace of those that several machines have made. Raises ValueError for another text."""
    events = list[dict[str, Any]]()
    for trace in traces:
        first = 1 + max((event["pid"] for event in events), default=-1)
        events += ({**event, "pid": first + event["pid"]} for event in json.loads(trace)["traceEvents"])
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def order_events(board: Board) -> list[tuple[int, float]]:
    """(iteration, seconds) of the newest ones, the newest first, back to one whose time is not known: as the first, and
    the first after an evaluation."""
    count = min(board.iteration, RECENT)
    numbers = range(board.iteration, board.iteration - count, -1)
    newest = ((board.earlier + number, board.recent[number % RECENT]) for number in numbers)
    return list(takewhile(lambda event: event[1] > 0, newest))


def _iterations(process: int, board: Board) -> Iterator[dict[str, Any]]:
    end = board.ended_at
    for number, seconds in order_events(board):
        yield {
            "ph": "X", "name": f"iteration {number}", "cat": "iteration", "pid": process, "tid": board.rank,
            "ts": round((end - seconds) * 1e6), "dur": round(seconds * 1e6), "args": {"round": board.round},
        }  # fmt: skip
        end -= seconds


def _name(process: int, what: str, name: str, thread: int = 0) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}

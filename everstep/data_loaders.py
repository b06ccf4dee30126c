"""torch's DataLoader at the end of a round: where its iterator may be interrupted, and what becomes of its processes.

Also torchdata's StatefulDataLoader, whose iterators derive from torch's. An iterator of a kept DataLoader with
`persistent_workers` goes on in the next round, and begins with a reset: it asks each process for an answer, and drops
what comes before those.
"""

import multiprocessing.connection
import multiprocessing.queues
import threading
import traceback
from collections.abc import Iterable
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

from torch.utils.data import dataloader

_FILES = "dataloader.py"
"""How torch's file ends, and torchdata's."""
_WAITS = {multiprocessing.connection.Connection.poll.__code__, threading.Condition.wait.__code__}
"""What a queue's `get` calls before it receives anything."""
_PUT = multiprocessing.queues.Queue.put.__code__


def has_to_finish(frame: FrameType | None) -> bool:
    """Whether an iterator would be half done if it were interrupted here: it would not know, and so not end, all the
    processes that it has started, hold a queue's lock, or have half of an answer."""
    called: list[CodeType] = []
    while frame is not None:
        if _iterator_of(frame) is not None:
            if frame.f_code.co_name == "_try_get_data":  # It calls a queue's `get`.
                return len(called) < 2 or called[-2] not in _WAITS
            if frame.f_code.co_name == "__init__" or _PUT in called:
                return True
        called.append(frame.f_code)
        frame = frame.f_back
    return False


def hurry(frame: FrameType | None) -> bool:
    """If an iterator waits here for the end of its processes, end them: it would wait until each has read its batch,
    for seconds. Whether it waits."""
    while frame is not None:
        if frame.f_code.co_name == "_shutdown_workers" and (iterator := _iterator_of(frame)) is not None:
            if iterator._workers_done_event.is_set():  # Nobody receives from them any more.
                for process in iterator._workers:
                    with suppress(OSError):
                        process.terminate()
            return True
        frame = frame.f_back
    return False


def drop_half_reset(errors: Iterable[BaseException]) -> None:
    """Take the iterators whose reset these errors have left from their kept DataLoaders, which then make new ones.

    Their processes have not answered yet, and the next reset would take those answers for its own."""
    for error in errors:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame.f_code.co_name == "_reset" and _iterator_of(frame) is not None:
                frame.f_locals["loader"]._iterator = None


def _iterator_of(frame: FrameType) -> Any:
    """The iterator with processes whose method this is; None: it is none."""
    if not frame.f_code.co_filename.endswith(_FILES):
        return None
    iterator = frame.f_locals.get("self")
    is_one = isinstance(iterator, dataloader._BaseDataLoaderIter) and getattr(iterator, "_num_workers", 0)
    return iterator if is_one else None

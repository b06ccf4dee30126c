"""How far the tasks are, from their progress files: on stderr and, on a cluster, for Argo."""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from everstep.runtime.store import NoSuchKey, is_s3_uri
from everstep.steps.preprocess.workspace import COUNTS, open_shelf
from everstep.steps.progress import write_for_argo

_INTERVAL_S, _STORE_INTERVAL_S = 0.5, 5.0


@dataclass(frozen=True)
class Total:
    """The total amount of work."""

    documents: int
    """0: unknown."""
    stored: int
    """Bytes of the input."""


@dataclass(frozen=True)
class WorkDone:
    """The work done so far."""

    documents: int
    tokens: int
    bytes: int
    stored: int


def read_done(shelf: str) -> WorkDone:
    """The sum over all shards."""
    store, done_parts = open_shelf(shelf), []
    for entry in store.list(""):
        if entry.key.endswith(".progress"):
            with suppress(NoSuchKey):
                done_parts.append(store.get(entry.key))
    counts = [COUNTS.unpack(data) for data in done_parts if len(data) == COUNTS.size]
    return WorkDone(*(sum(column) for column in zip(*counts, strict=True))) if counts else WorkDone(0, 0, 0, 0)


def progress_line(now: WorkDone, total: Total, seconds: float) -> str:
    """`1200 of 3000 documents  3.9 M tokens  13.1 MB/s  40 %  12 s left`."""
    share = min(1.0, now.documents / total.documents if total.documents else now.stored / max(1, total.stored))
    of_how_many = f" of {total.documents}" if total.documents else ""
    remaining_text = f"  {100 * share:.0f} %  {seconds / share - seconds:.0f} s left" if share > 0 else ""
    return (
        f"{now.documents}{of_how_many} documents  {now.tokens / 1e6:.1f} M tokens  "
        f"{now.bytes / 1e6 / seconds:.1f} MB/s{remaining_text}"
    )


@contextmanager
def show_progress(shelf: str, total: Total, every: int) -> Iterator[None]:
    """Print progress at most twice a second, and only after another `every` documents."""
    end_event, began = threading.Event(), time.monotonic()

    def tell() -> None:
        last = 0
        while not end_event.wait(_STORE_INTERVAL_S if is_s3_uri(shelf) else _INTERVAL_S):
            with suppress(OSError):  # What cannot be read or written now is told next time.
                now = read_done(shelf)
                if now.documents >= last + max(1, every):
                    last = now.documents
                    print(progress_line(now, total, time.monotonic() - began), file=sys.stderr, flush=True)
                write_for_argo(now.stored >> 10, max(1, total.stored >> 10), os.environ)

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end_event.set()
        thread.join()

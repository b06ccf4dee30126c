"""Snapshots, which bound the replay: `jobs/<job>/snapshots/000123` is the state after segment 123 of the journal.

A snapshot is a function of the segments up to its number, whichever master wrote it and however late, so a master that
was replaced meanwhile does no harm. Replay starts at the newest readable snapshot and skips those of another schema and
damaged ones. All segments are kept, older ones archived (`segments`): reports are made from them. The newest
KEPT_SNAPSHOTS snapshots are kept.
"""

import logging
from collections.abc import Iterator

from everstep.runtime import faults
from everstep.runtime.job.snapshot import SnapshotError, decode_snapshot, encode_snapshot
from everstep.runtime.job.state import State
from everstep.runtime.store import NoSuchKey, Store

KEPT_SNAPSHOTS = 2
MAX_RECORDS = 1000
"""Records after which a snapshot is due in a small job. In a large one MAX_RECORDS_PER_NODE for each node."""
MAX_RECORDS_PER_NODE = 4
MAX_SEGMENTS = 24
"""Segments after which a snapshot is due: each costs the replay a request to the store, though many run at once."""

_log = logging.getLogger(__name__)


def is_due(segments: int, records: int, state: State) -> bool:
    """Whether a replay of that many segments and records takes much longer than reading a snapshot."""
    return segments >= MAX_SEGMENTS or records >= max(MAX_RECORDS, MAX_RECORDS_PER_NODE * len(state.nodes))


def write(store: Store, job: str, number: int, state: State) -> None:
    """Write the state after segment `number`. Blocking. Raises StoreError, after which nothing is lost."""
    faults.point("snapshot.before_create", number=number)
    store.create(f"{_prefix(job)}{number:06d}", encode_snapshot(state))
    faults.point("snapshot.after_create", number=number)
    for _, key in list(_snapshot_keys(store, job))[KEPT_SNAPSHOTS:]:
        store.delete(key)


def newest(store: Store, job: str) -> tuple[int, State]:
    """(number of the last segment, state) of the newest readable snapshot; (0, State()) if there is none."""
    for number, key in _snapshot_keys(store, job):
        try:
            return number, decode_snapshot(store.get(key))
        except NoSuchKey:
            continue  # Its master has just written newer ones and deleted it.
        except (SnapshotError, ValueError) as error:
            _log.warning("%s is skipped; older snapshots and the journal's segments replace it: %s", key, error)
    return 0, State()


def _snapshot_keys(store: Store, job: str) -> Iterator[tuple[int, str]]:
    """(Segment number, key) of each snapshot, newest first."""
    keys = ((entry.key.removeprefix(_prefix(job)), entry.key) for entry in store.list(_prefix(job)))
    return iter(sorted(((int(name), key) for name, key in keys if name.isdigit()), reverse=True))


def _prefix(job: str) -> str:
    return f"jobs/{job}/snapshots/"

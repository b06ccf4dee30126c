"""Snapshots bound the replay: `jobs/<job>/snapshots/000123` is the state after segment 123 of the journal.

A snapshot says nothing that the segments up to its number do not say, whoever wrote it and however late: a master that
was replaced meanwhile does no harm with one. Replay starts at the newest that can be read; one that cannot (it is of
another schema, or the file was damaged) is passed over. The segments stay, all of them, the older ones archived
(`segments`): they are the job's history, which reports are made from. Of snapshots the newest two stay.
"""

import logging
from collections.abc import Iterator

from everstep.runtime import faults
from everstep.runtime.job.snapshot import SnapshotError, decode_snapshot, encode_snapshot
from everstep.runtime.job.state import State
from everstep.runtime.store import NoSuchKey, Store

KEPT_SNAPSHOTS = 2
MAX_RECORDS = 1000
"""A snapshot is due after so many records, or after RECORDS_A_NODE for each node where those are more,"""
MAX_RECORDS_PER_NODE = 4
MAX_SEGMENTS = 24
"""or after so many segments: each costs the replay one request to the store."""

_log = logging.getLogger(__name__)


def is_due(segments: int, records: int, state: State) -> bool:
    """Would a replay of so many segments and records take much longer than reading a snapshot?"""
    return segments >= MAX_SEGMENTS or records >= max(MAX_RECORDS, MAX_RECORDS_PER_NODE * len(state.nodes))


def write(store: Store, job: str, number: int, state: State) -> None:
    """Keep the state after segment `number`. Blocking. Raises StoreError: nothing is lost, the next one will do."""
    faults.point("snapshot.before_create", number=number)
    store.create(f"{_prefix(job)}{number:06d}", encode_snapshot(state))
    faults.point("snapshot.after_create", number=number)
    for _, key in list(_snapshot_keys(store, job))[KEPT_SNAPSHOTS:]:
        store.delete(key)


def newest(store: Store, job: str) -> tuple[int, State]:
    """(number of the last segment it contains, state) of the newest that can be read; (0, State()) without one."""
    for number, key in _snapshot_keys(store, job):
        try:
            return number, decode_snapshot(store.get(key))
        except NoSuchKey:
            continue  # Its master has just written newer ones; all that is in this one is also in the segments.
        except (SnapshotError, ValueError) as error:
            _log.warning("%s is passed over, older ones and the journal's segments say the same: %s", key, error)
    return 0, State()


def _snapshot_keys(store: Store, job: str) -> Iterator[tuple[int, str]]:
    """The newest first."""
    keys = ((entry.key.removeprefix(_prefix(job)), entry.key) for entry in store.list(_prefix(job)))
    return iter(sorted(((int(name), key) for name, key in keys if name.isdigit()), reverse=True))


def _prefix(job: str) -> str:
    return f"jobs/{job}/snapshots/"

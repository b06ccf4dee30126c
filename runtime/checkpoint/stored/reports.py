"""A node that finds no master leaves a report beside its complete shard; the next master commits by these reports.

A node that has to go while its job has no master (all pods are evicted at once) cannot wait for one.
"""

import msgspec

from everstep.runtime.checkpoint.stored.keys import CheckpointFolder, is_report, parse_folder, report_key
from everstep.runtime.checkpoint.stored.manifest import Commit, make_commit
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.store import NoSuchKey, Store

_holding = msgspec.json.Decoder(Holding).decode


def leave_report(store: Store, holding: Holding) -> None:
    """Leave the report that a shard is complete in the store. Blocking. Raises StoreError."""
    store.put(report_key(holding.key), msgspec.json.encode(holding))


def reported_commit(store: Store, job: str, folder: CheckpointFolder) -> Commit | None:
    """The commit of a checkpoint that no master has committed, if its nodes have left reports of all its shards, and
    these are there with the sizes reported. Blocking. Raises StoreError."""
    reports = [report for name in folder.objects if is_report(name) and (report := _read(store, folder, name))]
    every = {report.shard: report for report in reports}
    count = len(every)
    if not every or {report.shards for report in every.values()} != {count} or set(every) != set(range(count)):
        return None
    return make_commit(job, 0, every.values())


def _read(store: Store, folder: CheckpointFolder, name: str) -> Holding | None:
    """None if the report is damaged, or its shard is not there as it says."""
    try:
        report = _holding(store.get(f"{folder.key}/{name}"))
    except (NoSuchKey, msgspec.DecodeError):
        return None
    where, _, shard = report.key.rpartition("/")
    entry = folder.objects.get(shard)
    is_here = where == folder.key and entry is not None and entry.size == report.size
    return report if is_here and (report.round, report.iteration) == parse_folder(where) else None

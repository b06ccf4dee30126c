"""List the checkpoints in a store, and verify every byte of one."""

from collections.abc import Iterator
from typing import NamedTuple

from everstep.runtime.checkpoint.errors import RestoreError
from everstep.runtime.checkpoint.shard.reshard import Shard, open_shards
from everstep.runtime.checkpoint.state.parts import cover, whole_part
from everstep.runtime.checkpoint.stored.keys import (
    MANIFEST,
    CheckpointFolder,
    group_by_checkpoint,
    is_report,
    parse_folder,
)
from everstep.runtime.checkpoint.stored.manifest import Commit, read_listed_commit
from everstep.runtime.checkpoint.stored.read_committed import sources_in
from everstep.runtime.store import Store


class StoredCheckpoint(NamedTuple):
    """One (round, iteration) in a store."""

    folder: str
    """Common prefix of its objects' keys."""
    round: int
    iteration: int
    shards: int
    """Number of its shards; of shard objects if it is not committed."""
    size: int
    """Bytes of all shard objects in the folder."""
    commit: Commit | None
    """None if it is not committed, or differs from what was committed. Readers do not see it then."""
    wrong: str
    """How it differs from what was committed. Empty if no difference is known, or it is not committed."""
    keys: tuple[str, ...]
    """Of all its objects."""


def list_checkpoints(store: Store, prefix: str = "") -> list[StoredCheckpoint]:
    """Every checkpoint below that prefix, by job, the newest last. Raises StoreError."""
    return [_inspect(store, folder) for _, folder in sorted(group_by_checkpoint(store.list(prefix)).items())]


def _inspect(store: Store, folder: CheckpointFolder) -> StoredCheckpoint:
    commit, wrong = None, ""
    if folder.committed:
        try:
            commit = read_listed_commit(store, folder)
        except RestoreError as error:
            wrong = str(error)
    sizes = [entry.size for name, entry in folder.objects.items() if name != MANIFEST and not is_report(name)]
    place = parse_folder(folder.key)
    assert place is not None, "group_by_checkpoint returns only folders that parse"
    keys = tuple(entry.key for entry in folder.objects.values())
    shards = len(commit.objects) if commit else len(sizes)
    return StoredCheckpoint(folder.key, *place, shards, sum(sizes), commit, wrong, keys)


def find_problems(store: Store, folder: str, commit: Commit) -> Iterator[str]:
    """Read every byte of a committed checkpoint. Yields a line for each defect."""
    shards, bytes_of = sources_in(store, folder, commit)
    wrong = False
    for shard in shards:
        try:
            Shard([shard], bytes_of).verify()
        except RestoreError as error:
            wrong = True
            yield str(error)
    if wrong:
        return
    try:
        yield from _missing_parts(open_shards(shards, bytes_of))
    except RestoreError as error:
        yield str(error)


def _missing_parts(shards: list[Shard]) -> Iterator[str]:
    """Yields a line for each tensor of which no shard has some part."""
    paths = dict.fromkeys(path for shard in shards for path in shard.name_by_path)
    for path in paths:
        parts = [shard.layout.part(shard.name_by_path[path]) for shard in shards if path in shard.name_by_path]
        missing = cover(whole_part(parts[0].whole).box, enumerate(part.box for part in parts))[1]
        if missing:
            yield f"{path}: no shard has the part at {list(missing[0].offset)} of {list(parts[0].whole)}"

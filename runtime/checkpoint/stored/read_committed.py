"""Read committed checkpoints from a store."""

from functools import partial
from typing import Any

from everstep.runtime.checkpoint.shard.fetch import read
from everstep.runtime.checkpoint.shard.reshard import Sources, read_whole
from everstep.runtime.checkpoint.stored.manifest import Commit
from everstep.runtime.net.tls import Credentials
from everstep.runtime.store import Store


def sources_in(store: Store, folder: str, commit: Commit) -> Sources:
    """The holders of the shards of the checkpoint in `folder`, and the function that reads them."""
    return Sources(commit.holdings(folder), partial(read, store=store, credentials=Credentials("")))


def read_committed(store: Store, folder: str, commit: Commit) -> tuple[dict[str, Any], int]:
    """The whole state as nested dicts, and its iteration. Raises RestoreError if objects are missing or damaged."""
    return read_whole(*sources_in(store, folder, commit))

"""The names of DLRover's Flash Checkpoint, with the same meaning: change the import, and your script runs.

    checkpointer = DdpCheckpointer(checkpoint_dir)
    checkpointer.save_checkpoint(step, state_dict, path, storage_type=StorageType.MEMORY)
    state_dict = checkpointer.load_checkpoint()

MEMORY stages the state in the node's shared memory; when training processes die, the newest state goes to the store.
DISK also copies the state to the store in the background, whatever is saved meanwhile. The store is the job's (under
`everstep launch`), else the directory `checkpoint_dir`. `path` names the checkpoint there: `load_checkpoint(path)`
reads it as long as it is kept. The newest 3 are (`--keep-last`, EVERSTEP_KEEP_LAST; 0: all). DdpCheckpointer also
writes a file at `path`, for `torch.load(path, weights_only=True)`, FsdpShardCheckpointer a directory there, for
torch.distributed.checkpoint; you remove these yourself.

Source: DLRover, "Flash Checkpoint to Save and Load Training State of Large Models in Seconds", API reference.
"""

import shutil
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep.checkpoints import Checkpointer, Checkpoints
from everstep.runtime.checkpoint.errors import RestoreError
from everstep.runtime.checkpoint.shard.reshard import Shard, assemble_state, open_shards, verify_shards
from everstep.runtime.checkpoint.stored.read_committed import sources_in
from everstep.runtime.checkpoint.stored.verify import list_checkpoints
from everstep.runtime.checkpoint.worker.checkpointer import RankState
from everstep.torch_files import FileWriter

if TYPE_CHECKING:
    from everstep.runtime.checkpoint.worker.dcp import DcpReader

__all__ = ["DdpCheckpointer", "FsdpShardCheckpointer", "StorageType"]


class StorageType(Enum):
    """Where a saved state is safe when `save_checkpoint` returns, or soon after."""

    MEMORY = 0
    """In the node's shared memory; in the store when training processes die."""
    DISK = 1
    """Also in the store, soon after."""


class FlashCheckpoints:
    """What these checkpointers share, and those of frameworks whose ranks hold states of their own."""

    _per_rank = False
    """Does each rank save a state of its own, although no tensor is sharded?"""

    def __init__(self, checkpoint_dir: str) -> None:
        """`checkpoint_dir`: the store of a script that no agent started. Call it on every rank. Raises LinkError,
        StoreError."""
        self.checkpoint_dir = checkpoint_dir
        self._checkpoints = Checkpoints(checkpoint_dir)
        self._checkpointer: Checkpointer | None = None
        self._on_disk = 0
        """The last step saved with DISK."""
        self._file = FileWriter()

    def save_checkpoint(
        self, step: int, state_dict: dict[str, Any], path: str = "", storage_type: StorageType = StorageType.DISK
    ) -> None:
        """Save `state_dict` as of `step`. Training waits for one copy in memory. Call it on every rank.

        Raises StateError for a value that cannot be checkpointed; LinkError if shared memory has no room.
        """
        state = (RankState if self._per_rank else dict)(path=str(path), saved=state_dict)
        if self._checkpointer is None:
            self._checkpointer = Checkpointer(state, self._checkpoints)
        disk = StorageType(storage_type) is StorageType.DISK
        self._checkpointer.save(step, state, persist=disk)
        self._on_disk = step if disk else self._on_disk

    def wait_latest_checkpoint(self) -> None:
        """Wait until the state last saved with DISK is committed, and its file is written. Raises LinkError,
        StoreError, OSError."""
        if self._checkpointer is not None and self._on_disk:
            self._checkpointer.flush(self._on_disk)
        self._file.wait()

    def _shards(self, path: str) -> list[Shard]:
        """The shards of the newest checkpoint, or of the newest one saved as `path`; empty if there is none."""
        if not path:
            return self._checkpoints.shards()
        for shards in self._stored_checkpoints():
            if shards[0].saved["state"].get("path") == str(path):
                return shards
        raise RestoreError(f"{path}: the store has no committed checkpoint that was saved under this path")

    def _stored_checkpoints(self) -> Iterator[list[Shard]]:
        """Every complete committed checkpoint of the job, the newest first."""
        store, prefix = self._checkpoints.store_and_prefix()
        for checkpoint in reversed(list_checkpoints(store, prefix)):
            try:
                if checkpoint.commit is not None:
                    yield verify_shards(open_shards(*sources_in(store, checkpoint.folder, checkpoint.commit)))
            except RestoreError as error:
                print(f"everstep: {checkpoint.folder} is skipped: {error}", file=sys.stderr)


class DdpCheckpointer(FlashCheckpoints):
    """Checkpoints of a state that is the same on every rank."""

    def save_checkpoint(
        self, step: int, state_dict: dict[str, Any], path: str = "", storage_type: StorageType = StorageType.DISK
    ) -> None:
        """Save `state_dict` as of `step`. Training waits for one copy in memory; with DISK for two on rank 0, which
        writes the file at `path` in the background. Raises StateError, LinkError, and OSError if the previous file
        could not be written."""
        super().save_checkpoint(step, state_dict, path, storage_type)
        if _is_for_files(path, storage_type) and self._checkpoints.session.context.rank == 0:
            self._file.write(Path(path), state_dict)

    def load_checkpoint(self, resuming_path: str = "") -> dict[str, Any]:
        """The newest state as `save_checkpoint` received it, with its tensors on the CPU; {} if there is none.

        `resuming_path`: the newest one that was saved under that path. Raises RestoreError if there is none, or if no
        checkpoint can be read.
        """
        shards = self._shards(resuming_path)
        return assemble_state(shards)[0]["saved"] if shards else {}


class FsdpShardCheckpointer(FlashCheckpoints):
    """Checkpoints of FSDP's SHARDED_STATE_DICT; with FSDP1, torch.distributed.checkpoint reads the state."""

    def save_checkpoint(
        self, step: int, state_dict: dict[str, Any], path: str = "", storage_type: StorageType = StorageType.DISK
    ) -> None:
        """Save `state_dict` as of `step`. Training waits for one copy in memory; with DISK and a `path` that all nodes
        share, until the directory there is written. Call it on every rank.

        Raises StateError, LinkError; OSError and torch's CheckpointException if the directory cannot be written.
        """
        super().save_checkpoint(step, state_dict, path, storage_type)
        if not _is_for_files(path, storage_type):
            return
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        place = Path(path).absolute()
        fresh = place.with_name(f".{place.name}.{step}")
        save(state_dict, storage_writer=FileSystemWriter(fresh))
        if self._checkpoints.session.context.rank == 0:  # The others have written, too: the save is collective.
            shutil.rmtree(place, ignore_errors=True)
            fresh.rename(place)

    def get_storage_reader(self, resuming_path: str = "") -> "DcpReader | None":
        """For `dist_cp.load_state_dict` and `load_sharded_optimizer_state_dict`; None if there is no checkpoint.

        Raises RestoreError as `DdpCheckpointer.load_checkpoint` does.
        """
        from everstep.runtime.checkpoint.worker.dcp import DcpReader

        shards = self._shards(resuming_path)
        return DcpReader(shards, "saved") if shards else None


def _is_for_files(path: str, storage_type: StorageType) -> bool:
    """Is something to be written at `path`, too?"""
    return StorageType(storage_type) is StorageType.DISK and bool(path) and "://" not in str(path)

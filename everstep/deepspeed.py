"""Checkpoints of a DeepSpeed engine, in memory, with the names of DLRover's Flash Checkpoint:

    checkpointer = DeepSpeedCheckpointer(engine, checkpoint_dir)
    path, client_state = checkpointer.load_checkpoint(checkpoint_dir)
    ...
    checkpointer.save_checkpoint(checkpoint_dir, client_state={"step": step}, storage_type=StorageType.MEMORY)

What DeepSpeed would write as files, each rank stages instead: the engine's own code makes and reads them, for ZeRO 1, 2
and 3. A checkpoint of another number of ranks is converted to DeepSpeed's universal checkpoint and loaded from that.
`storage_type` is that of `everstep.flash_checkpoint`.

Source: DeepSpeed, "Model Checkpointing" and "Universal Checkpointing"; DLRover, "Flash Checkpoint", API for DeepSpeed.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.checkpoint.ds_to_universal import main as convert_to_universal  # pyright: ignore[reportMissingImports]
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine  # pyright: ignore[reportMissingImports]

from everstep.flash_checkpoint import FlashCheckpoints, StorageType
from everstep.runtime.checkpoint.errors import RestoreError, StateError
from everstep.runtime.checkpoint.shard.reshard import Shard, read_value

__all__ = ["DeepSpeedCheckpointer", "StorageType"]

_TAG = "@"
"""The key of a dict that stands for an object."""
_CLASSES = {
    "fragment_address": "deepspeed.utils.tensor_fragment",
    "LossScaler": "deepspeed.runtime.fp16.loss_scaler",
    "DynamicLossScaler": "deepspeed.runtime.fp16.loss_scaler",
}
"""DeepSpeed's own classes in its files: name and module. No other class is ever created from a checkpoint."""
_WRITERS = 2
"""Processes that convert a checkpoint to a universal one."""


class DeepSpeedCheckpointer(FlashCheckpoints):
    """Checkpoints of one engine."""

    _per_rank = True

    def __init__(self, engine: Any, checkpoint_dir: str = "") -> None:
        """Without an agent the store is `checkpoint_dir`, else EVERSTEP_STORE. Raises StoreError."""
        super().__init__(checkpoint_dir)
        self._engine = engine

    def save_checkpoint(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        save_dir: str = "",
        tag: str | None = None,
        client_state: dict[str, Any] | None = None,
        storage_type: StorageType = StorageType.DISK,
        **engine_options: Any,
    ) -> None:
        """Save the engine's state after its newest step; blocks training for one copy in memory. Call it on every rank.

        `save_dir` and `tag` are the checkpoint's name in the store. `engine_options` go to the engine's
        `save_checkpoint`. Raises StateError for a value in `client_state` that cannot be kept.
        """
        step = int(self._engine.global_steps)
        name = tag or f"global_step{step}"
        state = engine_state(self._engine, name, client_state or {}, **engine_options)
        super().save_checkpoint(step, state, f"{save_dir}/{name}" if save_dir else "", storage_type)

    def load_checkpoint(
        self, load_dir: str = "", tag: str | None = None, **engine_options: Any
    ) -> tuple[str | None, Any]:
        """Load the newest state into the engine, or the one saved as `tag`; (None, {}) if there is none.

        Returns what the engine's `load_checkpoint` returns: the checkpoint's name and `client_state`. Call it on every
        rank. Raises RestoreError.
        """
        shards = self._shards(f"{load_dir}/{tag}" if tag else "")
        return load_engine(self._engine, shards, "saved", **engine_options) if shards else (None, {})


def engine_state(engine: Any, tag: str, client_state: dict[str, Any], **engine_options: Any) -> dict[str, Any]:
    """This rank's part of the engine's state, as a value that can be checkpointed: what the engine would write to files
    for `tag`. Call it on every rank. Raises StateError for a value in `client_state` that cannot be kept."""
    with tempfile.TemporaryDirectory(prefix="everstep-deepspeed-") as folder, _files(engine, {}) as files:
        # The engine makes the names of files and their folder; the only bytes there are those of a script.
        engine.save_checkpoint(folder, tag, client_state=client_state, **engine_options)
    return {"tag": tag, "files": {path: _portable(content, path) for path, content in files.items()}}


def load_engine(engine: Any, shards: Sequence[Shard], key: str, **engine_options: Any) -> tuple[str, Any]:
    """Load the value of `engine_state` that the shards have as `key`, of any number of ranks, into the engine.

    Returns its tag and the client state. Call it on every rank. Raises RestoreError.
    """
    try:
        states = [(shard, shard.saved["state"][key]) for shard in shards]
        tag = _plain_name(states[0][1]["tag"])
        files = [(name, shard, json) for shard, state in states for name, json in state["files"].items()]
    except (KeyError, TypeError, AttributeError):
        raise RestoreError("the checkpoint is none of a DeepSpeed engine") from None
    sources = {_plain_name(name): (shard, json) for name, shard, json in files}
    with tempfile.TemporaryDirectory(prefix="everstep-deepspeed-") as folder:
        target = Path(folder) / tag
        target.mkdir()
        if len(shards) == dist.get_world_size():
            for name in sources:
                (target / name).touch()  # The engine lists the folder; the contents come from memory.
            with _files(engine, sources):
                path, client_state = engine.load_checkpoint(folder, tag, **engine_options)
        else:
            for name, source in sources.items():
                torch.save(_original(read_value(*source)), target / name)
            path, client_state = _load_universal(engine, Path(folder), tag, engine_options)
    if path is None:
        raise RestoreError(
            f"{tag}: the engine found no checkpoint of its kind; does it belong to this model and ZeRO stage?"
        )
    return tag, client_state


def _load_universal(engine: Any, folder: Path, tag: str, engine_options: dict[str, Any]) -> tuple[str | None, Any]:
    """Every rank converts for itself: ranks of one node are few where a job changes its size."""
    universal = f"{tag}_universal"
    _convert(folder / tag, folder / universal)
    config = engine._config
    before, config.load_universal_checkpoint = config.load_universal_checkpoint, True
    try:
        return engine.load_checkpoint(str(folder), universal, **engine_options)
    finally:
        config.load_universal_checkpoint = before


@contextmanager
def _files(engine: Any, sources: dict[str, tuple[Shard, Any]]) -> Iterator[dict[str, Any]]:
    """In the block the engine's files are values: those that it writes are in the yielded dict."""
    before, engine.checkpoint_engine = engine.checkpoint_engine, _InMemory(sources)
    try:
        yield engine.checkpoint_engine.written
    finally:
        engine.checkpoint_engine = before


class _InMemory(TorchCheckpointEngine):
    """DeepSpeed's interface for writing and reading its files."""

    def __init__(self, sources: dict[str, tuple[Shard, Any]]) -> None:
        super().__init__()
        self._sources = sources
        self.written: dict[str, Any] = {}

    def create(self, info: Any) -> None:
        """No-op: a checkpoint of every step needs no log line."""

    def commit(self, info: Any) -> bool:
        """No-op: the job commits a checkpoint when every rank's part is there."""
        return True

    def save(self, state_dict: Any, path: str) -> None:
        """Keep the file's content, whose tensors are the live ones."""
        self.written[os.path.basename(path)] = state_dict

    def load(self, path: str, map_location: Any = None) -> Any:
        """The content as it was saved, with its tensors on the CPU. Raises RestoreError."""
        name = os.path.basename(path)
        if name not in self._sources:
            raise RestoreError(f"{name}: the checkpoint has no such part; does it belong to this model and ZeRO stage?")
        return _original(read_value(*self._sources[name]))


def _plain_name(name: str) -> str:
    """The name, if it stays within its folder: anybody may have written a checkpoint's bytes. Raises RestoreError."""
    if name in ("", ".", "..") or os.path.basename(name) != name:
        raise RestoreError(f"{name}: not the name of a file; the checkpoint is damaged, or of a nested tag")
    return name


def _portable(value: Any, path: str) -> Any:
    """`value` without objects: those that DeepSpeed has in its files become dicts. Raises StateError for others."""
    if isinstance(value, torch.Size):
        return {_TAG: "size", "value": list(value)}
    if isinstance(value, torch.dtype):
        return {_TAG: "dtype", "value": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Tensor) or value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {key: _portable(inner, f"{path}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        items = [_portable(inner, f"{path}.{number}") for number, inner in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, set):
        return {_TAG: "set", "value": sorted(value)}
    if type(value).__module__ == _CLASSES.get(type(value).__name__):
        return {_TAG: type(value).__name__, "value": _portable(vars(value), path)}
    raise StateError(
        f"{path}: a {type(value).__name__} cannot be checkpointed; give tensors, numbers, strings and dicts"
    )


def _original(value: Any) -> Any:
    """The inverse of `_portable`. Raises RestoreError for what no save of this module writes."""
    if isinstance(value, list):
        return [_original(inner) for inner in value]
    if isinstance(value, tuple):
        return tuple(_original(inner) for inner in value)
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: _original(inner) for key, inner in value.items()}
    match value[_TAG]:
        case "size":
            return torch.Size(value["value"])
        case "dtype" if isinstance(dtype := getattr(torch, value["value"], None), torch.dtype):
            return dtype
        case "set":
            return set(value["value"])
        case name if name in _CLASSES:
            instance = object.__new__(getattr(import_module(_CLASSES[name]), name))
            vars(instance).update(_original(value["value"]))
            return instance
    raise RestoreError(f"a checkpoint of a later Everstep: unknown object {value[_TAG]!r}")


def _convert(source: Path, target: Path) -> None:
    """DeepSpeed's own conversion, with the defaults of its command line. Reads only files that were just written."""
    convert_to_universal(
        argparse.Namespace(
            input_folder=str(source),
            output_folder=str(target),
            num_extract_workers=_WRITERS,
            num_merge_workers=_WRITERS,
            keep_temp_folder=False,
            strict=True,
            inject_missing_state=True,
        )
    )

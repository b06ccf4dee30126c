"""`everstep checkpoint ls|verify|export|drop|gc URI`: list, verify, export, delete a store's checkpoints."""

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from everstep.errors import BadInput
from everstep.flags import Flag, add_verbs

if TYPE_CHECKING:
    from everstep.runtime.checkpoint.stored.verify import StoredCheckpoint
    from everstep.runtime.store import Store

_PREFIXES = ["jobs/", "datasets/", "models/", "runs/"]
"""The prefixes of everything that Everstep keeps in a store."""


_Uri = Annotated[str, Flag(metavar="URI", is_positional=True)]


@dataclass(frozen=True)
class List:
    """List the checkpoints below a URI, the newest last."""

    uri: _Uri
    """A store, or STORE/jobs/JOB."""
    output: Annotated[Literal["text", "json"], Flag("-o")] = "text"
    """For people, or programs."""


@dataclass(frozen=True)
class Verify:
    """Read every byte and check it; exit code 1 when something is damaged."""

    uri: _Uri
    """One checkpoint, a job (STORE/jobs/JOB) or a store: all of them."""


@dataclass(frozen=True)
class Export:
    """Write a Hugging Face directory, or one safetensors file."""

    uri: _Uri
    """One checkpoint, or a job: its newest one."""
    target: Annotated[str, Flag(metavar="TARGET", is_positional=True)]
    """A new directory, or a file that ends with .safetensors."""


@dataclass(frozen=True)
class Drop:
    """Remove checkpoints, whole or damaged, so that no training starts from them."""

    uri: Annotated[tuple[str, ...], Flag(metavar="URI", is_positional=True)]
    """One checkpoint: STORE/jobs/JOB/checkpoints/NAME."""


@dataclass(frozen=True)
class CollectGarbage:
    """Remove what killed writers left and incomplete checkpoints, if old."""

    uri: _Uri
    """A store, or STORE/jobs/JOB."""
    dry_run: bool = False
    """Only print what would be removed."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verbs and their flags."""
    parser.epilog = "example: everstep checkpoint export runs/store/jobs/JOB model.safetensors"
    verbs: dict[str, tuple[type[Any], Callable[[Any], int]]] = {
        "ls": (List, _ls), "verify": (Verify, _verify), "export": (Export, _export), "drop": (Drop, _drop),
        "gc": (CollectGarbage, _gc),
    }  # fmt: skip
    add_verbs(parser, {name: (config, _explain_errors(name, act)) for name, (config, act) in verbs.items()})


def _explain_errors(verb: str, act: Callable[[Any], int]) -> Callable[[Any], int]:
    """The verb, with BadInput for an error of the store, and a line and exit code 1 for a damaged checkpoint."""

    def act_and_explain(flags: Any) -> int:
        from everstep.runtime.checkpoint.errors import RestoreError
        from everstep.runtime.store import StoreError

        try:
            return act(flags)
        except StoreError as error:
            raise BadInput(str(error)) from None
        except RestoreError as error:
            print(f"everstep checkpoint {verb}: {flags.uri}: {error}", file=sys.stderr)
            return 1

    return act_and_explain


def _ls(flags: List) -> int:
    _, entries = _stored_below(flags.uri)
    if flags.output == "json":
        table_rows = [
            {
                "checkpoint": entry.folder, "round": entry.round, "iteration": entry.iteration, "shards": entry.shards,
                "bytes": entry.size, "committed": entry.commit is not None, "wrong": entry.wrong,
            }
            for entry in entries
        ]  # fmt: skip
        print(json.dumps(table_rows, indent=1))
        return 0
    rows = [["CHECKPOINT", "ROUND", "ITERATION", "SHARDS", "MB", "COMMITTED"]]
    for entry in entries:
        place = [entry.folder, str(entry.round), str(entry.iteration), str(entry.shards), f"{entry.size / 1e6:.1f}"]
        rows.append([*place, "DAMAGED" if entry.wrong else "yes" if entry.commit else "no"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _verify(flags: Verify) -> int:
    from everstep.runtime.checkpoint.stored.verify import find_problems

    store, entries = _stored_below(flags.uri)
    damage_count = 0
    for entry in entries:
        if entry.commit is None and not entry.wrong:
            print(f"{entry.folder}: not committed")
            continue
        wrong = list(find_problems(store, entry.folder, entry.commit)) if entry.commit else [entry.wrong]
        damage_count += bool(wrong)
        print(f"{entry.folder}: {'DAMAGED' if wrong else 'whole'}, {entry.shards} shards, {entry.size} bytes")
        for line in wrong:
            print(f"  {line}")
    return 1 if damage_count else 0


def _export(flags: Export) -> int:
    from everstep.runtime.checkpoint.errors import ApartError, RestoreError

    store, entries = _stored_below(flags.uri)
    usable_entries = [entry for entry in entries if entry.commit or entry.wrong]
    if not usable_entries:
        raise BadInput(f"{flags.uri}: no committed checkpoint there; `everstep checkpoint ls` shows what is")
    if len({entry.folder.rpartition("/")[0] for entry in usable_entries}) > 1:
        raise BadInput(f"{flags.uri}: checkpoints of several jobs; give STORE/jobs/JOB or one checkpoint")
    path = Path(flags.target)
    if path.exists():
        raise BadInput(f"{flags.target}: something exists there already; give a new name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{flags.target}: {error.strerror}: {error.filename}") from None
    write = _safetensors if path.suffix == ".safetensors" else _hugging_face
    for entry in reversed(usable_entries):
        try:
            if entry.wrong:
                raise RestoreError(entry.wrong)
            write(store, entry, path)
        except ApartError as error:  # So are the older ones.
            raise BadInput(f"{entry.folder}: {error}") from None
        except RestoreError as error:
            if entry is usable_entries[0]:
                raise
            print(f"everstep checkpoint export: {entry.folder} is skipped: {error}", file=sys.stderr)
        else:
            print(f"{flags.target}: iteration {entry.iteration} of {entry.folder}", file=sys.stderr)
            break
    return 0


def _drop(flags: Drop) -> int:
    from everstep.runtime.checkpoint.stored.keys import parse_folder
    from everstep.runtime.checkpoint.stored.retention import delete_checkpoints

    entries_dropped = []
    for uri in flags.uri:  # Nothing is removed before all of them are known.
        store, entries = _stored_below(uri)
        if len(entries) != 1 or not parse_folder(uri.rstrip("/")):
            raise BadInput(
                f"{uri}: does not name a single checkpoint; give STORE/jobs/JOB/checkpoints/NAME, as `ls` shows it"
            )
        entries_dropped.append((store, entries[0]))
    for store, entry in entries_dropped:
        delete_checkpoints(store, {(entry.round, entry.iteration): entry.keys})
        print(f"{entry.folder}: dropped, {len(entry.keys)} objects, {entry.size} bytes")
    return 0


def _gc(flags: CollectGarbage) -> int:
    from everstep.runtime.checkpoint.stored.keys import checkpoints_prefix, group_by_checkpoint
    from everstep.runtime.checkpoint.stored.retention import RetentionPolicy, delete_checkpoints, keys_to_delete
    from everstep.runtime.store import open_store

    above, jobs, job = flags.uri.rstrip("/").rpartition("/jobs/")
    store = open_store(above if jobs else flags.uri, read_only=True)
    places = [f"jobs/{job}/"] if jobs else _PREFIXES
    folders = [key for place in places for key in group_by_checkpoint(store.list(place))]
    if not any(next(store.list(place), None) for place in places):
        raise BadInput(f"{flags.uri}: nothing of Everstep's is there; give STORE or STORE/jobs/JOB")
    removed_count = size = 0
    verb = "would be removed" if flags.dry_run else "removed"
    for job in dict.fromkeys(key.split("/")[1] for key in folders):
        debris = keys_to_delete(store, job, RetentionPolicy())
        sizes = {entry.key: entry.size for entry in store.list(checkpoints_prefix(job))}
        for key in (key for keys in debris.values() for key in keys):
            key_bytes = sizes.get(key, 0)  # Its job may have removed it meanwhile.
            removed_count, size = removed_count + 1, size + key_bytes
            print(f"{key}: {verb}, {key_bytes} bytes of an incomplete checkpoint")
        if not flags.dry_run:
            delete_checkpoints(store, debris)
    for entry in (entry for place in places for entry in store.sweep(place, flags.dry_run)):
        removed_count, size = removed_count + 1, size + entry.size
        print(f"{entry.key}: {verb}, {f'{entry.size} bytes of a killed writer' if entry.key[-1] != '/' else 'empty'}")
    print(f"{removed_count} {verb}, {size} bytes", file=sys.stderr)
    return 0


def _safetensors(store: "Store", entry: "StoredCheckpoint", path: Path) -> None:
    """The tensors of the state's `model` under its own names; without a `model`, all tensors under their key paths."""
    from safetensors.torch import save_file

    from everstep.runtime.checkpoint.state.flatten import flatten
    from everstep.runtime.checkpoint.stored.read_committed import read_committed

    assert entry.commit is not None
    state, _ = read_committed(store, entry.folder, entry.commit)
    tree = flatten(state.get("model", state))
    # The file needs one name per tensor, but readers look for all of them.
    tensors = {
        name: tree.tensors[own].clone() if name != own else tree.tensors[own] for name, own in tree.name_by_path.items()
    }
    _write_aside(path, lambda file: save_file(tensors, file, {"format": "pt", "iteration": str(entry.iteration)}))


def _hugging_face(store: "Store", entry: "StoredCheckpoint", path: Path) -> None:
    from everstep.runtime.checkpoint.stored.read_committed import read_committed
    from everstep.steps.entry import StepError
    from everstep.steps.evaluate.checkpoint import trained_of

    assert entry.commit is not None
    state, iteration = read_committed(store, entry.folder, entry.commit)
    try:
        model = trained_of(state, iteration, f"{store.uri}/{entry.folder}").build()
    except StepError as error:
        raise BadInput(f"{error} (one file with the tensors of any state: TARGET.safetensors)") from None
    _write_aside(path, lambda folder: model.save_pretrained(folder))


def _write_aside(path: Path, write: Callable[[Path], Any]) -> None:
    """Write to a temporary file or directory beside `path`, then rename it. Raises BadInput: that is not possible."""
    from safetensors import SafetensorError

    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        temporary.rename(path)
    except BaseException as error:
        shutil.rmtree(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)
        if isinstance(error, OSError | SafetensorError):
            raise BadInput(f"{path}: cannot be written: {error}") from None
        raise


def _stored_below(uri: str) -> "tuple[Store, list[StoredCheckpoint]]":
    """The store, and what it has below the URI. Raises BadInput if that contains no checkpoint."""
    from everstep.runtime.checkpoint.stored.verify import list_checkpoints
    from everstep.runtime.store import InvalidKey, open_store

    uri = uri.rstrip("/")
    above, jobs, rest = uri.rpartition("/jobs/")
    folder, _, name = uri.rpartition("/")
    places = [(uri, "jobs/"), *([(above, f"jobs/{rest}/")] if jobs else []), (folder or ".", f"{name}/")]
    for place, prefix in places:  # The last case: a checkpoint that somebody copied out of a store.
        store = open_store(place, read_only=True)
        with suppress(InvalidKey):
            if entries := list_checkpoints(store, prefix):
                return store, entries
    raise BadInput(f"{uri}: no checkpoint there; give STORE, STORE/jobs/JOB or STORE/jobs/JOB/checkpoints/NAME")

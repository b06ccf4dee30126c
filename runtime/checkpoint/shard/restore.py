"""Copy a shard into the live state, in place. If anything does not fit, list it and load nothing.

The bytes are right: the agent compares them with their digests before it says where they are, so nobody does it again
while copying (of one thread's time, that would be a third).
"""

import ctypes
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from everstep.runtime.checkpoint.errors import DamagedError, RestoreError
from everstep.runtime.checkpoint.shard.batched_copy import Rows, group_rows, int_array, matches_shard_bytes
from everstep.runtime.checkpoint.shard.copy_to_slot import CopyThreads, Stager, copy_tensors
from everstep.runtime.checkpoint.shard.device_copies import DeviceCopies, Piece
from everstep.runtime.checkpoint.shard.digests import BLOCK_BYTES, check_shard
from everstep.runtime.checkpoint.shard.layout import Layout, TensorInfo, read_header, read_json
from everstep.runtime.checkpoint.state.flatten import FlatState, flatten, name_by_path, prepare_state, restore_values
from everstep.runtime.checkpoint.state.parts import whole_part

_TASK_BYTES = 4 << 20
"""What a thread copies before it takes the next task."""
_RELEASE_GIL_BYTES = 8 << 10
_MAX_LISTED = 10
_start, _size = attrgetter("start"), attrgetter("size")
_move, _move_at_once = ctypes.CDLL(None).memmove, ctypes.PyDLL(None).memmove
_move.argtypes = _move_at_once.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_move.restype = _move_at_once.restype = None


class LocalShard(NamedTuple):
    """A shard whose bytes are in memory."""

    data: memoryview
    layout: Layout
    saved: dict[str, Any]
    """Its JSON part."""


def open_local_shard(data: memoryview, live: FlatState, expected: Layout | None = None) -> LocalShard:
    """Read the head of a shard that is to be loaded into `live`. A header equal to that of `expected` is not parsed
    again. Raises RestoreError if the shard is torn."""
    same = expected is not None and bytes(data[: len(expected.header)]) == expected.header
    layout = expected if expected is not None and same else read_header(data)
    if len(data) < layout.size:
        raise DamagedError(f"a torn shard: {len(data)} of {layout.size} bytes are present")
    return LocalShard(data[: layout.size], layout, read_json(layout, data, live.json))


def restore(data: memoryview, state: dict[str, Any], digest: str = "") -> int:
    """Load the shard in `data` into `state` (prepared optimizers included); returns its iteration.

    With `digest` the bytes are compared with it first. Raises RestoreError: they are damaged, or keys are missing,
    unexpected or of another shape. Nothing was loaded then.
    """
    if digest:
        check_shard(data, digest)
    prepare_state(state)
    live = flatten(state)
    return load_shard(open_local_shard(data, live), state, live)


def load_shard(
    shard: LocalShard,
    state: dict[str, Any],
    live: FlatState,
    stager: Stager | None = None,
    copies: DeviceCopies | None = None,
) -> int:
    """Like `restore`, for an open shard and a state that is prepared and flattened. `stager`, if given, knows the state
    and has the shard's layout. `copies` has the device of some tensors."""
    layout, saved_state = shard.layout, shard.saved["state"]
    sources = name_by_path(saved_state, traversal=live.traversal)
    same = sources == live.name_by_path
    if same and (stager or layout.matches(live.tensors)):
        require_same({}, {}, (state, saved_state))
    else:
        own = {
            path: describe_tensor(live.tensors[name].shape, live.tensors[name].dtype)
            for path, name in live.name_by_path.items()
        }
        shard_tensors = {
            path: describe_tensor(layout.tensors[name].shape, layout.tensors[name].dtype)
            for path, name in sources.items()
        }
        require_same(shard_tensors, own, (state, saved_state))
    order = _staged_copy_order(stager, live) if stager and same else _copy_order(layout, sources, live)
    _copy(shard.data, layout, order, copies)
    restore_values(state, saved_state, live)
    return int(shard.saved["iteration"])


CopyOrder = tuple[list[Rows], list[tuple[TensorInfo, torch.Tensor]]]
"""Tensors to copy as rows, and all others with their infos; both in the file's order."""


def _copy_order(layout: Layout, sources: dict[str, str], live: FlatState) -> CopyOrder:
    """`sources` maps each live tensor to its name in the file."""
    pairs = sorted(((layout.tensors[sources[name]], tensor) for name, tensor in live.tensors.items()), key=_first_byte)
    rows, others = group_rows([place for place, _ in pairs], [tensor for _, tensor in pairs])
    return rows, [pairs[number] for number in others]


def _staged_copy_order(stager: Stager, live: FlatState) -> CopyOrder:
    """The order for a state that the stager knows."""
    rows, others = stager.copy_order()
    places = stager.layout.tensors
    return rows, sorted(((places[name], live.tensors[name]) for name in others), key=_first_byte)


def _first_byte(pair: tuple[TensorInfo, torch.Tensor]) -> int:
    return pair[0].start


def _copy(data: memoryview, layout: Layout, copied: CopyOrder, copies: DeviceCopies | None) -> None:
    """Copy every tensor by all threads, in few calls: a thread that returns from one needs the interpreter lock."""
    pieces, pairs = _plan_pieces(layout, copied[1], copies.device if copies else None)
    threads = CopyThreads(copies.upload_threads if copies and pieces else 0)
    moves, others = _plan_moves(data, pairs)
    tasks: list[Callable[[], None]] = [copy for some in copied[0] for copy in some.copies_from(data, threads.count)]
    tasks += [partial(_move_all, some) for some in moves]
    uploads = copies.uploads() if copies and pieces else None
    if uploads:
        tasks += [partial(uploads.add, data[at : at + BLOCK_BYTES], some) for at, some in pieces.items()]
    try:
        threads.run(tasks)
    finally:
        if uploads:
            uploads.wait()
    conjugated = [pair for pair in others if pair[1].is_conj()]  # torch copies these one by one only.
    others = [pair for pair in others if not pair[1].is_conj()]
    copy_tensors([target for _, target in others], [place.view(data) for place, _ in others])
    with torch.no_grad():
        for place, target in conjugated:
            target.copy_(place.view(data).clone())  # The clone is in no slot (see `copy_tensors`).


Move = tuple[int, int, int]
"""Target address, source address, size."""


def _move_all(moves: Sequence[Move]) -> None:
    """A small copy keeps the interpreter lock, as it ends before another thread could use the lock."""
    for move in moves:
        (_move if move[2] >= _RELEASE_GIL_BYTES else _move_at_once)(*move)


def _plan_moves(
    data: memoryview, pairs: list[tuple[TensorInfo, torch.Tensor]]
) -> tuple[list[list[Move]], list[tuple[TensorInfo, torch.Tensor]]]:
    """The copies to tensors that have the same bytes in memory as in the file, some for each task; and the tensors that
    torch must copy: on a device, or not contiguous."""
    places, tensors = [place for place, _ in pairs], [tensor for _, tensor in pairs]
    plain = matches_shard_bytes(tensors)
    base = np.frombuffer(data, np.uint8).ctypes.data
    facts = (int_array(torch.Tensor.data_ptr, tensors), base + int_array(_start, places), int_array(_size, places))
    moves = zip(*(fact[plain].tolist() for fact in facts), strict=True)
    return list(_group_moves(moves)), [pairs[number] for number in np.flatnonzero(~plain).tolist()]


def _group_moves(moves: Iterable[Move]) -> Iterator[list[Move]]:
    """Cut large copies, and group small ones, so that each task has up to about _TASK_BYTES."""
    group: list[Move] = []
    room = _TASK_BYTES
    for target, source, size in moves:
        for at in range(0, size, _TASK_BYTES):
            part = min(_TASK_BYTES, size - at)
            if part > room:
                yield group
                group, room = [], _TASK_BYTES
            group.append((target + at, source + at, part))
            room -= part
    if group:
        yield group


def _plan_pieces(
    layout: Layout, pairs: list[tuple[TensorInfo, torch.Tensor]], device: torch.device | None
) -> tuple[dict[int, list[Piece]], list[tuple[TensorInfo, torch.Tensor]]]:
    """What goes to the device out of each BLOCK_BYTES of data, by their first byte; and all other pairs, in order."""
    pieces, others = defaultdict[int, list[Piece]](list), list[tuple[TensorInfo, torch.Tensor]]()
    base = layout.table.start + layout.table.size
    for place, tensor in pairs:
        if tensor.device != device or not tensor.is_contiguous() or tensor.is_neg() or tensor.is_conj():
            others.append((place, tensor))
            continue
        whole = tensor.detach().reshape(-1).view(torch.uint8)
        at, end = place.start, place.start + place.size
        while at < end:
            block = at - (at - base) % BLOCK_BYTES
            then = min(end, block + BLOCK_BYTES)
            pieces[block].append(Piece(at - block, whole[at - place.start : then - place.start]))
            at = then
    return pieces, others


def has_same_parts(shard: LocalShard, live: FlatState) -> bool:
    """Is each tensor that both have the same part of the same whole in the shard and in the live state?"""
    pieces, layout = live.parts(), shard.layout
    if not pieces and not layout.parts:
        return True
    sources = name_by_path(shard.saved["state"], traversal=live.traversal)
    return all(
        layout.part(sources[path]) == (pieces.get(name) or whole_part(live.tensors[name].shape))
        for path, name in live.name_by_path.items()
        if path in sources
    )


def describe_tensor(shape: Iterable[int], dtype: Any) -> str:
    """Shape and type, for messages."""
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"


def require_same(saved_state: Mapping[str, str], live: Mapping[str, str], both: tuple[dict[str, Any], Any]) -> None:
    """Raises RestoreError with the differences. `saved_state` and `live` map key paths to `describe_tensor`; `both` are
    the live state and the saved JSON."""
    state, json = both
    state, json = ({}, {}) if isinstance(json, msgspec.Raw) else (state, json)  # Raw: equal to the state's.
    missing = [path for path in live if path not in saved_state] + [key for key in state if key not in json]
    unexpected = [path for path in saved_state if path not in live] + [key for key in json if key not in state]
    misshaped = [
        f"{path} ({saved_state[path]} saved, {shape} wanted)"
        for path, shape in live.items()
        if path in saved_state and saved_state[path] != shape
    ]
    lines = [
        text
        for kind, paths in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshaped))
        if (text := _list_paths(kind, paths))
    ]
    if lines:
        raise RestoreError(f"the checkpoint is of another model or optimizer; nothing was loaded; {'; '.join(lines)}")


def _list_paths(kind: str, paths: Iterable[str]) -> str:
    every = list(dict.fromkeys(paths))
    more = f" and {len(every) - _MAX_LISTED} more" if len(every) > _MAX_LISTED else ""
    return f"{kind}: {', '.join(every[:_MAX_LISTED])}{more}" if every else ""

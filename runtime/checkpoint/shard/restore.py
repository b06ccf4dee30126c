"""Copy a shard into the live state, in place. If anything does not fit, list it and load nothing."""

import ctypes
from bisect import bisect, bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from xxhash import xxh3_128

from everstep.runtime.checkpoint.errors import DamagedError, RestoreError
from everstep.runtime.checkpoint.shard.batched_copy import Rows, group_rows, int_array, matches_shard_bytes
from everstep.runtime.checkpoint.shard.copy_to_slot import CopyThreads, Stager, copy_tensors
from everstep.runtime.checkpoint.shard.digests import BLOCK_BYTES, check_head
from everstep.runtime.checkpoint.shard.layout import Layout, TensorInfo, read_header, read_json
from everstep.runtime.checkpoint.state.flatten import FlatState, flatten, name_by_path, prepare_state, restore_values
from everstep.runtime.checkpoint.state.parts import whole_part

_ALONE, _BESIDE = 1 << 19, 1 << 20
"""Bytes that a single thread, or each of several, checks and then copies out of the cache. Fewer would fit a core's own
cache better, but then threads wait for each other at the interpreter lock."""
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

    With `digest` the bytes are checked while they are copied, block by block, as they are in the cache then. Raises
    RestoreError: keys are missing, unexpected or of another shape, or the head is damaged (nothing was loaded); or the
    data is damaged (the state is partly overwritten: do not train on).
    """
    prepare_state(state)
    live = flatten(state)
    return load_shard(open_local_shard(data, live), state, live, digest)


def load_shard(
    shard: LocalShard, state: dict[str, Any], live: FlatState, digest: str, stager: Stager | None = None
) -> int:
    """Like `restore`, for an open shard and a state that is prepared and flattened. `stager`, if given, knows the state
    and has the shard's layout."""
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
    _copy_checked(shard.data, layout, digest, order)
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


def _copy_checked(data: memoryview, layout: Layout, digest: str, order: CopyOrder) -> None:
    """Copy every tensor by all threads, block by block. With a digest, check each block on the way.

    The calls for a block are prepared before the first of them, then made without anything in between. A thread that
    returns from a call needs the interpreter lock; waiting for it takes as long as many calls.
    """
    threads = CopyThreads()
    step = _BESIDE if threads.count > 1 else _ALONE
    digests = check_head(data, digest) if digest else None
    moves, others = _plan_moves(data, layout, order[1], step)
    rows = [some.copier_from(data) for some in order[0]]
    begins, ends = [some.start for some in order[0]], [some.end for some in order[0]]

    def block(start: int) -> None:
        block_hash, end = xxh3_128(), min(start + BLOCK_BYTES, layout.size)
        calls: list[Callable[[], Any]] = []
        for at in range(start, end, step):
            then = min(at + step, end)
            if digests:
                calls.append(partial(block_hash.update, data[at:then]))
            calls += (rows[n](at, then) for n in range(bisect(ends, at), bisect_left(begins, then)))
            calls += moves.calls_between(at, then)
        for call in calls:
            call()
        here = others[bisect_left(others, start, key=_first_byte) : bisect_left(others, end, key=_first_byte)]
        copy_tensors([target for _, target in here], [place.view(data) for place, _ in here])
        if digests:
            digests.require_block(block_hash, start, end)

    threads.run(partial(block, start) for start in _block_starts(layout))


def _block_starts(layout: Layout) -> range:
    """First bytes of the blocks of data."""
    return range(layout.table.start + layout.table.size, layout.size, BLOCK_BYTES)


class _Moves(NamedTuple):
    """Copies from the shard to tensors that have the same bytes in memory as in the file."""

    begins: list[int]
    """First byte of each stretch in the file, ascending. A stretch does not cross the end of a step."""
    stretches: list[tuple[int, int, int]]
    """Target address, source address, size."""

    def calls_between(self, start: int, end: int) -> Iterator[Callable[[], Any]]:
        """The copies of stretches that start in this range of the file, each by one thread, unlike torch's. A small
        copy keeps the interpreter lock, as it ends before another thread could use the lock."""
        for stretch in self.stretches[bisect_left(self.begins, start) : bisect_left(self.begins, end)]:
            yield partial(_move if stretch[2] >= _RELEASE_GIL_BYTES else _move_at_once, *stretch)


def _first_byte(pair: tuple[TensorInfo, torch.Tensor]) -> int:
    return pair[0].start


def _plan_moves(
    data: memoryview, layout: Layout, pairs: list[tuple[TensorInfo, torch.Tensor]], step: int
) -> tuple[_Moves, list[tuple[TensorInfo, torch.Tensor]]]:
    """The moves, and the tensors that torch must copy: on a device, not contiguous, or sharing bytes with another."""
    places, tensors = [place for place, _ in pairs], [tensor for _, tensor in pairs]
    starts, sizes, addresses = (
        int_array(_start, places),
        int_array(_size, places),
        int_array(torch.Tensor.data_ptr, tensors),
    )
    again = np.diff(starts, prepend=-1) == 0
    plain = matches_shard_bytes(tensors) & ~again
    others = [pairs[number] for number in np.flatnonzero(~plain).tolist()]
    of_this_size = plain & (sizes > 0)
    starts, sizes, addresses = starts[of_this_size], sizes[of_this_size], addresses[of_this_size]
    steps = np.add.outer(_block_starts(layout), np.arange(0, BLOCK_BYTES, step, dtype=np.int64)).ravel()
    begins = np.sort(np.concatenate((starts, steps)), kind="stable")
    of = np.searchsorted(starts, begins, "right") - 1
    ends = np.minimum(np.append(begins[1:], layout.size), (starts + sizes)[of]) if len(starts) else begins
    begins, of, ends = (some[(of >= 0) & (ends > begins)] for some in (begins, of, ends))
    base = np.frombuffer(data, np.uint8).ctypes.data
    targets = addresses[of] + begins - starts[of]
    stretches = zip(targets.tolist(), (base + begins).tolist(), (ends - begins).tolist(), strict=True)
    return _Moves(begins.tolist(), list(stretches)), others


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

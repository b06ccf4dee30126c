"""Copy a shard into the live state, in place. What does not fit is listed, and nothing is loaded then."""

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
from everstep.runtime.checkpoint.shard.digests import BLOCK_BYTES, check_head
from everstep.runtime.checkpoint.shard.layout import Layout, TensorInfo, read_header, read_json
from everstep.runtime.checkpoint.shard.stage import CopyThreads, Stager, copy_tensors
from everstep.runtime.checkpoint.state.flatten import FlatState, flatten, name_by_path, prepare_state, restore_values
from everstep.runtime.checkpoint.state.parts import whole_part

_ALONE, _BESIDE = 1 << 19, 1 << 20
"""Bytes that one thread, or each of several, checks and then copies, out of the cache. Fewer fit a core's own cache
better, but threads wait for each other at the interpreter's lock."""
_RELEASE_GIL_BYTES = 8 << 10
_MAX_LISTED = 10
_start, _size = attrgetter("start"), attrgetter("size")
_move, _move_at_once = ctypes.CDLL(None).memmove, ctypes.PyDLL(None).memmove
_move.argtypes = _move_at_once.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_move.restype = _move_at_once.restype = None


class LocalShard(NamedTuple):
    """A shard whose bytes are here."""

    data: memoryview
    layout: Layout
    saved: dict[str, Any]
    """Its JSON part."""


def open_local_shard(data: memoryview, live: FlatState, expected: Layout | None = None) -> LocalShard:
    """Read its head, to be loaded into `live`; a header that is the `expected` one's needs no reading. Raises
    RestoreError: it is torn."""
    same = expected is not None and bytes(data[: len(expected.header)]) == expected.header
    layout = expected if expected is not None and same else read_header(data)
    if len(data) < layout.size:
        raise DamagedError(f"a shard of {layout.size} bytes, of which {len(data)} are there: it is torn")
    return LocalShard(data[: layout.size], layout, read_json(layout, data, live.json))


def restore(data: memoryview, state: dict[str, Any], digest: str = "") -> int:
    """Load the shard in `data` into `state` (prepared optimizers included); returns its iteration.

    With `digest` the bytes are checked while they are copied, group by group, as they are in the cache then.
    Raises RestoreError: keys missing, unexpected or of another shape, a head that is damaged (nothing was loaded), or
    data that is (the state is partly overwritten: do not train on).
    """
    prepare_state(state)
    live = flatten(state)
    return load_shard(open_local_shard(data, live), state, live, digest)


def load_shard(
    shard: LocalShard, state: dict[str, Any], live: FlatState, digest: str, stager: Stager | None = None
) -> int:
    """The same for a shard that is opened and a state that is prepared and flattened; `stager`: it knows the state, and
    its layout is the shard's."""
    layout, saved = shard.layout, shard.saved["state"]
    sources = name_by_path(saved, walk=live.traversal)
    same = sources == live.name_by_path
    if same and (stager or layout.matches(live.tensors)):
        require_same({}, {}, (state, saved))
    else:
        own = {
            path: describe_tensor(live.tensors[name].shape, live.tensors[name].dtype)
            for path, name in live.name_by_path.items()
        }
        held = {
            path: describe_tensor(layout.tensors[name].shape, layout.tensors[name].dtype)
            for path, name in sources.items()
        }
        require_same(held, own, (state, saved))
    copied = _staged_copy_order(stager, live) if stager and same else _copy_order(layout, sources, live)
    _copy_checked(shard.data, layout, digest, copied)
    restore_values(state, saved, live)
    return int(shard.saved["iteration"])


CopyOrder = tuple[list[Rows], list[tuple[TensorInfo, torch.Tensor]]]
"""What is copied as rows, and every other tensor with its place; both in the file's order."""


def _copy_order(layout: Layout, sources: dict[str, str], live: FlatState) -> CopyOrder:
    """`sources` tells the name in the file of each live tensor."""
    pairs = sorted(((layout.tensors[sources[name]], tensor) for name, tensor in live.tensors.items()), key=_first_byte)
    rows, others = group_rows([place for place, _ in pairs], [tensor for _, tensor in pairs])
    return rows, [pairs[number] for number in others]


def _staged_copy_order(stager: Stager, live: FlatState) -> CopyOrder:
    """The same, of a state that the stager knows."""
    rows, others = stager.copy_order()
    places = stager.layout.tensors
    return rows, sorted(((places[name], live.tensors[name]) for name in others), key=_first_byte)


def _copy_checked(data: memoryview, layout: Layout, digest: str, copied: CopyOrder) -> None:
    """Copy every tensor, checking the file on the way if there is a digest: block after block, by all threads.

    The calls for a block are put together before the first of them, and follow each other with nothing in between: who
    comes back from a call needs the interpreter's lock, and to wait for another thread that has it takes as long as
    many of them.
    """
    threads = CopyThreads()
    step = _BESIDE if threads.count > 1 else _ALONE
    digests = check_head(data, digest) if digest else None
    moves, others = _plan_moves(data, layout, copied[1], step)
    rows = [some.copier_from(data) for some in copied[0]]
    begins, ends = [some.start for some in copied[0]], [some.end for some in copied[0]]

    def block(start: int) -> None:
        hashed, end = xxh3_128(), min(start + BLOCK_BYTES, layout.size)
        calls: list[Callable[[], Any]] = []
        for at in range(start, end, step):
            then = min(at + step, end)
            if digests:
                calls.append(partial(hashed.update, data[at:then]))
            calls += (rows[n](at, then) for n in range(bisect(ends, at), bisect_left(begins, then)))
            calls += moves.calls_between(at, then)
        for call in calls:
            call()
        here = others[bisect_left(others, start, key=_first_byte) : bisect_left(others, end, key=_first_byte)]
        copy_tensors([target for _, target in here], [place.view(data) for place, _ in here])
        if digests:
            digests.require_block(hashed, start, end)

    threads.run(partial(block, start) for start in _block_starts(layout))


def _block_starts(layout: Layout) -> range:
    """First bytes of the blocks of data."""
    return range(layout.table.start + layout.table.size, layout.size, BLOCK_BYTES)


class _Moves(NamedTuple):
    """Bytes from the shard to tensors that have them in memory as they are in the file."""

    begins: list[int]
    """Of each stretch, the first byte in the file, ascending; each is within one step."""
    stretches: list[tuple[int, int, int]]
    """Addresses of target and source, size."""

    def calls_between(self, start: int, end: int) -> Iterator[Callable[[], Any]]:
        """To copy those that begin at these bytes of the file: by one thread, as torch does not large tensors. A little
        is done before another thread could make use of the interpreter's lock."""
        for stretch in self.stretches[bisect_left(self.begins, start) : bisect_left(self.begins, end)]:
            yield partial(_move if stretch[2] >= _RELEASE_GIL_BYTES else _move_at_once, *stretch)


def _first_byte(one: tuple[TensorInfo, torch.Tensor]) -> int:
    return one[0].start


def _plan_moves(
    data: memoryview, layout: Layout, pairs: list[tuple[TensorInfo, torch.Tensor]], step: int
) -> tuple[_Moves, list[tuple[TensorInfo, torch.Tensor]]]:
    """What is to be moved of these in the file's order, and those that it takes torch to copy: on a device, not in a
    row, or of bytes that go to another one, too."""
    held, tensors = [place for place, _ in pairs], [tensor for _, tensor in pairs]
    starts, sizes, addresses = (
        int_array(_start, held),
        int_array(_size, held),
        int_array(torch.Tensor.data_ptr, tensors),
    )
    again = np.diff(starts, prepend=-1) == 0
    plain = matches_shard_bytes(tensors) & ~again
    others = [pairs[number] for number in np.flatnonzero(~plain).tolist()]
    chosen = plain & (sizes > 0)
    starts, sizes, addresses = starts[chosen], sizes[chosen], addresses[chosen]
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
    sources = name_by_path(shard.saved["state"], walk=live.traversal)
    return all(
        layout.part(sources[path]) == (pieces.get(name) or whole_part(live.tensors[name].shape))
        for path, name in live.name_by_path.items()
        if path in sources
    )


def describe_tensor(shape: Iterable[int], dtype: Any) -> str:
    """As messages show a tensor."""
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"


def require_same(saved: Mapping[str, str], live: Mapping[str, str], both: tuple[dict[str, Any], Any]) -> None:
    """Key path -> `told` of both states' tensors, and the states. Raises RestoreError with what differs."""
    state, json = both
    state, json = ({}, {}) if isinstance(json, msgspec.Raw) else (state, json)  # Raw: just what the state is.
    missing = [path for path in live if path not in saved] + [key for key in state if key not in json]
    unexpected = [path for path in saved if path not in live] + [key for key in json if key not in state]
    misshaped = [
        f"{path} ({saved[path]} saved, {shape} wanted)"
        for path, shape in live.items()
        if path in saved and saved[path] != shape
    ]
    lines = [
        text
        for kind, found in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshaped))
        if (text := _list_paths(kind, found))
    ]
    if lines:
        raise RestoreError(f"the checkpoint is of another model or optimizer; nothing was loaded; {'; '.join(lines)}")


def _list_paths(kind: str, found: Iterable[str]) -> str:
    every = list(dict.fromkeys(found))
    more = f" and {len(every) - _MAX_LISTED} more" if len(every) > _MAX_LISTED else ""
    return f"{kind}: {', '.join(every[:_MAX_LISTED])}{more}" if every else ""

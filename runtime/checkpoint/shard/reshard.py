"""Load a sharded state into ranks that divide it differently: another number of ranks, another mesh, or no sharding.

A rank reads the head of every shard, works out which ranges of which shards make up its own parts, and reads those in
whole blocks whose digests are checked. A tensor that several shards have is read once. Nothing communicates. If one
source fails, the next one is read.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import torch
from msgspec.structs import replace

from everstep.runtime.checkpoint.errors import ApartError, DamagedError, PassedOverError, RestoreError
from everstep.runtime.checkpoint.shard.copy_to_slot import copy_tensors
from everstep.runtime.checkpoint.shard.digests import BLOCK_BYTES, Digests, check_head
from everstep.runtime.checkpoint.shard.fetch import describe, refusal
from everstep.runtime.checkpoint.shard.layout import Layout, TensorInfo, read_header, read_json
from everstep.runtime.checkpoint.shard.restore import describe_tensor, require_same
from everstep.runtime.checkpoint.state.flatten import (
    decode,
    flatten,
    name_by_path,
    prepare_state,
    restore_values,
    tensor_names,
)
from everstep.runtime.checkpoint.state.parts import Box, TensorPart, cover, whole_part
from everstep.runtime.protocol.holdings import Holding, Refusal

T = TypeVar("T")

ReadBytes = Callable[[Holding, int, memoryview], None]
"""Fill the buffer from this source, starting at this byte. Raises RestoreError if the bytes are not available."""


class Sources(NamedTuple):
    """The holders of one checkpoint's shards, the best holder of each shard first, and the function that reads them."""

    holdings: tuple[Holding, ...]
    read: ReadBytes


_FIRST_READ_BYTES = 256 << 10
_READ_BYTES = 8 * BLOCK_BYTES
_log = logging.getLogger("everstep.checkpoint")


class Shard:
    """One shard of a checkpoint, with its head read."""

    def __init__(self, sources: Sequence[Holding], read: ReadBytes) -> None:
        """`sources` are its holders, best first. Raises PassedOverError if none has an intact head."""
        self._sources, self._read = list(sources), read
        self._refusals: list[Refusal] = []
        self.on_lost: Callable[[tuple[Refusal, ...]], None] | None = None
        """Called when no source supplies some of the shard any more."""
        self.identity = self._sources[0].round, self._sources[0].iteration
        self.layout, self._digests, self.saved = self._try_sources(self._read_head)
        self.name_by_path = name_by_path(self.saved["state"])
        """Key path -> the name of its tensor in this shard."""

    def block_range(self, start: int, end: int) -> tuple[int, int]:
        """First byte and end of the blocks that contain bytes `start` to `end`."""
        return self._digests.block_range(start, end, self.layout.size)

    def read_blocks(self, first: int, buffer: memoryview) -> None:
        """Read whole blocks from byte `first` on, and check them. Raises PassedOverError."""

        def fill(source: Holding) -> None:
            self._read(source, first, buffer)
            self._digests.check(first, buffer)

        self._try_sources(fill)

    def verify(self) -> None:
        """Check every byte. Raises PassedOverError."""
        start, size = self.layout.table.start + self.layout.table.size, self.layout.size
        buffer = memoryview(bytearray(min(_READ_BYTES, size - start)))
        for first in range(start, size, _READ_BYTES):
            self.read_blocks(first, buffer[: min(_READ_BYTES, size - first)])

    def _try_sources(self, call: Callable[[Holding], T]) -> T:
        while self._sources:
            try:
                return call(self._sources[0])
            except RestoreError as error:
                failed_source = refusal(source := self._sources.pop(0), error)
                if not failed_source.why.startswith(place := describe(source)):
                    failed_source = replace(failed_source, why=f"{place}: {failed_source.why}")
                self._refusals.append(failed_source)
                _log.warning("restoring: %s", failed_source.why)
        if self.on_lost:
            self.on_lost(tuple(self._refusals))
        raise PassedOverError("; ".join(failed_source.why for failed_source in self._refusals), self._refusals)

    def _read_head(self, source: Holding) -> tuple[Layout, Digests, dict[str, Any]]:
        layout, digests = read_head(source, self._read)
        digests = check_head(digests.head, source.digest)
        if layout.size != source.size:
            raise DamagedError(f"{source.size} bytes were promised, but its header says {layout.size}")
        return layout, digests, read_json(layout, digests.head)


def read_head(source: Holding, read: ReadBytes) -> tuple[Layout, Digests]:
    """Read the layout and the digests of the shard at `source`; the head's own digest is unchecked. Raises
    DamagedError, UnreachableError."""
    head = _extend_head(source, read, b"", min(_FIRST_READ_BYTES, source.size))
    head = _extend_head(source, read, head, 8 + int.from_bytes(head[:8], "little"))
    layout = read_header(head)
    head = _extend_head(source, read, head, layout.table.start + layout.table.size)
    return layout, Digests(memoryview(head))


def _extend_head(source: Holding, read: ReadBytes, head: bytes, size: int) -> bytes:
    if size > source.size:
        raise DamagedError(f"its head has {size} bytes, of {source.size} of the whole shard: it is damaged")
    if size <= len(head):
        return head
    more = bytearray(size - len(head))
    read(source, len(head), memoryview(more))
    return head + bytes(more)


class WantedTensor(NamedTuple):
    """A tensor to fill."""

    path: str
    part: TensorPart
    """The part of the whole that it is."""
    tensor: torch.Tensor


def open_shards(sources: Iterable[Holding], read: ReadBytes) -> list[Shard]:
    """All shards of the checkpoint in `sources`, which is not empty. Raises PassedOverError if one is missing or they
    do not belong together."""
    by_shard = sorted(sources, key=lambda source: source.shard)
    shards = [Shard(list(group), read) for _, group in groupby(by_shard, key=lambda source: source.shard)]
    if len(shards) != by_shard[0].shards:
        raise _inconsistent_error(shards, f"{len(shards)} shards are held of {by_shard[0].shards}")
    if other_iterations := {shard.saved["iteration"] for shard in shards} - {by_shard[0].iteration}:
        raise _inconsistent_error(shards, f"shards of iteration {min(other_iterations)} are in it")
    kinds: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
    for shard in shards:
        for path, name in shard.name_by_path.items():
            kind = shard.layout.part(name).whole, shard.layout.tensors[name].dtype
            if kinds.setdefault(path, kind) != kind:
                raise _inconsistent_error(
                    shards, f"{path}: shards disagree, {describe_tensor(*kinds[path])} and {describe_tensor(*kind)}"
                )
    return shards


def _inconsistent_error(shards: Sequence[Shard], why: str) -> PassedOverError:
    """Each shard is intact, but together they are not a state. This is so wherever the checkpoint is held."""
    round_, iteration = shards[0].identity
    text = f"iteration {iteration} of round {round_} is not a whole state: {why}"
    return PassedOverError(text, [Refusal(round_, iteration, text)])


def verify_shards(shards: list[Shard]) -> list[Shard]:
    """Read and check every byte, and return the shards. Raises PassedOverError."""
    for shard in shards:
        shard.verify()
    return shards


def reshard(sources: Iterable[Holding], read: ReadBytes, state: dict[str, Any], rank: int) -> int:
    """Load this rank's parts of a sharded checkpoint into `state`, in place; returns its iteration.

    Unsharded tensors and the JSON part come from the shard of the same rank, modulo the number of shards. Raises
    RestoreError if the keys do not match (nothing was loaded), PassedOverError if no source has some part (the state is
    partly overwritten).
    """
    shards = open_shards(sources, read)
    own = rank % len(shards)
    shards = shards[own:] + shards[:own]
    prepare_state(state)
    live = flatten(state)
    pieces = live.parts()
    wants = [WantedTensor(name, pieces.get(name) or whole_part(t.shape), t) for name, t in live.tensors.items()]
    wholes = {
        name: describe_tensor(want.part.whole, want.tensor.dtype)
        for name, want in zip(live.tensors, wants, strict=True)
    }
    saved_fields = shards[0].saved
    require_same(
        _saved_tensors(shards),
        {path: wholes[name] for path, name in live.name_by_path.items()},
        (state, saved_fields["state"]),
    )
    gather(shards, wants)
    restore_values(state, saved_fields["state"], live)
    return int(saved_fields["iteration"])


def read_whole(sources: Iterable[Holding], read: ReadBytes) -> tuple[dict[str, Any], int]:
    """The state of a checkpoint as nested dicts with whole tensors, however it was sharded; and its iteration.

    Unsharded values come from shard 0. Raises PassedOverError, before memory is allocated, if no shard has some part.
    """
    return assemble_state(open_shards(sources, read))


def assemble_state(shards: Sequence[Shard]) -> tuple[dict[str, Any], int]:
    """Like `read_whole`, from open shards. Raises ApartError if each rank saved a state of its own."""
    every = {path for shard in shards for path in shard.name_by_path}
    if own := sorted(every - set(shards[0].name_by_path)):
        raise ApartError(
            f"{own[0]}: not every rank has it, as each saved a state of its own, as Megatron-core and DeepSpeed do; "
            "load it by everstep.megatron or everstep.deepspeed, and export it with the framework's own tools"
        )
    saved_fields, layout = shards[0].saved, shards[0].layout
    parts = {name: layout.part(name).whole for name in shards[0].name_by_path.values()}
    for path, name in shards[0].name_by_path.items():
        _, missing = cover(whole_part(parts[name]).box, _boxes_of(shards, path))
        if missing:
            raise _inconsistent_error(shards, f"{path}: no shard has the part at {list(missing[0].offset)}")
    tensors = {
        name: torch.empty(shape, dtype=layout.tensors[name].dtype, device="cpu") for name, shape in parts.items()
    }
    gather(shards, [WantedTensor(name, whole_part(tensor.shape), tensor) for name, tensor in tensors.items()])
    return decode(saved_fields["state"], tensors.__getitem__), int(saved_fields["iteration"])


def read_value(shard: Shard, json: Any) -> Any:
    """A value out of `shard.saved`, with the tensors that it names. Raises PassedOverError."""
    places = {name: shard.layout.tensors[name] for name in tensor_names(json)}
    tensors = {name: torch.empty(place.shape, dtype=place.dtype, device="cpu") for name, place in places.items()}
    gather([shard], [WantedTensor(name, whole_part(tensor.shape), tensor) for name, tensor in tensors.items()])
    return decode(json, tensors.__getitem__)


def gather(shards: Sequence[Shard], wants: Iterable[WantedTensor]) -> None:
    """Fill every wanted tensor from the shards; of several shards with a part, the first. Raises PassedOverError if
    none has it."""
    parts: list[_RowRange] = []
    for want in wants:
        overlaps, missing = cover(want.part.box, _boxes_of(shards, want.path))
        if missing:
            raise _inconsistent_error(shards, f"{want.path}: no shard has the part at {list(missing[0].offset)}")
        parts += [part for n, box in overlaps for part in _row_ranges(n, shards[n], want, box)]
    parts.sort(key=lambda part: (part.shard, part.start))
    buffer = memoryview(b"")
    for n, start, end, group in _group_ranges(parts):
        first, last = shards[n].block_range(start, end)
        if len(buffer) < last - first:
            buffer = memoryview(bytearray(last - first))
        shards[n].read_blocks(first, buffer[: last - first])
        copy_tensors([part.target for part in group], [part.view(buffer, first) for part in group])


def _boxes_of(shards: Sequence[Shard], path: str) -> list[tuple[int, Box]]:
    """The regions of that tensor in the shards, each with the shard's index."""
    return [
        (n, shard.layout.part(shard.name_by_path[path]).box)
        for n, shard in enumerate(shards)
        if path in shard.name_by_path
    ]


@dataclass(frozen=True)
class _RowRange:
    """Rows of a tensor that are read together, and their target."""

    shard: int
    start: int
    end: int
    info: TensorInfo
    columns: tuple[slice, ...]
    """The wanted part of each row."""
    target: torch.Tensor

    def view(self, data: memoryview, first: int) -> torch.Tensor:
        """The wanted elements; `data` has the shard's bytes from `first` on."""
        kind, shape = self.info.dtype, self.info.shape
        count = (self.end - self.start) // kind.itemsize
        rows = torch.frombuffer(data, dtype=kind, offset=self.start - first, count=count)
        return rows.view(-1, *shape[1:])[(slice(None), *self.columns)] if shape else rows.view(())


def _row_ranges(n: int, shard: Shard, want: WantedTensor, box: Box) -> Iterator[_RowRange]:
    """Divide `box` of the wanted tensor in this shard into ranges of at most `_READ_BYTES`."""
    name = shard.name_by_path[want.path]
    place, own_box = shard.layout.tensors[name], shard.layout.part(name).box
    if not box.shape:
        yield _RowRange(n, place.start, place.start + place.size, place, (), want.tensor)
        return
    target = want.tensor[box.slices_in(want.part.box)]
    within = box.slices_in(own_box)
    row = place.size // own_box.shape[0]
    step = max(1, _READ_BYTES // row)
    for at in range(0, box.shape[0], step):
        start = place.start + (within[0].start + at) * row
        rows = min(step, box.shape[0] - at)
        yield _RowRange(n, start, start + rows * row, place, within[1:], target[at : at + rows])


def _group_ranges(parts: Iterable[_RowRange]) -> Iterator[tuple[int, int, int, list[_RowRange]]]:
    """Group ranges that are near each other in a shard. Yields shard index, first byte, end, ranges."""
    group: list[_RowRange] = []
    end = 0
    for part in parts:
        near = group and part.shard == group[0].shard and part.start - end < BLOCK_BYTES
        if group and not (near and part.end - group[0].start <= _READ_BYTES):
            yield group[0].shard, group[0].start, end, group
            group, end = [], 0
        group.append(part)
        end = max(end, part.end)
    if group:
        yield group[0].shard, group[0].start, end, group


def _saved_tensors(shards: Sequence[Shard]) -> Mapping[str, str]:
    """Key path -> shape and type of the whole tensor, over all shards."""
    return {
        path: describe_tensor(shard.layout.part(name).whole, shard.layout.tensors[name].dtype)
        for shard in shards
        for path, name in shard.name_by_path.items()
    }

"""The place of each tensor in a shard: byte for byte a safetensors file.

8 bytes of header length, the JSON header padded with spaces, then data. By the format's rules, offsets have no holes
and the header starts with '{'. Data starts on a page boundary, and so does each tensor of at least SMALL_BYTES; the
gaps before them are named pad tensors. Smaller tensors are packed behind, wide types first, so that each is aligned to
its own type. Small tensors of one size are adjacent because they are copied together (see `batched_copy`).

The first tensor, STATE_TENSOR, is the JSON part of the state: uint8 of a fixed capacity, padded with spaces. The second
is the table of digests (see `digests`). Of a sharded tensor the file has this rank's part. `__metadata__` describes the
parts under "pieces", as JSON: {name: [shape of the whole tensor, offset of the part]}.

Source: the safetensors README, section "Format".
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import torch

from everstep.runtime.checkpoint.errors import DamagedError, StateError
from everstep.runtime.checkpoint.shard.digests import DIGESTS_TENSOR, find_table, table_size
from everstep.runtime.checkpoint.shard.sizes import round_to_pages
from everstep.runtime.checkpoint.state.flatten import RESERVED, decode, tensor_names
from everstep.runtime.checkpoint.state.parts import Box, TensorPart, whole_part

SMALL_BYTES = 64 << 10
STATE_TENSOR = f"{RESERVED}state__"
_SPACE = ord(" ")
_PAD_PREFIX = f"{RESERVED}pad_"

_NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_TYPES = {name: dtype for dtype, name in _NAMES.items()}


_Row = tuple[str, str, tuple[int, ...], int]
"""Name, type name, shape, size in bytes."""


@dataclass(frozen=True)
class TensorInfo:
    """The bytes of a tensor in the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """First byte, counted from the beginning of the file."""
    size: int

    def view(self, buffer: memoryview) -> torch.Tensor:
        """A tensor that shares those bytes of `buffer`."""
        if not self.size:
            return torch.empty(self.shape, dtype=self.dtype, device="cpu")
        count = self.size // self.dtype.itemsize
        return torch.frombuffer(buffer, dtype=self.dtype, offset=self.start, count=count).view(self.shape)


@dataclass(frozen=True)
class Layout:
    """The layout of a whole shard."""

    header: bytes
    """Length and JSON, as at the beginning of the file."""
    tensors: Mapping[str, TensorInfo]
    """By name, in file order, without pads, STATE_TENSOR and DIGESTS_TENSOR."""
    state: TensorInfo
    """The JSON part."""
    table: TensorInfo
    """The digests, right before the data."""
    parts: Mapping[str, TensorPart]
    """The parts of sharded tensors, by name."""
    size: int
    """Bytes of the file."""

    def part(self, name: str) -> TensorPart:
        """The part of the whole tensor that is in this shard."""
        return self.parts.get(name) or whole_part(self.tensors[name].shape)

    def matches(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Do these tensors have the names, shapes and types of this layout?"""
        return len(tensors) == len(self.tensors) and all(
            (place := self.tensors.get(name)) is not None
            and place.dtype is tensor.dtype
            and place.shape == tuple(tensor.shape)
            for name, tensor in tensors.items()
        )

    def write_state(self, buffer: memoryview, text: bytes) -> None:
        """Write the header, the JSON part (from `json_bytes`) and an empty table into the shard. Raises StateError if
        the JSON exceeds its capacity."""
        if len(text) > self.state.size:
            raise StateError(
                f"state: its values other than tensors have {len(text)} bytes, {self.state.size} were set aside"
            )
        buffer[: len(self.header)] = self.header
        start, end = self.state.start, self.state.start + self.state.size
        buffer[start : start + len(text)] = text
        np.frombuffer(buffer, np.uint8)[start + len(text) : end] = _SPACE
        buffer[self.table.start : self.table.start + self.table.size] = bytes(self.table.size)


def json_bytes(value: Any) -> bytes:
    """Encode the JSON part."""
    return msgspec.json.encode(value, enc_hook=_to_builtin)


def _to_builtin(value: Any) -> Any:
    """Convert numbers of numpy and subclasses of Python's types to Python's own types."""
    return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))


def state_capacity(text: bytes) -> int:
    """Bytes to reserve for the JSON part: four times its present size, at least 64 KiB."""
    return round_to_pages(max(SMALL_BYTES, 4 * len(text)))


def plan_layout(
    tensors: Mapping[str, torch.Tensor], capacity: int, pieces: Mapping[str, TensorPart] | None = None
) -> Layout:
    """Lay out `tensors` and a JSON part of `capacity` bytes; `pieces` has the parts of sharded tensors.

    Raises StateError for a type that safetensors lacks.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise StateError(f"{name}: safetensors has no name for {tensor.dtype}")
    sizes = {name: tensor.numel() * tensor.dtype.itemsize for name, tensor in tensors.items()}
    big = sorted((name for name in tensors if sizes[name] >= SMALL_BYTES), key=lambda name: (-sizes[name], name))
    small = sorted(
        (n for n in tensors if sizes[n] < SMALL_BYTES), key=lambda n: (-tensors[n].dtype.itemsize, -sizes[n], n)
    )
    rows: list[_Row] = []
    end = 0
    for name in big + small:
        if gap := (round_to_pages(end) - end if sizes[name] >= SMALL_BYTES else -end % tensors[name].dtype.itemsize):
            rows.append((f"{_PAD_PREFIX}{len(rows):06d}__", "U8", (gap,), gap))
            end += gap
        rows.append((name, _NAMES[tensors[name].dtype], tuple(tensors[name].shape), sizes[name]))
        end += sizes[name]
    table = round_to_pages(table_size(end))
    head: list[_Row] = [(STATE_TENSOR, "U8", (capacity,), capacity), (DIGESTS_TENSOR, "U8", (table,), table)]
    return _make_layout(
        head + rows, {name: part for name, part in (pieces or {}).items() if part != whole_part(part.whole)}
    )


def _make_layout(rows: list[_Row], pieces: Mapping[str, TensorPart]) -> Layout:
    metadata = {"format": "pt", "everstep": "1"}
    if pieces:
        of = {name: [part.whole, part.box.offset] for name, part in pieces.items()}
        metadata["pieces"] = json.dumps(of, separators=(",", ":"))
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, kind, shape, size in rows:
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header, separators=(",", ":")).encode()
    length = round_to_pages(8 + len(text)) - 8
    return read_header(length.to_bytes(8, "little") + text.ljust(length))


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Shape = Annotated[tuple[_Count, ...], msgspec.Meta(max_length=64)]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tensor's entry in the header; numbers are non-negative integers."""

    dtype: str
    shape: _Shape
    data_offsets: tuple[_Count, _Count]


_entries = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_entry = msgspec.json.Decoder(_Entry).decode
_metadata = msgspec.json.Decoder(dict[str, str]).decode
_pieces = msgspec.json.Decoder(dict[str, tuple[_Shape, _Shape]]).decode


def read_header(data: bytes | memoryview) -> Layout:
    """Parse the layout from a shard's first bytes. Raises DamagedError if this is not a shard.

    Invariant: tensors follow each other without gap or overlap. The JSON part is first; the digests are second, with
    room for one of each block of the rest. A part lies within its whole. So no tensor lies outside of the file.
    """
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 + length:
        raise DamagedError(f"a torn shard: {len(data) - 8} of {length} bytes of its header are present")
    header = bytes(data[: 8 + length])
    try:
        entries = _entries(header[8:])
        of = _pieces(_metadata(entries.pop("__metadata__", b"{}")).get("pieces", "{}"))
        every, end = _lay_in_sequence({name: _entry(entry) for name, entry in entries.items()}, 8 + length)
        state, table = every.pop(STATE_TENSOR), every.pop(DIGESTS_TENSOR)
        if state.start != 8 + length or find_table(header) != slice(table.start, table.start + table.size):
            raise ValueError("the JSON part and the digests do not come first")
        if table.size < table_size(end - table.start - table.size):
            raise ValueError(f"{table.size} bytes of digests for {end} bytes")
        pieces = {name: _checked_part(every[name], *part) for name, part in of.items()}
    except (ValueError, KeyError, RecursionError) as error:
        raise DamagedError(f"not a shard of Everstep: its header cannot be read ({error!r})") from None
    places = {name: place for name, place in every.items() if not name.startswith(_PAD_PREFIX)}
    return Layout(header, places, state, table, pieces, end)


def _lay_in_sequence(entries: Mapping[str, _Entry], end: int) -> tuple[dict[str, TensorInfo], int]:
    """Infos of tensors that follow each other from byte `end` of the file, and the end of the last."""
    base, places = end, dict[str, TensorInfo]()
    for name, entry in entries.items():
        start, stop = entry.data_offsets
        place = TensorInfo(_TYPES[entry.dtype], entry.shape, base + start, stop - start)
        if place.start != end or place.size < 0:
            raise ValueError(f"{name} lies at {start} to {stop}, the one before ends at {end - base}")
        if math.prod(place.shape) * place.dtype.itemsize != place.size:
            raise ValueError(f"{name}: {place.shape} of {place.dtype} in {place.size} bytes")
        places[name], end = place, end + place.size
    return places, end


def _checked_part(place: TensorInfo, every: tuple[int, ...], offset: tuple[int, ...]) -> TensorPart:
    box = Box(offset, place.shape)
    if not len(every) == len(offset) == len(place.shape) or any(a > b for a, b in zip(box.end(), every, strict=True)):
        raise ValueError(f"the part at {offset} of {every} has the shape {place.shape}")
    return TensorPart(every, box)


def read_shard(data: bytearray | memoryview) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The state of a whole shard as nested dicts of tensors, and all tensors by name. They share `data`."""
    view = memoryview(data)
    layout = read_header(view)
    if len(view) < layout.size:
        raise DamagedError(f"a torn shard: {len(view)} of {layout.size} bytes are present")
    tensors = {name: place.view(view) for name, place in layout.tensors.items()}
    return decode(read_json(layout, view)["state"], tensors.__getitem__), tensors


def read_json(layout: Layout, data: memoryview, like: Any = None) -> dict[str, Any]:
    """The JSON part: {"iteration": n, "state": ...}. If `like`, the `FlatState.json` of a state, has a Raw where the
    text is the same, that Raw stands in the result. Raises DamagedError if the JSON is malformed or names missing
    tensors."""
    start = layout.state.start
    try:
        saved_values = _read_values(
            msgspec.Raw(_strip_padding(data[start : start + layout.state.size])), {"state": like}
        )
        if type(saved_values["iteration"]) is not int or saved_values["iteration"] < 0:
            raise ValueError(f"iteration {saved_values['iteration']!r}")
        if (unknown := tensor_names(saved_values["state"]) - layout.tensors.keys()) and not isinstance(
            saved_values["state"], msgspec.Raw
        ):
            raise ValueError(f"it names tensors that are missing: {', '.join(sorted(unknown)[:3])}")
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedError(f"not a shard of Everstep: its state cannot be read ({error!r})") from None
    return saved_values


def _strip_padding(text: memoryview) -> memoryview:
    """Cut after the last '}'. Searches in small steps, as bytes have to be copied for that."""
    for start in range((len(text) - 1) // SMALL_BYTES * SMALL_BYTES, -1, -SMALL_BYTES):
        if (at := bytes(text[start : start + SMALL_BYTES]).rfind(b"}")) >= 0:
            return text[: start + at + 1]
    return text[:0]


def _read_values(text: msgspec.Raw, like: Any) -> Any:
    if isinstance(like, msgspec.Raw):
        return like if like == text else json.loads(bytes(text))
    is_dict = isinstance(like, dict) and bytes(memoryview(text)[:1]) == b"{"
    if is_dict and any(isinstance(item, dict | msgspec.Raw) for item in like.values()):
        parts = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        return {key: _read_values(part, like.get(key)) for key, part in parts.items()}
    return json.loads(bytes(text))

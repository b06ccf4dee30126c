"""Shards and manifests whose headers lie, with digests that are right: refused, before there is memory for anything."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.runtime.checkpoint.errors import DamagedError, NewerError, RestoreError
from everstep.runtime.checkpoint.shard.digests import seal
from everstep.runtime.checkpoint.shard.layout import json_bytes, plan_layout, state_capacity
from everstep.runtime.checkpoint.shard.restore import restore
from everstep.runtime.checkpoint.state.flatten import flatten
from everstep.runtime.checkpoint.stored.keys import checkpoint_folder, manifest_key, shard_key
from everstep.runtime.checkpoint.stored.manifest import (
    Commit,
    encode_manifest,
    make_commit,
    parse_manifest,
    read_commit,
)
from everstep.runtime.checkpoint.stored.read_committed import read_committed
from everstep.runtime.protocol.holdings import Holding
from everstep.runtime.store import DirectoryStore

WEIGHTS = torch.arange(1 << 12, dtype=torch.float32)
Edit = Callable[[dict[str, Any]], object]


def shard(edit: Edit | None = None, text: bytes = b"") -> bytearray:
    """A state of one tensor, its header edited, its digests right."""
    live = flatten({"model": {"w": WEIGHTS}, "it": 3})
    text = text or json_bytes({"iteration": 3, "state": live.json})
    layout = plan_layout(live.tensors, state_capacity(text))
    data = bytearray(layout.size)
    layout.write_state(memoryview(data), text)
    layout.tensors["model.w"].view(memoryview(data)).copy_(WEIGHTS)
    if edit:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(bytes(data[8 : 8 + length]))
        edit(header)
        header_text = json.dumps(header, separators=(",", ":")).encode()
        data[8 : 8 + length] = header_text.ljust(length)[:length]
    return data


def seal_and_restore(data: bytearray) -> int:
    """Sealed and restored; what was restored is what was saved."""
    state = {"model": {"w": torch.zeros_like(WEIGHTS)}, "it": 0}
    iteration = restore(memoryview(data), state, seal(memoryview(data)))
    assert torch.equal(state["model"]["w"], WEIGHTS)
    return iteration


def move_checkpoint(start: int, kind: type = int) -> Edit:
    def edit(header: dict[str, Any]) -> None:
        begin, end = header["model.w"]["data_offsets"]
        header["__everstep_zz__"] = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        header["model.w"]["data_offsets"] = [kind(start), kind(start + end - begin)]

    return edit


EDITS: dict[str, Edit] = {
    "a negative offset": move_checkpoint(-(1 << 30)),
    "an overlap with the JSON part": move_checkpoint(0),
    "an offset beyond the file": move_checkpoint(1 << 60),
    "a fractional offset": move_checkpoint(0, float),
    "a negative shape": lambda header: header["model.w"].update(shape=[-64, -64]),
    "a shape of another size": lambda header: header["model.w"].update(shape=[1 << 44]),
    "a fractional shape": lambda header: header["model.w"].update(shape=[4096.0]),
    "a truth for a number": lambda header: header["model.w"].update(shape=[True, 4096]),
    "a gap": lambda header: header["model.w"].update(
        data_offsets=[offset + 4 for offset in header["model.w"]["data_offsets"]]
    ),
    "an unknown type": lambda header: header["model.w"].update(dtype="F7"),
    "a piece behind its whole": lambda header: header["__metadata__"].update(
        pieces=json.dumps({"model.w": [[1 << 12], [1]]})
    ),
    "a piece before the tensor": lambda header: header["__metadata__"].update(
        pieces=json.dumps({"model.w": [[1 << 13], [-5]]})
    ),
    "deep JSON in the metadata": lambda header: header["__metadata__"].update(pieces="[" * 1500),
    "a table without room": lambda header: header["__everstep_digests__"].update(data_offsets=[0, 0]),
    "no table": lambda header: header.pop("__everstep_digests__"),
    "an entry that is no tensor": lambda header: header.update({"model.w": []}),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_a_header_that_lies_is_refused(edit: Edit) -> None:
    with pytest.raises(RestoreError):
        seal_and_restore(shard(edit))


@pytest.mark.parametrize(
    "text",
    [
        b'{"iteration":3,"state":' + b"[" * 3000 + b"}",
        b'{"iteration":3,"state":{"model":{"w":{"$":"tensor","name":"nowhere"}},"it":3}}',
        b'{"iteration":3,"state":{"model":{"w":{"$":"tensor"}},"it":3}}',
        b'{"iteration":3,"state":{"$":"dict","items":[[[],1]]}}',
        b'{"iteration":3,"state":{"$":"later"}}',
        b'{"iteration":true,"state":{}}',
        b'{"iteration":-1,"state":{}}',
        b"[]",
    ],
)
def test_a_json_part_that_lies_is_refused(text: bytes) -> None:
    with pytest.raises(RestoreError):
        seal_and_restore(shard(text=text))


def store_with_commit(
    folder: Path, data: bytes, edit: Callable[[dict[str, Any]], object] | None = None
) -> DirectoryStore:
    store = DirectoryStore(folder)
    store.put(shard_key("j", 1, 3, 0), data)
    holding = Holding(1, 3, size=len(data), key=shard_key("j", 1, 3, 0), digest=seal(memoryview(bytearray(data))))
    manifest = json.loads(encode_manifest(make_commit("j", 1, [holding])))
    if edit:
        edit(manifest)
    store.put(manifest_key("j", (1, 3)), json.dumps(manifest).encode())
    return store


def export(store: DirectoryStore) -> Any:
    folder = checkpoint_folder("j", (1, 3))
    return read_committed(store, folder, read_commit(store, folder))[0]


def test_what_no_shard_has_gets_no_memory(tmp_path: Path) -> None:
    def edit(header: dict[str, Any]) -> None:
        header["__metadata__"]["pieces"] = json.dumps({"model.w": [[1 << 45], [0]]})

    data = shard(edit)
    seal(memoryview(data))
    with pytest.raises(RestoreError, match=r"model\.w: no shard has the part at \[4096\]"):
        export(store_with_commit(tmp_path, bytes(data)))


LIES: dict[str, tuple[Callable[[dict[str, Any]], object], type[RestoreError], str]] = {
    "of a later version": (
        lambda manifest: manifest.update(version=7),
        NewerError,
        "version 7, this Everstep reads up to 1",
    ),
    "of 10^14 bytes": (
        lambda manifest: manifest["objects"][0].update(size=10**14),
        DamagedError,
        "has .* bytes, 10+ were",
    ),
    "of a negative size": (
        lambda manifest: manifest["objects"][0].update(size=-1),
        DamagedError,
        "manifest is damaged",
    ),
    "without a digest": (
        lambda manifest: manifest["objects"][0].update(digest=""),
        DamagedError,
        "manifest is damaged",
    ),
    "of two shards": (
        lambda manifest: manifest["objects"].append(manifest["objects"][0]),
        DamagedError,
        "manifest is damaged",
    ),
    "of none": (lambda manifest: manifest.update(objects=[]), DamagedError, "manifest is damaged"),
    "of another iteration": (lambda manifest: manifest.update(iteration=4), DamagedError, "moved or renamed"),
    "of another object": (lambda manifest: manifest["objects"][0].update(key="../x"), DamagedError, "x is gone"),
}


@pytest.mark.parametrize(("edit", "kind", "text"), LIES.values(), ids=LIES)
def test_a_manifest_that_lies_is_refused_by_name(
    edit: Any, kind: type[RestoreError], text: str, tmp_path: Path
) -> None:
    data = shard()
    seal(memoryview(data))
    assert torch.equal(export(store_with_commit(tmp_path, bytes(data)))["model"]["w"], WEIGHTS)
    with pytest.raises(kind, match=text):
        export(store_with_commit(tmp_path, bytes(data), edit))


@given(st.binary(max_size=300))
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(RestoreError):
        parse_manifest(data)


def test_a_commit_is_read_as_it_was_written() -> None:
    holdings_held = [Holding(1, 3, n, 2, 9, key=shard_key("j", 1, 3, n), digest=f"{n:032x}") for n in (1, 0)]
    commit = make_commit("j", 2, holdings_held)
    assert isinstance(commit, Commit)
    assert parse_manifest(encode_manifest(commit)) == commit
    assert commit.holdings(checkpoint_folder("j", (1, 3))) == tuple(reversed(holdings_held))


NUMBERS = st.one_of(st.integers(-(1 << 70), 1 << 70), st.floats(), st.booleans(), st.none(), st.text(max_size=3))
JSON = st.recursive(
    NUMBERS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
)
TENSORS = st.sampled_from(["model.w", "__everstep_state__", "__everstep_digests__", "__metadata__", "other"])
FIELDS = st.sampled_from(["dtype", "shape", "data_offsets", "pieces", "other"])


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.tuples(TENSORS, FIELDS, JSON), min_size=1, max_size=3))
def test_whatever_a_header_says_nothing_wrong_is_loaded_and_nothing_large_allocated(
    edits: list[tuple[str, str, Any]],
) -> None:
    def edit(header: dict[str, Any]) -> None:
        for tensor, field, value in edits:
            if isinstance(header.setdefault(tensor, {}), dict):
                header[tensor][field] = value

    data = shard(edit)
    tracemalloc.start()
    try:
        assert seal_and_restore(data) == 3
    except RestoreError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 32 << 20


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 255)), min_size=1, max_size=4))
def test_whatever_bytes_of_a_head_are_overwritten_nothing_wrong_is_loaded(edits: list[tuple[int, int]]) -> None:
    data = shard()
    seal(memoryview(data))
    digest_of_whole = seal(memoryview(bytearray(data)))
    for at, value in edits:
        data[at] = value
    state = {"model": {"w": torch.zeros_like(WEIGHTS)}, "it": 0}
    try:
        assert restore(memoryview(data), state, digest_of_whole) == 3
    except RestoreError:
        return
    assert torch.equal(state["model"]["w"], WEIGHTS)

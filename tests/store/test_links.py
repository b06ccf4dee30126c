"""A store in a directory leaves it by no symbolic link, whenever one is put in its way."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.runtime.store import DirectoryStore, NoSuchKey, StoreError

SECRET = b"outside"
KEY = "a/b/object"
OPERATIONS: dict[str, Callable[[DirectoryStore], object]] = {
    "get": lambda store: store.get(KEY),
    "read_into": lambda store: _read(store),
    "put": lambda store: store.put(KEY, b"mine"),
    "create": lambda store: store.create(KEY, b"mine"),
    "delete": lambda store: store.delete(KEY),
    "list": lambda store: list(store.list("a/b/")),
}


def _read(store: DirectoryStore) -> bytes:
    buffer = bytearray(len(SECRET))
    store.read_into(KEY, 0, memoryview(buffer))
    return bytes(buffer)


def _outside(folder: Path) -> Path:
    """A tree like the store's, which nobody may touch."""
    (folder / "outside/b").mkdir(parents=True)
    (folder / "outside/b/object").write_bytes(SECRET)
    (folder / "outside/object").write_bytes(SECRET)
    return folder / "outside"


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("link", ["a", "a/b", "a/b/object"])
def test_no_link_is_followed(tmp_path: Path, operation: str, link: str) -> None:
    outside, root = _outside(tmp_path), tmp_path / "store"
    before = _contents(outside)
    store = DirectoryStore(root)
    target = {"a": outside, "a/b": outside / "b", "a/b/object": outside / "object"}[link]
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(target)
    if link != "a/b/object" or operation in ("get", "read_into"):
        with pytest.raises(StoreError, match=f"{link}: is a symbolic link, which a store does not follow"):
            OPERATIONS[operation](store)
    else:  # The link itself is replaced, in the way, removed, not listed.
        assert OPERATIONS[operation](store) in (None, False, [])
    assert _contents(outside) == before
    assert list(store.list("")) == [] or operation == "put"


def test_the_store_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    store = DirectoryStore(tmp_path / "link")
    store.put(KEY, b"mine")
    assert store.get(KEY) == (tmp_path / "real" / KEY).read_bytes() == b"mine"
    assert [entry.key for entry in store.list("a/")] == [KEY]


def test_an_object_that_vanishes_while_somebody_lists_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, scan = DirectoryStore(tmp_path), os.scandir
    for name in ("one", "two", "three"):
        store.put(name, b"x")

    def vanishing(folder: int) -> object:
        scan_lines = scan(folder)
        (tmp_path / "two").unlink()
        return scan_lines

    monkeypatch.setattr(os, "scandir", vanishing)
    assert [entry.key for entry in store.list("")] == ["one", "three"]


@given(st.sampled_from(sorted(OPERATIONS)), st.sampled_from(["a", "a/b", "a/b/object"]), st.integers(0, 12))
def test_a_link_put_in_the_way_at_any_moment_leads_nowhere(operation: str, link: str, moment: int) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        outside, root = _outside(Path(name)), Path(name, "store")
        before, store = _contents(outside), DirectoryStore(root)
        store.put(KEY, b"inside!")
        target = {"a": outside, "a/b": outside / "b", "a/b/object": outside / "object"}[link]
        calls = 0

        def count(real: Callable[..., object]) -> Callable[..., object]:
            def call_and_count(*arguments: object, **more: object) -> object:
                nonlocal calls
                if calls == moment:
                    (root / link).rename(root / "moved")
                    (root / link).symlink_to(target)
                calls += 1
                return real(*arguments, **more)

            return call_and_count

        with patch.context() as inner:
            for function in ("open", "stat", "replace", "link", "unlink", "mkdir", "fsync"):
                inner.setattr(os, function, count(getattr(os, function)))
            try:
                value = OPERATIONS[operation](store)
            except (StoreError, NoSuchKey):
                value = None
        assert value != SECRET
        assert _contents(outside) == before

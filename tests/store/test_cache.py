"""Finished data of an S3 store as a folder of this machine."""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from everstep.runtime.data import data_folder
from everstep.runtime.store import NoSuchKey, Store, StoreError, fetch_folder, open_store
from everstep.runtime.store.cache import Cache
from everstep.runtime.system.file_lock import hold_lock
from everstep.runtime.system.own_folder import hold_process_folder
from tests.minio import MinIO

Data = Callable[[str, int], str]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERSTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data(s3: MinIO, cache: Path) -> Data:
    """Puts finished data of a name and a size into a store; its URI."""
    store = open_store(s3.new_prefix())

    def put(name: str, size: int) -> str:
        store.put(f"{name}/deep/er/file", bytes([len(name)]) * size)
        store.put(f"{name}/empty", b"")
        store.create(f"{name}/done.json", b"{}")
        return f"{store.uri}/{name}"

    return put


def test_data_is_fetched_whole_once_and_kept(data: Data) -> None:
    uri = data("abc", 20_000_000)
    folder = fetch_folder(uri, "done.json")
    assert folder.name == "abc"
    assert (folder / "deep/er/file").read_bytes() == b"\3" * 20_000_000
    assert (folder / "empty").read_bytes() == b""
    open_store(uri).delete("deep/er/file")
    assert fetch_folder(uri, "done.json") == folder
    assert (folder / "deep/er/file").stat().st_size == 20_000_000


def test_what_is_not_finished_is_not_fetched(data: Data, cache: Path) -> None:
    uri = data("abc", 10)
    open_store(uri).delete("done.json")
    with pytest.raises(NoSuchKey, match=r"done\.json"):
        fetch_folder(uri, "done.json")
    assert not [path for path in cache.rglob("*") if path.name != "lock" and path.is_file()]


def test_a_fetch_that_fails_leaves_nothing_and_the_next_one_starts_anew(
    data: Data, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = data("abc", 10)

    class Torn:
        """A store whose second object cannot be read."""

        uri = ""

        def __init__(self, real: Store) -> None:
            self.get, self.list = real.get, real.list

        def read_into(self, key: str, start: int, buffer: memoryview) -> None:
            raise StoreError("torn")

    real = open_store(uri, read_only=True)
    with pytest.raises(StoreError, match="torn"):
        Cache({"EVERSTEP_CACHE": str(cache)}).fetch(
            cache / "entry/abc",
            lambda: Torn(real),  # type: ignore[arg-type,return-value]
            "done.json",
        )
    assert [path.name for path in (cache / "entry").iterdir()] == ["lock"]
    assert Cache({"EVERSTEP_CACHE": str(cache)}).fetch(cache / "entry/abc", lambda: real, "done.json").is_dir()


def test_many_that_want_it_at_once_get_one_copy(data: Data, cache: Path) -> None:
    uri = data("abc", 5_000_000)
    with ThreadPoolExecutor(6) as pool:
        folders = set(pool.map(lambda _: fetch_folder(uri, "done.json"), range(6)))
    assert len(folders) == 1
    assert len(list(cache.rglob("file"))) == 1


def test_who_wants_a_copy_too_holds_nobody_up(data: Data, cache: Path) -> None:
    real = open_store(data("abc", 10), read_only=True)
    entry = cache / "entry"
    entry.mkdir(parents=True)
    with ThreadPoolExecutor(1) as pool, (entry / "lock").open("w") as another:
        fcntl.flock(another, fcntl.LOCK_SH)  # As whoever has found nothing, and will use the copy that comes.
        copy = pool.submit(Cache({"EVERSTEP_CACHE": str(cache)}).fetch, entry / "abc", lambda: real, "done.json")
        assert wait((copy,), timeout=60).done
        assert copy.result().is_dir()


def fetched_by_another_process(uri: str) -> Path:
    """It has ended, so nobody uses the copy."""
    script = (
        "import sys; from everstep.runtime.store import fetch_folder; print(fetch_folder(sys.argv[1], 'done.json'))"
    )
    return Path(subprocess.run([sys.executable, "-c", script, uri], stdout=-1, text=True, check=True).stdout.strip())


def test_what_was_not_used_for_longest_makes_room_and_what_is_used_stays(
    data: Data, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_CACHE_BYTES", "2500000")
    old, newer, newest = (data(name, 1_000_000) for name in ("a", "b", "c"))
    first, second = fetched_by_another_process(old), fetched_by_another_process(newer)
    third = fetch_folder(newest, "done.json")
    assert [folder.is_dir() for folder in (first, second, third)] == [False, True, True]
    fetched_by_another_process(old)
    assert [folder.is_dir() for folder in (first, second, third)] == [True, False, True]
    fetch_folder(old, "done.json")
    with pytest.raises(StoreError, match="in use; raise EVERSTEP_CACHE_BYTES"):
        fetch_folder(newer, "done.json")
    with pytest.raises(StoreError, match=r"3 MB, EVERSTEP_CACHE_BYTES allows 2 MB|raise it"):
        fetch_folder(data("large", 3_000_000), "done.json")


def test_a_copy_that_was_made_here_makes_room_like_a_fetched_one(
    data: Data, s3: MinIO, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_CACHE_BYTES", "1500000")
    with data_folder.draft(s3.new_prefix(), "models/m", "done.json") as draft:
        (draft.folder / "weights").write_bytes(bytes(1_000_000))
        draft.commit({})
    assert len(list(cache.rglob("weights"))) == 1
    fetch_folder(data("a", 1_000_000), "done.json")
    assert not list(cache.rglob("weights"))


def test_what_a_living_step_makes_here_stays_and_what_an_ended_one_left_makes_room(
    data: Data, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_CACHE_BYTES", "1500000")
    shards, draft = (cache / "entry" / name for name in ("~shards-abc", "~draft-abc-0123abcd"))
    for folder in (shards, draft):
        folder.mkdir(parents=True)
        (folder / "file").write_bytes(bytes(500_000))
    with hold_lock(shards), hold_lock(draft):
        copy = fetched_by_another_process(data("a", 1_000_000))
        assert [folder.is_dir() for folder in (shards, draft, copy)] == [True, True, True]
    fetch_folder(data("b", 1_000_000), "done.json")
    assert [folder.is_dir() for folder in (shards, draft, copy)] == [False, False, False]


def test_shards_that_an_interrupted_step_has_just_left_stay_longer_than_an_older_copy(
    data: Data, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERSTEP_CACHE_BYTES", "2500000")
    copy = fetched_by_another_process(data("a", 1_000_000))
    shards = cache / "entry/~shards-abc"
    shards.mkdir(parents=True)
    (shards / "file").write_bytes(bytes(1_000_000))
    os.utime(copy.parent / "lock", (1000, 1000))
    os.utime(shards.parent, (10, 10))  # The step began before.
    fetch_folder(data("b", 1_000_000), "done.json")
    assert [folder.is_dir() for folder in (shards, copy)] == [True, False]


def test_a_size_that_is_no_number_and_a_folder_that_cannot_be_are_told(data: Data, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="EVERSTEP_CACHE_BYTES=much: give a whole number"):
        Cache({"EVERSTEP_CACHE_BYTES": "much"})
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="set EVERSTEP_CACHE"):
        Cache({"EVERSTEP_CACHE": str(tmp_path / "file")}).fetch(
            tmp_path / "file/x/y", lambda: open_store(data("a", 1)), "m"
        )


def test_who_has_no_folder_of_his_own_uses_the_temporary_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert Cache({"XDG_CACHE_HOME": str(tmp_path / "not/made/yet")}).root == tmp_path / "not/made/yet/everstep"
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    theirs = tmp_path / f"everstep-{os.getuid()}"
    assert Cache({"XDG_CACHE_HOME": "/"}).root == theirs / "cache"
    theirs.chmod(0o777)
    with pytest.raises(StoreError, match="only this user can open; remove it, or set EVERSTEP_CACHE"):
        Cache({"XDG_CACHE_HOME": "/"})


def test_room_for_a_copy_in_the_temporary_folder_is_not_taken_from_a_launch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    kept = hold_process_folder() / "stores/abc/shard"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(100))
    Cache({"XDG_CACHE_HOME": "/", "EVERSTEP_CACHE_BYTES": "100"}).make_room(100, "a copy")
    assert kept.exists()

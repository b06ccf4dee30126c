"""What only a directory can do wrong."""

import errno
import os
import subprocess
import sys
import threading
from mmap import mmap
from pathlib import Path

import pytest

from everstep.runtime.store import DirectoryStore, NoSuchKey, StoreError, require_space


def test_a_half_written_object_is_never_seen(tmp_path: Path) -> None:
    """A reader lists and reads all the time while a writer replaces a large object."""
    store = DirectoryStore(tmp_path)
    versions = [bytes([n]) * (1 << 20) for n in range(20)]
    store.put("big", versions[0])
    writers_done = threading.Event()

    def write() -> None:
        for version in versions:
            store.put("big", version)
        writers_done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not writers_done.is_set():
        assert store.get("big") in versions
        assert [entry.key for entry in store.list("")] == ["big"]
    writer.join()


def test_a_writer_that_is_killed_leaves_no_object(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from everstep.runtime.store import DirectoryStore\n"
        "os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)\n"
        "DirectoryStore(sys.argv[1]).put('key', b'x' * 100000)"
    )
    completed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    assert completed.returncode == -9
    store = DirectoryStore(tmp_path)
    assert list(store.list("")) == []
    assert [name for name in os.listdir(tmp_path) if name.startswith("~")]
    with pytest.raises(NoSuchKey):
        store.get("key")


@pytest.mark.parametrize("size", [4, 1 << 20])
def test_a_full_disk_is_told_with_path_and_mend_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = DirectoryStore(tmp_path)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoreError, match=r"a/key: cannot write: No space left.*another --store"):
        store.put("a/key", memoryview(mmap(-1, size)))
    assert os.listdir(tmp_path / "a") == []


def test_an_object_below_an_object_is_refused(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.put("a", b"1")
    with pytest.raises(StoreError, match="a/b"):
        store.put("a/b", b"2")


def test_a_store_where_a_file_is_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file"):
        DirectoryStore(tmp_path / "file")


def test_too_little_space_is_known_beforehand(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    require_space(store, 1, "the corpus")
    with pytest.raises(StoreError, match="the corpus needs"):
        require_space(store, 1 << 60, "the corpus")


KILLED = (
    "import os, signal, stat, sys; from everstep.runtime.store import DirectoryStore\n"
    "os.fsync = lambda fd: stat.S_ISREG(os.fstat(fd).st_mode) and os.kill(os.getpid(), signal.{0})\n"
    "DirectoryStore(sys.argv[1]).put('jobs/j/checkpoints/000001-000000001/x', b'x' * 100000)"
)


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    completed = subprocess.run([sys.executable, "-c", KILLED.format("SIGKILL"), str(tmp_path)], check=False, timeout=60)
    assert completed.returncode == -9
    store = DirectoryStore(tmp_path)
    with subprocess.Popen([sys.executable, "-c", KILLED.format("SIGSTOP"), str(tmp_path)]) as stopped:
        try:
            os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
            assert len(list(tmp_path.rglob("~*"))) == 2
            (dry,) = store.sweep("jobs/", dry_run=True)
            assert (f"~{stopped.pid}-" not in dry.key, dry.size) == (True, 100000)
            assert list(store.sweep("jobs/j/")) == [dry]
            (other,) = tmp_path.rglob("~*")
            assert other.name.startswith(f"~{stopped.pid}-")
        finally:
            stopped.kill()
    assert [entry.key[-1] for entry in store.sweep("")] == [other.name[-1]]
    os.utime(other.parent, (0, 0))
    assert [entry.key[-1] for entry in store.sweep("")] == ["/"]
    assert left_in(tmp_path) == []


def test_a_folder_may_be_made_for_an_object_that_is_being_written(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert list(store.sweep("")) == []
    os.utime(tmp_path / "a" / "b", (0, 0))
    assert [entry.key for entry in store.sweep("", dry_run=True)] == ["a/b/"]
    assert [entry.key for entry in store.sweep("")] == ["a/b/"]
    assert left_in(tmp_path) == []


def test_a_folder_goes_with_its_last_object_and_comes_back_with_the_next(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.put("a/b/c", b"1")
    store.put("a/d", b"1")
    store.delete("a/b/c")
    assert left_in(tmp_path) == ["a", "a/d"]
    store.delete("a/d")
    store.delete("a/d")
    assert left_in(tmp_path) == []
    store.put("a/b/c", b"1")
    assert store.get("a/b/c") == b"1"


def test_writers_and_sweepers_do_not_disturb_each_other(tmp_path: Path) -> None:
    store, writers_done = DirectoryStore(tmp_path), threading.Event()
    swept: list[str] = []

    def sweep() -> None:
        while not writers_done.is_set():
            swept.extend(entry.key for entry in store.sweep("") if not entry.key.endswith("/"))

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    try:
        for number in range(150):
            store.put(f"jobs/{number % 3}/x", b"data")
            assert store.create(f"jobs/{number % 3}/y", b"data")
            assert store.get(f"jobs/{number % 3}/x") == b"data"
            store.delete(f"jobs/{number % 3}/x")
            store.delete(f"jobs/{number % 3}/y")
    finally:
        writers_done.set()
        sweeper.join()


def test_what_others_keep_beside_the_objects_is_left(tmp_path: Path) -> None:
    (tmp_path / "~notes").write_text("mine")
    (tmp_path / "a~").mkdir()
    (tmp_path / "a~" / "file").write_text("mine")
    assert list(DirectoryStore(tmp_path).sweep("")) == []

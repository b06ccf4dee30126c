"""Locks on files and folders."""

import fcntl
import os
import threading
from pathlib import Path

import pytest

from everstep.runtime.system import file_lock
from everstep.runtime.system.file_lock import hold_lock, lock, open_locked

NEW = os.O_RDWR | os.O_CREAT


def test_a_folder_can_be_locked_by_one_at_a_time(tmp_path: Path) -> None:
    with hold_lock(tmp_path), pytest.raises(BlockingIOError):
        open_locked(tmp_path, wait_s=0)
    with hold_lock(tmp_path, wait_s=0):
        pass


def test_several_share_a_lock_and_keep_away_who_wants_it_alone(tmp_path: Path) -> None:
    with (
        hold_lock(tmp_path, is_shared=True),
        hold_lock(tmp_path, is_shared=True, wait_s=0),
        pytest.raises(BlockingIOError),
    ):
        open_locked(tmp_path, wait_s=0)


def test_a_holder_that_leaves_in_time_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = open_locked(tmp_path / "lock", NEW)
    monkeypatch.setattr(file_lock.time, "sleep", lambda _: os.close(holder))  # The first pause ends its lock.
    with hold_lock(tmp_path / "lock", wait_s=60):
        pass


def test_a_lock_without_a_deadline_is_waited_for(tmp_path: Path) -> None:
    is_locked = threading.Event()
    with hold_lock(tmp_path):
        waiter = threading.Thread(target=lambda: (os.close(open_locked(tmp_path)), is_locked.set()))
        waiter.start()
        assert not is_locked.is_set()
    assert is_locked.wait(60)
    waiter.join()


@pytest.mark.parametrize("wait_s", [None, 0])
def test_what_was_removed_while_it_was_opened_is_not_taken_for_what_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_s: float | None
) -> None:
    """Else two would hold "the" lock: of the folder that is gone, and of the one that followed."""
    folder, real, calls = tmp_path / "draft", fcntl.flock, []

    def replaced_first(descriptor: int, kind: int) -> None:
        calls.append(kind)
        if len(calls) == 1:
            folder.rename(tmp_path / "gone")
            folder.mkdir()
        real(descriptor, kind)

    folder.mkdir()
    monkeypatch.setattr(file_lock.fcntl, "flock", replaced_first)
    with hold_lock(folder, wait_s=wait_s) as descriptor:
        assert os.path.samestat(os.fstat(descriptor), folder.stat())
        assert len(calls) == 2
        with pytest.raises(BlockingIOError):
            open_locked(folder, wait_s=0)


def test_a_file_that_cannot_be_locked_leaves_no_descriptor(tmp_path: Path) -> None:
    def descriptors() -> set[str]:
        return set(os.listdir("/proc/self/fd"))

    with hold_lock(tmp_path):
        before = descriptors()
        for path in (tmp_path, tmp_path / "none"):
            with pytest.raises((BlockingIOError, FileNotFoundError)):
                open_locked(path, wait_s=0)
        assert descriptors() == before


def test_a_forked_child_keeps_the_lock_and_a_program_does_not_get_it(tmp_path: Path) -> None:
    descriptor = open_locked(tmp_path)
    copy = os.dup(descriptor)  # What a fork makes of it.
    os.close(descriptor)
    with pytest.raises(BlockingIOError):
        open_locked(tmp_path, wait_s=0)
    assert not os.get_inheritable(copy)
    os.close(copy)
    lock(again := os.open(tmp_path, os.O_RDONLY), wait_s=0)
    os.close(again)

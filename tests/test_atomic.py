"""Files that are there whole or not at all."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from everstep.runtime.system import atomic


def test_a_block_that_fails_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "known"
    atomic.replace(path, "old")

    def fails() -> None:
        with atomic.replacing(path, durable=True) as file:
            file.write(b"half of the n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_threads_that_replace_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    path = tmp_path / "known"
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: atomic.replace(path, str(n) * 1000), range(200)))
    assert len(set(path.read_text())) <= 3
    assert list(tmp_path.iterdir()) == [path]


def test_of_many_that_create_a_file_one_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    with ThreadPoolExecutor(8) as threads:
        creations = list(threads.map(lambda n: (atomic.create(path, str(n)), n), range(50)))
    ((_, winner),) = [creation for creation in creations if creation[0]]
    assert path.read_text() == str(winner)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]

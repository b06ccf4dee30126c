"""The folder that a user's processes share below the temporary one: private, or refused."""

import os
import tempfile
from pathlib import Path

import pytest

from everstep.runtime.system.own_folder import own_folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"everstep-{os.getuid()}"


def test_it_is_made_for_this_user_alone_and_kept(folder: Path) -> None:
    assert own_folder() == own_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o700


def test_one_that_others_may_enter_and_a_link_are_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o750)
    with pytest.raises(ValueError, match="only this user can open; remove it"):
        own_folder()
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="only this user can open; remove it"):
        own_folder()


def test_one_that_another_user_has_made_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    another = os.getuid() + 1
    theirs = folder.with_name(f"everstep-{another}")
    theirs.mkdir(mode=0o700)
    monkeypatch.setattr("os.getuid", lambda: another)
    with pytest.raises(ValueError, match=f"everstep-{another}: it must be a folder that only this user can open"):
        own_folder()

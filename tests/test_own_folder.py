"""The folder that a user's processes share below the temporary one: private, or refused."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from everstep.runtime.system.own_folder import hold_process_folder, own_folder, remove_abandoned_folders


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


HOLDS = """
import sys
from pathlib import Path
from everstep.runtime.system import own_folder
own_folder._PID_NAMESPACE = Path(sys.argv[1])
folder = own_folder.hold_process_folder()
(folder / "stores").mkdir()
print(folder, flush=True)
sys.stdin.read()
"""


def test_the_folder_of_another_container_goes_when_all_that_held_it_have_ended(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "namespace").touch()
    own = hold_process_folder()
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path / "namespace")],
        env={**os.environ, "TMPDIR": str(tmp_path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout
        theirs = Path(process.stdout.readline().strip())
        assert theirs.parent == folder
        remove_abandoned_folders()
        assert (theirs / "stores").is_dir()
        process.kill()
    remove_abandoned_folders()
    assert sorted(folder.iterdir()) == [own, own.with_name(f"{own.name}.lock")]

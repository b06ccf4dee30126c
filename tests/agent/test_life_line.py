"""A process's end is heard of while the kernel still frees its memory."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from everstep.runtime.system import life_line


def fork(path: Path, code: int = 0) -> int:
    """A process that holds a line, and a child of its own, and is killed or exits with this code."""
    if (pid := os.fork()) == 0:
        life_line.hold(path)
        if os.fork() == 0:
            os._exit(0)
        if code:
            os._exit(code)
        signal.pause()
    while not code and not path.exists():
        time.sleep(0.001)
    return pid


@pytest.mark.parametrize("code", [0, 3])
def test_the_end_is_heard_of_with_its_exit_code_before_the_parent_has_waited(tmp_path: Path, code: int) -> None:
    line = tmp_path / "line"
    pid = fork(line, code)
    codes = list[int | None]()

    def wait() -> None:
        while not line.exists():
            time.sleep(0.001)
        codes.append(life_line.wait_for_end(line, pid))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    if not code:
        thread.join(0.1)
        assert thread.is_alive()
        os.kill(pid, signal.SIGKILL)
    thread.join(30)
    assert codes == [code or -signal.SIGKILL]
    assert list(tmp_path.iterdir()) == []
    os.waitpid(pid, 0)


def test_a_process_without_a_line_is_told_of() -> None:
    with pytest.raises(FileNotFoundError):
        life_line.wait_for_end(Path("/nowhere"), 1)

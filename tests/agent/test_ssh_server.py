"""`python -m everstep.ssh_server` says in one line why it cannot serve; a login's processes end with it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.runtime.agent.frameworks import ssh_session
from tests.harness import wait_until


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "EVERSTEP_SSH is not set; run it in a role of a job spec with frameworkType: horovod"),
        ({"EVERSTEP_SSH": "/nowhere"}, "there is no sshd; install openssh-server in the image"),
    ],
)
def test_what_is_missing_is_said_in_one_line(variables: dict[str, str], says: str, tmp_path: Path) -> None:
    code = (
        "import sys, everstep.ssh_server as server; server._FOLDERS = (); sys.exit(server.main())"  # No sshd anywhere.
    )
    environment = {"PATH": str(tmp_path), **variables}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (2, f"everstep.ssh_server: {says}\n")


def test_all_that_a_login_runs_ends_with_the_process_of_the_server(tmp_path: Path) -> None:
    """The process of a login is a shell by the name of sshd here."""
    server = tmp_path / "sshd"
    server.symlink_to("/bin/sh")
    command = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    session = [sys.executable, "-I", "-S", ssh_session.__file__]
    login = subprocess.Popen(
        [str(server), "-c", '"$@" & wait', "sshd", "setsid", *session],
        env={**os.environ, "SSH_ORIGINAL_COMMAND": command},
    )
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the login's process"))
    login.send_signal(signal.SIGKILL)
    login.wait()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in _state(pid), "its end")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"

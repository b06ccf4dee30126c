"""`python -m everstep.ssh_server`: a server of ssh for this machine, with the keys of the job (`EVERSTEP_SSH`).

For launchers that start their processes by ssh, such as horovodrun. It accepts the key of the job alone, for the user
who runs it. A login's processes end with its connection. Nodes of one machine take turns: when the one that serves
ends, another one does. Run it under `everstep.keep_running`. The image needs openssh-server, and its user a name and
a shell.
"""

import errno
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from everstep.runtime.agent.frameworks.ssh import PORT
from everstep.runtime.exit_codes import ExitCode

_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Where sshd is; often not in the PATH of who is not root."""
_TURN_S = 1.0


class _CannotServeError(Exception):
    """Says why there can be no server here."""


def main() -> int:
    """Serve until sshd ends or a signal comes; returns the exit code."""
    try:
        command = _command()
    except _CannotServeError as error:
        print(f"everstep.ssh_server: {error}", file=sys.stderr)
        return ExitCode.BAD_INPUT
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with socket.socket(socket.AF_UNIX) as turn:
        _wait_for_turn(turn)
        server = subprocess.Popen(command)
        try:
            return server.wait()
        finally:
            server.terminate()


def _command() -> list[str]:
    """Raises _CannotServeError."""
    folder = os.environ.get("EVERSTEP_SSH", "")
    if not folder:
        raise _CannotServeError("EVERSTEP_SSH is not set; run it in a role of a job spec with frameworkType: horovod")
    program = shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), *_FOLDERS]))
    if program is None:
        raise _CannotServeError("there is no sshd; install openssh-server in the image")
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        raise _CannotServeError(f"user {os.getuid()} has no name; add it to /etc/passwd of the image") from None
    if Path(user.pw_shell).name in ("nologin", "false"):
        raise _CannotServeError(f"user {user.pw_name} has no shell; give it one in /etc/passwd of the image")
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)  # sshd of root refuses to start without it.
    return [str(Path(program).resolve()), "-D", "-e", "-f", f"{folder}/sshd_config"]


def _wait_for_turn(turn: socket.socket) -> None:
    """Until no other node of this machine serves: until this socket has the name, which goes with its process."""
    waits = False
    while True:
        try:
            turn.bind(f"\0everstep.ssh_server {PORT}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return
        if not waits:
            print(f"everstep.ssh_server: another node of this machine serves port {PORT}", file=sys.stderr)
            waits = True
        time.sleep(_TURN_S)


if __name__ == "__main__":
    sys.exit(main())

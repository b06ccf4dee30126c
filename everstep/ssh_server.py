"""`python -m everstep.ssh_server`: a server of ssh for this machine, with the keys of the job (`EVERSTEP_SSH`).

For launchers that start their processes by ssh, such as horovodrun. It accepts the key of the job alone, for the user
who runs it. A login's processes end with its connection. Nodes of one machine take turns: when the one that serves
ends, another one does. Run it under `everstep.keep_running`. The image needs openssh-server, and its user a name and
a shell.
"""

import ctypes
import errno
import hashlib
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
_RUN = Path("/run/sshd")
"""sshd of root refuses to start without it."""
_SHADOW = Path("/etc/shadow")
_ROOT_NEEDS = {"SETGID": 6, "SETUID": 7, "SYS_CHROOT": 18}
"""Capabilities by their numbers: without them sshd of root ends every connection."""
_TURN_S = 1.0
_PORT_TRIES = 10
"""The server of a node that was killed may hold the port for a moment."""
_PR_SET_PDEATHSIG = 1


class _CannotServeError(Exception):
    """Says why there can be no server here."""

    def __init__(self, reason: str, code: int = ExitCode.BAD_INPUT) -> None:
        super().__init__(reason)
        self.code = code


def main() -> int:
    """Serve until sshd ends or a signal comes; returns the exit code."""
    try:
        command = _command()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with socket.socket(socket.AF_UNIX) as turn:
            _wait_for_turn(turn)
            _require_port()
            server = subprocess.Popen(command, preexec_fn=_end_with_parent)
            try:
                return server.wait()
            finally:
                server.terminate()
    except _CannotServeError as error:
        print(f"everstep.ssh_server: {error}", file=sys.stderr)
        return error.code


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
    shell = user.pw_shell or "/bin/sh"
    if Path(shell).name in ("nologin", "false") or not os.access(shell, os.X_OK):
        raise _CannotServeError(f"user {user.pw_name} has no shell; give it one in /etc/passwd of the image")
    if os.getuid() == 0:
        _require_root(user.pw_name)
    return [str(Path(program).resolve()), "-D", "-e", "-f", f"{folder}/sshd_config"]


def _require_root(name: str) -> None:
    """What sshd of root needs besides. Raises _CannotServeError."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    if lacking := [need for need, bit in _ROOT_NEEDS.items() if not int(status["CapEff"], 16) >> bit & 1]:
        raise _CannotServeError(
            f"root lacks {', '.join(lacking)}; add these capabilities in the container's securityContext, or run as a "
            "user with a name and a shell (runAsUser)"
        )
    if _password_of(name).startswith("!"):
        raise _CannotServeError(f"user {name} is locked, so sshd refuses it; in the image: usermod -p '*' {name}")
    try:
        _RUN.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise _CannotServeError(
            f"{_RUN} cannot be made ({error.strerror}), which sshd of root needs; make it in the image, or mount an "
            "emptyDir there"
        ) from None


def _password_of(name: str) -> str:
    """As /etc/shadow has it; empty if it has none, or root may not read it, as in some images: then sshd cannot,
    either, and lets the user in."""
    try:
        lines = _SHADOW.read_text().splitlines()
    except OSError:
        lines = []
    return next((line.split(":")[1] for line in lines if line.startswith(f"{name}:")), "")


def _wait_for_turn(turn: socket.socket) -> None:
    """Until no other node of the job serves on this machine: until this socket has the name, which goes with its
    process."""
    job = hashlib.sha256(Path(os.environ["EVERSTEP_SSH"], "known_hosts").read_bytes()).hexdigest()
    waits = False
    while not _bind(turn, f"\0everstep.ssh_server {job}"):
        if not waits:
            print(f"everstep.ssh_server: another node of this machine serves port {PORT}", file=sys.stderr)
            waits = True
        time.sleep(_TURN_S)


def _require_port() -> None:
    """Raises _CannotServeError if somebody else has it, and keeps it."""
    for _ in range(_PORT_TRIES):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As sshd does.
            if _bind(probe, ("", PORT)):
                return
        time.sleep(_TURN_S)
    raise _CannotServeError(
        f"another program has port {PORT} of this machine, such as the server of another job; "
        "end it, or run only one such job on a machine (without hostNetwork each pod has its own ports)",
        ExitCode.FAILED,
    )


def _bind(to_bind: socket.socket, address: str | tuple[str, int]) -> bool:
    """Whether the address was free."""
    try:
        to_bind.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    return True


def _end_with_parent() -> None:
    """In sshd, before it begins: it must not keep the port when this process is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())

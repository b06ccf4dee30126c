"""Ssh keys of a job's own: every node derives the same ones from the job's token, so that none has to be sent.

A launcher logs in with `id_ed25519`; a host's server (`python -m everstep.ssh_server`) accepts that key alone, for the
user that runs the node, and shows a host key that the launcher knows. The folder's own `ssh`, first in a launcher's
PATH, checks it even for launchers that ask ssh not to, as horovodrun does (horovod/runner/util/remote.py).
"""

import os
import pwd
import shlex
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from everstep.runtime.net.tls import derive_bytes

PORT = 2222
"""Where the hosts' servers listen: one number for all."""
_ALIVE_S = 15
"""A connection whose other side does not answer three times, so far apart, is over."""
_AT_ONCE = 200
"""Logins that may begin at the same time, one for each slot of a host. By itself sshd refuses some beyond ten."""
_NO_CLIENT = "everstep: there is no ssh to start processes on other hosts; install openssh-client in the image"


def write_keys(folder: Path, token: str, job: str) -> None:
    """Write keys and configuration into a new private folder, whole or not at all. Raises OSError."""
    if os.statvfs(folder.parent).f_flag & os.ST_NOEXEC:
        raise OSError(
            f"{folder.parent} is mounted noexec, and Horovod runs scripts from there; "
            "in docker run give --tmpfs /dev/shm:exec, in a pod mount an emptyDir of medium Memory there"
        )
    fresh = folder.with_suffix(".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    _write_all(fresh, folder, token, job)
    fresh.rename(folder)


def _write_all(fresh: Path, folder: Path, token: str, job: str) -> None:
    """Write the files into `fresh`, which becomes `folder`."""
    secret = derive_bytes(token, "ssh", job, 64)
    client, host = Ed25519PrivateKey.from_private_bytes(secret[:32]), Ed25519PrivateKey.from_private_bytes(secret[32:])
    _write(fresh / "id_ed25519", _private(client))
    _write(fresh / "ssh_host_ed25519_key", _private(host))
    _write(fresh / "authorized_keys", _public(client))
    _write(fresh / "known_hosts", b"* " + _public(host))
    session, connect = _own_program("ssh_session.py"), _own_program("ssh_connection.py")
    server = (
        f"Port {PORT}\nHostKey {folder}/ssh_host_ed25519_key\nAuthorizedKeysFile {folder}/authorized_keys\n"
        "AuthenticationMethods publickey\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"DisableForwarding yes\nPermitUserRC no\nPidFile none\nStrictModes no\nForceCommand exec {session}\n"
        f"ClientAliveInterval {_ALIVE_S}\nMaxStartups {_AT_ONCE}\n"
    )
    with suppress(KeyError):  # Without a name, sshd lets nobody in.
        server += f"AllowUsers {pwd.getpwuid(os.getuid()).pw_name}\n"
    client_side = (
        f"Host *\n  Port {PORT}\n  IdentityFile {folder}/id_ed25519\n  IdentitiesOnly yes\n  BatchMode yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile none\n"
        f"  ServerAliveInterval {_ALIVE_S}\n  ProxyCommand {connect} %h %p\n  ProxyUseFdpass yes\n"
    )
    _write(fresh / "sshd_config", server.encode())
    _write(fresh / "config", client_side.encode())
    client_program = shutil.which("ssh")
    command = [client_program or "", "-F", str(folder / "config"), "-o", "StrictHostKeyChecking=yes"]
    line = f'exec {shlex.join(command)} "$@"' if client_program else f"echo {shlex.quote(_NO_CLIENT)} >&2; exit 127"
    _write(fresh / "ssh", f"#!/bin/sh\n{line}\n".encode(), 0o700)


def _own_program(name: str) -> str:
    """The command of a program beside this one."""
    return shlex.join([sys.executable, "-I", "-S", str(Path(__file__).with_name(name))])


def _private(key: Ed25519PrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _public(key: Ed25519PrivateKey) -> bytes:
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(encoding, form) + b"\n"


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)

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


def write_keys(folder: Path, token: str, job: str) -> None:
    """Write keys and configuration into a new private folder."""
    folder.mkdir(mode=0o700)
    secret = derive_bytes(token, "ssh", job, 64)
    client, host = Ed25519PrivateKey.from_private_bytes(secret[:32]), Ed25519PrivateKey.from_private_bytes(secret[32:])
    _write(folder / "id_ed25519", _private(client))
    _write(folder / "ssh_host_ed25519_key", _private(host))
    _write(folder / "authorized_keys", _public(client))
    _write(folder / "known_hosts", b"* " + _public(host))
    session = shlex.join([sys.executable, "-I", "-S", str(Path(__file__).with_name("ssh_session.py"))])
    server = (
        f"Port {PORT}\nHostKey {folder}/ssh_host_ed25519_key\nAuthorizedKeysFile {folder}/authorized_keys\n"
        "AuthenticationMethods publickey\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"DisableForwarding yes\nPidFile none\nStrictModes no\nForceCommand exec {session}\n"
        f"ClientAliveInterval {_ALIVE_S}\n"
    )
    with suppress(KeyError):  # Without a name, sshd lets nobody in.
        server += f"AllowUsers {pwd.getpwuid(os.getuid()).pw_name}\n"
    client_side = (
        f"Host *\n  Port {PORT}\n  IdentityFile {folder}/id_ed25519\n  IdentitiesOnly yes\n  BatchMode yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile none\n"
        f"  ServerAliveInterval {_ALIVE_S}\n"
    )
    _write(folder / "sshd_config", server.encode())
    _write(folder / "config", client_side.encode())
    command = [shutil.which("ssh") or "/usr/bin/ssh", "-F", str(folder / "config"), "-o", "StrictHostKeyChecking=yes"]
    _write(folder / "ssh", f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'.encode(), 0o700)


def _private(key: Ed25519PrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _public(key: Ed25519PrivateKey) -> bytes:
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(encoding, form) + b"\n"


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)

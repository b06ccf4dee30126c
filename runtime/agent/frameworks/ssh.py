"""Ssh keys of a job's own: every node derives the same ones from the job's token, so that none has to be sent.

A launcher logs in with `id_ed25519`; a host's server (`sshd -D -f $EVERSTEP_SSH/sshd_config`) accepts that key alone
and shows a host key that the launcher knows.
"""

import os
from pathlib import Path

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

PORT = 2222
"""Where the hosts' servers listen: one number for all, as horovodrun takes one --ssh-port."""


def write_keys(folder: Path, token: str, job: str) -> None:
    """Write keys and configuration into a new private folder."""
    folder.mkdir(mode=0o700)
    client, host = _key(token, job, "client"), _key(token, job, "host")
    _write(folder / "id_ed25519", _private(client))
    _write(folder / "ssh_host_ed25519_key", _private(host))
    _write(folder / "authorized_keys", _public(client))
    _write(folder / "known_hosts", b"* " + _public(host))
    server = (
        f"Port {PORT}\nHostKey {folder}/ssh_host_ed25519_key\nAuthorizedKeysFile {folder}/authorized_keys\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nPidFile {folder}/sshd.pid\nStrictModes no\n"
    )
    client_side = (
        f"Host *\n  Port {PORT}\n  IdentityFile {folder}/id_ed25519\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    _write(folder / "sshd_config", server.encode())
    _write(folder / "config", client_side.encode())


def _key(token: str, job: str, use: str) -> Ed25519PrivateKey:
    derived = HKDF(hashes.SHA256(), 32, salt=None, info=f"everstep ssh {use} {job}".encode())
    return Ed25519PrivateKey.from_private_bytes(derived.derive(token.encode()))


def _private(key: Ed25519PrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _public(key: Ed25519PrivateKey) -> bytes:
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_key().public_bytes(encoding, form) + b"\n"


def _write(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)

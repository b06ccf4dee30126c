"""The bearer token of a job; every process of the job on this machine reads it from one file."""

import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

from everstep.runtime.system import atomic


def shared_token(path: Path) -> str:
    """The token in `path`, readable by its owner only; created on first use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.create(path, secrets.token_urlsafe(32))
    return path.read_text()


class Bearer:
    """Checks the token of a request, in the same time for a wrong token as for the right one."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}".encode()

    def is_shown(self, headers: Mapping[str, str]) -> bool:
        """Is the token in the Authorization header?"""
        header = headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(header, self._wanted)

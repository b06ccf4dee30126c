"""The bearer token of a job, which every process of it on this machine reads from one file."""

import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

from everstep.runtime.system import atomic


def shared_token(path: Path) -> str:
    """The token in `path`, which only its owner reads; made by whoever needs it first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.create(path, secrets.token_urlsafe(32))
    return path.read_text()


class Bearer:
    """What a request must show. The comparison takes as long for a wrong token as for the right one."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}".encode()

    def is_shown(self, headers: Mapping[str, str]) -> bool:
        """Is the token in the Authorization header?"""
        given = headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(given, self._wanted)

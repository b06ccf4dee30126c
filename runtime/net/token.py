"""The bearer token of a job: a file that its processes on this machine read, or a Secret of a cluster."""

import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.runtime.system import atomic

TOKEN_VARIABLE = "EVERSTEP_JOB_TOKEN"
"""The variable with a job's token: for its agents, not for what they start."""
TOKEN_KEY = "token"
"""Of the Secret."""


def shared_token(path: Path) -> str:
    """The token in `path`, readable by its owner only; created on first use."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.create(path, secrets.token_urlsafe(32))
    return path.read_text()


def token_secret(job: str) -> str:
    """Name of the Secret with the job's token. A step's template names it too: no step has to read Secrets."""
    return f"everstep-{job}"


def token_reference(job: str, *, optional: bool = False) -> dict[str, Any]:
    """The container's variable with the job's token. `optional`: unset until somebody has made the Secret."""
    place = {"name": token_secret(job), "key": TOKEN_KEY, **({"optional": True} if optional else {})}
    return {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": place}}


class Bearer:
    """Checks the token of a request, in the same time for a wrong token as for the right one."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}".encode()

    def is_shown(self, headers: Mapping[str, str]) -> bool:
        """Is the token in the Authorization header?"""
        header = headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        return hmac.compare_digest(header, self._wanted)

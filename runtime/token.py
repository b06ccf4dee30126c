"""The bearer token of a job, which every process of it on this machine reads from one file."""

import secrets
from pathlib import Path

from runtime import atomic


def shared_token(path: Path) -> str:
    """The token in `path`, which only its owner reads; made by whoever needs it first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.create(path, secrets.token_urlsafe(32))
    return path.read_text()

"""The job's bearer token: a file that only its owner reads, made once, used again by each retry of the step."""

import os
import secrets
from pathlib import Path


def job_token(folder: Path, job: str) -> str:
    """The token in `folder`/jobs/`job`.token (0600); made when there is none."""
    path = folder / "jobs" / f"{job}.token"
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w") as stream:
        stream.write(secrets.token_urlsafe(32))
    try:
        os.link(fresh, path)
    except FileExistsError:
        pass  # an earlier try of the step made it
    finally:
        fresh.unlink()
    return path.read_text()

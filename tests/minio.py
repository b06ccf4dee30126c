"""A real MinIO for tests, run on a free port."""

import http.client
import os
import secrets
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.golang import built
from tests.harness import wait_until

BUCKET = "everstep-tests"


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
    """The built server. Raises NoGoError."""
    return built("minio", ["github.com/minio/minio"]) / "minio"


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

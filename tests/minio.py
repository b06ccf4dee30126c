"""A real MinIO for tests, run on a free port."""

import http.client
import os
import random
import secrets
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from minio import Minio

from everstep.runtime.agent.ports import free_port
from tests.golang import build_program
from tests.harness import wait_until

BUCKET = "everstep-tests"
_TAKEN = "port is already in use"
"""What a server says whose port somebody took before it could."""


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
    return build_program("minio")


@contextmanager
def running(folder: Path, certificates: Path | None = None, region: str = "") -> Iterator[MinIO]:
    """A server with its data in `folder`, until the block ends; https with the certificates in that folder."""
    (folder / "data" / BUCKET).mkdir(parents=True)
    scheme, chance = "https" if certificates else "http", random.Random()
    log_text = _TAKEN
    while _TAKEN in log_text:
        endpoint = f"{scheme}://127.0.0.1:{free_port(chance)}"
        server = MinIO(endpoint, f"user{secrets.token_hex(4)}", secrets.token_hex(16))
        with _minio_process(server, folder, certificates or folder / "certs", region) as process:
            if _wait_until_up(process, server, region):
                yield server
                return
        log_text = (folder / "minio.log").read_text()
    raise RuntimeError(f"MinIO ended: {log_text[-1000:]}")


@contextmanager
def _minio_process(server: MinIO, folder: Path, certificates: Path, region: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [str(binary()), "server", "--quiet", "--address", urlsplit(server.endpoint).netloc, str(folder / "data")]
    command += ["--certs-dir", str(certificates)]
    environment = {
        **os.environ,
        "MINIO_ROOT_USER": server.access_key,
        "MINIO_ROOT_PASSWORD": server.secret_key,
        "MINIO_BROWSER": "off",
        "MINIO_UPDATE": "off",
        "MINIO_SITE_REGION": region,
        "HOME": str(folder),
    }
    with server_process(command, environment, folder / "minio.log") as process:
        yield process


@contextmanager
def server_process(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A server that writes into that log, until the block ends."""
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()


def _wait_until_up(process: subprocess.Popen[bytes], server: MinIO, region: str) -> bool:
    """Wait for the server; False when its process has ended instead."""
    wait_until(lambda: process.poll() is not None or _serves(server, region), "MinIO", 60)
    return process.poll() is None


def _serves(server: MinIO, region: str) -> bool:
    """Is it this very server, and does it know its users?

    Only this one knows what its own signed request asks for: any other server refuses it. It serves some time before
    it has read its users; until then it answers 503 to names that it does not know.
    """
    place = urlsplit(server.endpoint)
    signer = Minio(
        place.netloc, server.access_key, server.secret_key, secure=place.scheme == "https", region=region or "us-east-1"
    )
    own = urlsplit(signer.presigned_get_object(BUCKET, "nothing"))
    nobodys = f"/{BUCKET}/?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=nobody"
    with suppress(OSError, http.client.HTTPException):
        if _status(server, f"{own.path}?{own.query}") == http.client.NOT_FOUND:
            return _status(server, nobodys) != http.client.SERVICE_UNAVAILABLE
    return False


def _status(server: MinIO, path: str) -> int:
    place = urlsplit(server.endpoint)
    if place.scheme == "https":
        connection = http.client.HTTPSConnection(place.netloc, timeout=5, context=ssl._create_unverified_context())
    else:
        connection = http.client.HTTPConnection(place.netloc, timeout=5)
    with closing(connection):
        connection.request("GET", path)
        return connection.getresponse().status

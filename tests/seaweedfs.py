"""A real SeaweedFS for tests, run on free ports: the second S3 server that the store's promises are tried on."""

import http.client
import json
import os
import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import urllib3
from minio import Minio
from minio.error import MinioException

from everstep.runtime.agent.ports import free_port
from tests.golang import build_programs
from tests.harness import wait_until
from tests.minio import BUCKET, MinIO, server_process

VARIABLE = "EVERSTEP_TEST_S3"
"""seaweedfs: the tests of S3 run on it instead of MinIO."""
_PORTS = (
    "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port", "filer.port.grpc", "s3.port",
    "s3.port.grpc", "s3.port.iceberg", "s3.port.lance",
)  # fmt: skip
_OFF = {"s3.port.iceberg", "s3.port.lance"}
_VOLUME_MB = 256


def is_asked(environment: "os._Environ[str]" = os.environ) -> bool:
    """Shall the tests of S3 run on it?"""
    return environment.get(VARIABLE) == "seaweedfs"


def binary() -> Path:
    """The built server. Raises NoGoError. The first build takes some 20 minutes of two busy cores."""
    return build_programs("seaweedfs", ["github.com/seaweedfs/seaweedfs/weed"]) / "weed"


@contextmanager
def running(folder: Path) -> Iterator[MinIO]:
    """A server with its data in `folder` and one bucket, until the block ends."""
    (folder / "data").mkdir(parents=True)
    chance, key, secret = random.Random(), f"user{secrets.token_hex(4)}", secrets.token_hex(16)
    who = {"name": "tests", "credentials": [{"accessKey": key, "secretKey": secret}]}
    who["actions"] = ["Admin", "Read", "Write", "List", "Tagging"]
    (folder / "s3.json").write_text(json.dumps({"identities": [who]}))
    ports = {name: 0 if name in _OFF else free_port(chance) for name in _PORTS}
    server = MinIO(f"http://127.0.0.1:{ports['s3.port']}", key, secret)
    flags = {"dir": folder / "data", "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "s3.config": folder / "s3.json"}
    flags |= {"master.volumeSizeLimitMB": _VOLUME_MB, "volume.max": 100, **ports}
    flags["s3.autoCreateBucket"] = "false"  # As MinIO and S3: a bucket that nobody made is an error.
    command = [str(binary()), "-logtostderr=true", "server", "-filer", "-s3"]
    command += [f"-{name}={value}" for name, value in flags.items()]
    log = folder / "seaweedfs.log"
    with server_process(command, {**os.environ, "HOME": str(folder)}, log) as process:
        wait_until(lambda: process.poll() is not None or _serves(server), "SeaweedFS", 120, 0.2)
        if process.poll() is not None:
            raise RuntimeError(f"SeaweedFS ended: {log.read_text()[-1000:]}")
        yield server


def _serves(server: MinIO) -> bool:
    """Does it take the bucket, and an object in it? Its parts begin one after the other."""
    pool = urllib3.PoolManager(timeout=5, retries=False)
    place = urlsplit(server.endpoint).netloc
    client = Minio(place, server.access_key, server.secret_key, secure=False, region="us-east-1", http_client=pool)
    with suppress(MinioException, urllib3.exceptions.HTTPError, OSError, http.client.HTTPException):
        if not client.bucket_exists(BUCKET):
            client.make_bucket(BUCKET)
        client.presigned_get_object(BUCKET, "probe")
        return client.bucket_exists(BUCKET)
    return False

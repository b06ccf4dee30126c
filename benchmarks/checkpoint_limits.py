"""What a checkpoint's speed is measured against: a plain upload to the same store, and TCP on this host."""

import http.client
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from minio import Minio

from everstep.runtime.protocol.worker_link import Fetched
from everstep.runtime.store import is_s3_uri, open_store
from everstep.runtime.store.s3_settings import settings_of

PART = 64 << 20
PARALLEL = 4
"""Parallel requests of a plain upload."""


@contextmanager
def plain_upload(uri: str, rank: int, size: int) -> Iterator[Callable[[], bool]]:
    """Upload as many bytes to the same store as simply as possible: a file or a PUT for each 64 MiB, four at once."""
    part = memoryview(os.urandom(1 << 20) * (PART >> 20))
    names = [f"plain-{rank}-{number}" for number in range(-(-size // PART))]
    if not is_s3_uri(uri):
        folder = Path(uri, "plain")
        folder.mkdir(exist_ok=True)

        def put(name: str) -> bool:
            with (folder / name).open("wb", buffering=0) as file:
                file.write(part)
                os.fsync(file.fileno())
            return True
    else:
        settings = settings_of(uri, os.environ)
        client = Minio(
            settings.host, settings.access_key, settings.secret_key, secure=settings.secure, region=settings.region
        )

        def put(name: str) -> bool:
            place = urlsplit(client.presigned_put_object(settings.bucket, f"{settings.prefix}plain/{name}"))
            with closing(http.client.HTTPConnection(place.netloc)) as connection:
                connection.request("PUT", f"{place.path}?{place.query}", part)
                return connection.getresponse().status == http.client.OK

    with ThreadPoolExecutor(PARALLEL) as pool:
        yield lambda: all(pool.map(put, names))
    store = open_store(uri)
    for name in names:
        store.delete(f"plain/{name}")


SENDER = """
import mmap, socket, sys
path, offset, size, port = sys.argv[1], *map(int, sys.argv[2:])
with open(path, "r+b") as file, memoryview(mmap.mmap(file.fileno(), 0)) as whole:
    data = whole[offset : offset + size]
    assert bytes(data[::4096])
    with socket.create_connection(("127.0.0.1", port)) as out:
        out.recv(1)
        out.sendall(data)
"""
"""The sender maps what it sends. After a fork, our own pages would be copied or faulted in again when we write."""


@contextmanager
def loopback(place: Fetched, buffer: memoryview) -> Iterator[Callable[[], None]]:
    """A child sends as many bytes through TCP on this host; this process reads them into the buffer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        arguments = (place.path, str(place.offset), str(len(buffer)), str(server.getsockname()[1]))
        with subprocess.Popen([sys.executable, "-c", SENDER, *arguments]) as child:
            connection, _ = server.accept()

            def read() -> None:
                connection.send(b"!")
                received = 0
                while received < len(buffer):
                    received += connection.recv_into(buffer[received : received + (4 << 20)])

            with connection:
                yield read
        assert not child.returncode

"""A store under a prefix of an S3 bucket: MinIO, or any other that honours `If-None-Match` on a PUT.

Large objects are uploaded in parallel parts straight from their memory. Nothing is copied, so memory use is bounded by
the connections' buffers. A killed writer may leave a multi-part upload, which no listing of objects shows. `sweep`
aborts old ones, as MinIO itself does, too.
"""

import mmap
import secrets
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from everstep.runtime.store.pace import Pace
from everstep.runtime.store.protocol import Entry, NoSuchKey, StoreError, TooShort, check_key, check_prefix
from everstep.runtime.store.s3_requests import Answer, Requests, StreamedBody
from everstep.runtime.store.s3_settings import Settings

PART_BYTES = 16 << 20
"""Bytes of a part, and of a range of a parallel read. A single request carries up to twice as much."""
MAX_PARTS = 10_000
"""S3's limit (Amazon S3 user guide, "Multipart upload limits"); larger objects get larger parts."""
MAX_PARALLEL = 4
"""Parts or ranges of one object in flight at once."""
READ_ATTEMPTS = 3
"""Attempts to read an object that is being replaced meanwhile."""
PROBE = "~probe"
"""An object that proves at each opening that a second create fails. No key can begin with `~`."""
ABANDONED_S = 86_400.0
"""An upload initiated this long ago has no living writer. MinIO aborts such uploads by itself, too."""
_NONCE_HEADER = "x-amz-meta-everstep-writer"
_CHUNK_BYTES = 1 << 20

T = TypeVar("T")


class S3Objects:
    """The objects of a bucket, whatever their names, for reading."""

    def __init__(self, settings: Settings) -> None:
        self.requests = Requests(settings)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """Like `Store.get`."""
        if length == 0:
            self.requests.send("HEAD", name)
            return b""
        if start == 0 and length is None:
            return self.requests.send("GET", name).data
        last = "" if length is None else start + length - 1
        answer = self.requests.send("GET", name, headers={"Range": f"bytes={start}-{last}"}, also_ok=(416,))
        return answer.data if answer.status == 206 else b""

    def list(self, prefix: str) -> Iterator[Entry]:
        """Like `Store.list`, without folder markers and probes."""
        for entry in self.requests.list(prefix):
            if entry.key.rpartition("/")[2] not in ("", PROBE):
                yield entry


class S3Store:
    """The Store at `settings`; `pace` limits uploads.

    Unless `read_only`, opening proves that `create` is atomic there. Raises StoreError if the store ignores
    If-None-Match, cannot be reached, or refuses the credentials.
    """

    def __init__(self, settings: Settings, pace: Pace, read_only: bool = False) -> None:
        self.uri = settings.uri
        self._base, self._pace = settings.prefix, pace
        self._objects = S3Objects(settings)
        self._requests = self._objects.requests
        if not read_only:
            self._require_atomic_create()

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self._objects.get(self._object_name(key), start, length)

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        name = self._object_name(key)
        with buffer.cast("B") as view:
            for _ in range(READ_ATTEMPTS):
                head = self._head(name)
                short = start + len(view) - int(head.headers["content-length"])
                if short > 0:
                    raise TooShort(f"{self.uri}/{key}: ends {short} bytes too early")
                if self._read_ranges(name, start, view, head.headers["etag"]):
                    return
        raise StoreError(f"{self.uri}/{key}: was replaced during each of {READ_ATTEMPTS} attempts to read it")

    def _head(self, name: str) -> Answer:
        try:
            return self._requests.send("HEAD", name)
        except NoSuchKey:  # Or no such bucket: an answer to HEAD has no body that says which.
            self._objects.get(name, 0, 1)
            raise

    def put(self, key: str, source: bytes | memoryview | Path) -> None:
        name = self._object_name(key)
        with _open_source(source) as data:
            if len(data) <= 2 * PART_BYTES:
                self._send_paced("PUT", name, data)
            else:
                self._put_in_parts(name, data)

    def create(self, key: str, data: bytes) -> bool:
        return self._create(self._object_name(key), data)

    def list(self, prefix: str) -> Iterator[Entry]:
        check_prefix(prefix)
        for entry in self._objects.list(self._base + prefix):
            key = entry.key.removeprefix(self._base)
            with suppress(ValueError):  # An invalid key was not written by a Store.
                check_key(key)
                yield entry._replace(key=key)

    def delete(self, key: str) -> None:
        with suppress(NoSuchKey):
            self._requests.send("DELETE", self._object_name(key))

    def sweep(self, prefix: str, dry_run: bool = False) -> Iterator[Entry]:
        check_prefix(prefix)
        below = self._base + prefix
        uploads = [*self._requests.uploads(below)]
        for upload in uploads or [upload for upload in self._requests.uploads("") if upload.name.startswith(below)]:
            if upload.initiated < time.time() - ABANDONED_S:
                with suppress(NoSuchKey):  # It has already ended.
                    size = self._requests.uploaded_bytes(upload)
                    yield Entry(upload.name.removeprefix(self._base), size, upload.initiated)
                    if not dry_run:
                        self._abort_upload(upload.name, upload.upload_id)

    def _abort_upload(self, name: str, upload: str) -> None:
        self._requests.send("DELETE", name, query={"uploadId": upload}, also_ok=(404,))

    def _object_name(self, key: str) -> str:
        check_key(key)
        return self._base + key

    def _require_atomic_create(self) -> None:
        """Leaves at most one object per prefix: the first opening creates it, and each later one tries to create it
        again."""
        for _ in range(2):
            if not self._create(self._base + PROBE, b""):
                return
        raise StoreError(
            f"{self.uri}: this store ignores `If-None-Match: *`, so two masters could both believe they lead; "
            "use one that honours it (MinIO, Amazon S3) or a directory"
        )

    def _create(self, name: str, data: bytes) -> bool:
        """PUT if the name is free. If a retry meets the success of an earlier attempt, it finds its own nonce in the
        object's metadata."""
        nonce = secrets.token_hex(16)
        with memoryview(data) as view:
            headers = {_NONCE_HEADER: nonce, "If-None-Match": "*"}
            answer = self._send_paced("PUT", name, view, headers=headers, also_ok=(412,))
        if answer.status != 412:
            return True
        return answer.attempts > 1 and self._is_written_by(name, nonce)

    def _is_written_by(self, name: str, nonce: str) -> bool:
        try:
            return self._requests.send("HEAD", name).headers.get(_NONCE_HEADER) == nonce
        except NoSuchKey:
            return False

    def _send_paced(
        self,
        method: str,
        name: str,
        data: memoryview,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        also_ok: tuple[int, ...] = (),
    ) -> Answer:
        return self._requests.send(
            method,
            name,
            query=query,
            headers=headers,
            body=StreamedBody(len(data), lambda: self._pace.slices(data, _CHUNK_BYTES)),
            also_ok=also_ok,
        )

    def _put_in_parts(self, name: str, data: memoryview) -> None:
        size = max(PART_BYTES, -(-len(data) // MAX_PARTS))
        nonce = secrets.token_hex(16)
        upload_reply = self._requests.send("POST", name, query={"uploads": ""}, headers={_NONCE_HEADER: nonce})
        upload = _xml_text(upload_reply.data, "UploadId")

        def send(number: int) -> str:
            with data[number * size : (number + 1) * size] as part:
                query = {"partNumber": str(number + 1), "uploadId": upload}
                return self._send_paced("PUT", name, part, query).headers["etag"]

        try:
            tags = _run_parallel(send, -(-len(data) // size))
            self._complete_upload(name, upload, tags, nonce)
        except BaseException:
            with suppress(StoreError, NoSuchKey):
                self._abort_upload(name, upload)
            raise

    def _complete_upload(self, name: str, upload: str, tags: Sequence[str], nonce: str) -> None:
        """Join the parts to one object. S3 may answer 200 with an error in the body. A retry may find that an earlier
        attempt succeeded."""
        root = ElementTree.Element("CompleteMultipartUpload")
        for number, tag in enumerate(tags, 1):
            part = ElementTree.SubElement(root, "Part")
            ElementTree.SubElement(part, "PartNumber").text = str(number)
            ElementTree.SubElement(part, "ETag").text = tag
        body = ElementTree.tostring(root)
        completion = self._requests.send("POST", name, query={"uploadId": upload}, body=body, also_ok=(404,))
        if (completion.status == 404 or b"<Error>" in completion.data) and not self._is_written_by(name, nonce):
            raise StoreError(
                f"{self.uri}: {name}: the upload's parts were not joined to one object ({completion.code})"
            )

    def _read_ranges(self, name: str, start: int, view: memoryview, tag: str) -> bool:
        """Fill `view` by ranges of the version `tag`. Returns False if the object has been replaced."""

        def read(number: int) -> bool:
            first = number * PART_BYTES
            with view[first : first + PART_BYTES] as piece:
                range_header = f"bytes={start + first}-{start + first + len(piece) - 1}"
                headers = {"Range": range_header, "If-Match": tag}
                answer = self._requests.send("GET", name, headers=headers, into=piece, also_ok=(412,))
                if answer.status == 200:
                    raise StoreError(f"{self.uri}: the store ignores the Range of a GET; use one that honours it")
                return answer.status == 206 and answer.filled == len(piece)

        return all(_run_parallel(read, -(-len(view) // PART_BYTES)))


def _run_parallel(work: Callable[[int], T], count: int) -> list[T]:
    """The results of `work(0)`, `work(1)`... in order, MAX_PARALLEL at once. The first error cancels calls that have
    not started."""
    if count <= 1:
        return [work(number) for number in range(count)]
    with ThreadPoolExecutor(min(MAX_PARALLEL, count), "everstep-store") as pool:
        try:
            return list(pool.map(work, range(count)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _open_source(source: bytes | memoryview | Path) -> Iterator[memoryview]:
    """The source's bytes without a copy; a file is mapped."""
    if not isinstance(source, Path):
        with memoryview(source).cast("B") as view:
            yield view
        return
    try:
        with source.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if source.stat().st_size else None
    except OSError as error:
        raise StoreError(f"{source}: cannot read: {error.strerror}") from error
    if mapping is None:
        yield memoryview(b"")
        return
    with mapping, memoryview(mapping) as view:
        yield view


def _xml_text(data: bytes, name: str) -> str:
    """The text of the first element `name` below the root, in any namespace."""
    text = ElementTree.fromstring(data).findtext(f"{{*}}{name}")
    if not text:
        raise StoreError(f"the store's answer has no {name}")
    return text

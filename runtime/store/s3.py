"""A store under a prefix of an S3 bucket: MinIO, or another that honours `If-None-Match` on a PUT.

Large objects go in parts, several at once, from where they are: nothing is copied, so memory stays bounded by what the
connections buffer. What a killed writer left of a multi-part upload no listing of objects shows; `sweep` gives it up
when it is old. (MinIO does so by itself, too.)
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
from everstep.runtime.store.s3_requests import Answer, Requests
from everstep.runtime.store.s3_settings import Settings

PART = 16 << 20
"""Bytes of a part, and of a range of a parallel read. A single request carries up to twice as much."""
MOST_PARTS = 10_000
"""S3's limit (Amazon S3 user guide, "Multipart upload limits"); larger objects get larger parts."""
PARALLEL = 4
"""Parts or ranges of one object on their way at once."""
READS_AGAIN = 3
"""An object that is replaced while its ranges are read is read anew so often."""
PROBE = "~probe"
"""No key can begin like this. It is there to prove, at each opening, that a second create fails."""
ABANDONED_S = 86_400.0
"""An upload that began so long ago has no living writer. MinIO itself gives up such ones, too."""
_WRITER = "x-amz-meta-everstep-writer"
_PIECE = 1 << 20

T = TypeVar("T")


class S3Objects:
    """What is in a bucket, under whatever names others gave it: to be read."""

    def __init__(self, settings: Settings) -> None:
        self.requests = Requests(settings)

    def get(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        """As a Store's."""
        if length == 0:
            self.requests.send("HEAD", name)
            return b""
        if start == 0 and length is None:
            return self.requests.send("GET", name).data
        last = "" if length is None else start + length - 1
        answer = self.requests.send("GET", name, headers={"Range": f"bytes={start}-{last}"}, wanted=(416,))
        return answer.data if answer.status == 206 else b""

    def list(self, prefix: str) -> Iterator[Entry]:
        """As a Store's, without markers of folders and what proves that a Store is one."""
        for entry in self.requests.list(prefix):
            if entry.key.rpartition("/")[2] not in ("", PROBE):
                yield entry


class S3Store:
    """The Store at `settings`; uploads take turns by `pace`.

    Unless `read_only`, opening proves that `create` is atomic there: raises StoreError when the store ignores
    If-None-Match, cannot be reached, or refuses the credentials.
    """

    def __init__(self, settings: Settings, pace: Pace, read_only: bool = False) -> None:
        self.uri = settings.uri
        self._base, self._pace = settings.prefix, pace
        self._objects = S3Objects(settings)
        self._requests = self._objects.requests
        if not read_only:
            self._prove()

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self._objects.get(self._name(key), start, length)

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        name = self._name(key)
        with buffer.cast("B") as view:
            for _ in range(READS_AGAIN):
                found = self._requests.send("HEAD", name)
                short = start + len(view) - int(found.headers["content-length"])
                if short > 0:
                    raise TooShort(f"{self.uri}/{key}: ends {short} bytes too early")
                if self._read_ranges(name, start, view, found.headers["etag"]):
                    return
        raise StoreError(f"{self.uri}/{key}: is being replaced again and again while it is read")

    def put(self, key: str, source: bytes | memoryview | Path) -> None:
        name = self._name(key)
        with _bytes_of(source) as data:
            if len(data) <= 2 * PART:
                self._upload("PUT", name, data)
            else:
                self._put_in_parts(name, data)

    def create(self, key: str, data: bytes) -> bool:
        return self._create(self._name(key), data)

    def list(self, prefix: str) -> Iterator[Entry]:
        check_prefix(prefix)
        for entry in self._objects.list(self._base + prefix):
            key = entry.key.removeprefix(self._base)
            with suppress(ValueError):  # What is no key is not ours.
                check_key(key)
                yield entry._replace(key=key)

    def delete(self, key: str) -> None:
        with suppress(NoSuchKey):
            self._requests.send("DELETE", self._name(key))

    def sweep(self, prefix: str, dry_run: bool = False) -> Iterator[Entry]:
        check_prefix(prefix)
        below = self._base + prefix
        found = [*self._requests.uploads(below)]
        for upload in found or [one for one in self._requests.uploads("") if one.name.startswith(below)]:
            if upload.begun < time.time() - ABANDONED_S:
                with suppress(NoSuchKey):  # It ended since.
                    size = self._requests.uploaded(upload)
                    yield Entry(upload.name.removeprefix(self._base), size, upload.begun)
                    if not dry_run:
                        self._give_up(upload.name, upload.upload_id)

    def _give_up(self, name: str, upload: str) -> None:
        self._requests.send("DELETE", name, query={"uploadId": upload}, wanted=(404,))

    def _name(self, key: str) -> str:
        check_key(key)
        return self._base + key

    def _prove(self) -> None:
        """At most one object per prefix is left; the first opening makes it, each one asks for it again."""
        for _ in range(2):
            if not self._create(self._base + PROBE, b""):
                return
        raise StoreError(
            f"{self.uri}: this store ignores `If-None-Match: *`, so two masters could both believe they lead; "
            "use one that honours it (MinIO, Amazon S3) or a directory"
        )

    def _create(self, name: str, data: bytes) -> bool:
        """PUT if the name is free. A retry that meets its own success finds its nonce in the object's metadata."""
        nonce = secrets.token_hex(16)
        with memoryview(data) as view:
            answer = self._upload("PUT", name, view, {_WRITER: nonce}, {"If-None-Match": "*"}, (412,))
        if answer.status != 412:
            return True
        return answer.attempts > 1 and self._written_by(name, nonce)

    def _written_by(self, name: str, nonce: str) -> bool:
        try:
            return self._requests.send("HEAD", name).headers.get(_WRITER) == nonce
        except NoSuchKey:
            return False

    def _upload(
        self,
        method: str,
        name: str,
        data: memoryview,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        wanted: tuple[int, ...] = (),
    ) -> Answer:
        return self._requests.send(
            method,
            name,
            query=query,
            headers=headers,
            body=lambda: self._pace.slices(data, _PIECE),
            length=len(data),
            wanted=wanted,
        )

    def _put_in_parts(self, name: str, data: memoryview) -> None:
        size = max(PART, -(-len(data) // MOST_PARTS))
        nonce = secrets.token_hex(16)
        begun = self._requests.send("POST", name, query={"uploads": "", _WRITER: nonce})
        upload = _text(begun.data, "UploadId")

        def send(number: int) -> str:
            with data[number * size : (number + 1) * size] as part:
                query = {"partNumber": str(number + 1), "uploadId": upload}
                return self._upload("PUT", name, part, query).headers["etag"]

        try:
            tags = _together(send, -(-len(data) // size))
            self._complete(name, upload, tags, nonce)
        except BaseException:
            with suppress(StoreError, NoSuchKey):
                self._give_up(name, upload)
            raise

    def _complete(self, name: str, upload: str, tags: Sequence[str], nonce: str) -> None:
        """Make the parts one object. S3 may answer 200 and an error in the body; a retry may find its work done."""
        root = ElementTree.Element("CompleteMultipartUpload")
        for number, tag in enumerate(tags, 1):
            part = ElementTree.SubElement(root, "Part")
            ElementTree.SubElement(part, "PartNumber").text = str(number)
            ElementTree.SubElement(part, "ETag").text = tag
        body = ElementTree.tostring(root)
        done = self._requests.send("POST", name, query={"uploadId": upload}, body=body, wanted=(404,))
        if (done.status == 404 or b"<Error>" in done.data) and not self._written_by(name, nonce):
            raise StoreError(f"{self.uri}: {name}: the upload's parts were not made one object ({done.code})")

    def _read_ranges(self, name: str, start: int, view: memoryview, tag: str) -> bool:
        """Fill `view` by ranges of the version `tag`; False when the object is another one by now."""

        def read(number: int) -> bool:
            first = number * PART
            with view[first : first + PART] as piece:
                wanted = f"bytes={start + first}-{start + first + len(piece) - 1}"
                headers = {"Range": wanted, "If-Match": tag}
                answer = self._requests.send("GET", name, headers=headers, into=piece, wanted=(412,))
                if answer.status == 200:
                    raise StoreError(f"{self.uri}: the store ignores the Range of a GET; use one that honours it")
                return answer.status == 206 and answer.filled == len(piece)

        return all(_together(read, -(-len(view) // PART)))


def _together(work: Callable[[int], T], count: int) -> list[T]:
    """`work(0)`, `work(1)`...: PARALLEL at once; the results in order. The first error stops what has not begun."""
    if count <= 1:
        return [work(number) for number in range(count)]
    with ThreadPoolExecutor(min(PARALLEL, count), "everstep-store") as pool:
        try:
            return list(pool.map(work, range(count)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _bytes_of(source: bytes | memoryview | Path) -> Iterator[memoryview]:
    """The source's bytes where they are; a file is mapped."""
    if not isinstance(source, Path):
        with memoryview(source).cast("B") as view:
            yield view
        return
    try:
        with source.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if source.stat().st_size else None
    except OSError as error:
        raise StoreError(f"{source}: cannot read: {error.strerror}") from error
    if mapped is None:
        yield memoryview(b"")
        return
    with mapped, memoryview(mapped) as view:
        yield view


def _text(data: bytes, name: str) -> str:
    """The text of the first element `name` below the root, in whatever namespace."""
    found = ElementTree.fromstring(data).findtext(f"{{*}}{name}")
    if not found:
        raise StoreError(f"the store's answer has no {name}")
    return found

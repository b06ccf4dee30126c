"""Requests to an S3 endpoint: signed by minio, sent over persistent connections, retried when that may help.

minio's own calls hash and copy what they send, and turn If-None-Match into metadata of the object, which makes the PUT
unconditional. So only its signature is used: of the address and of all headers `x-amz-*`, without the body. Metadata of
an object must be such headers. Some servers ignore it in the query of a presigned URL, where minio would put it.
"""

import http.client
import math
import os
import socket
import ssl
import time
import xml.etree.ElementTree as ElementTree
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, NoReturn
from urllib.parse import SplitResult

from minio import Minio
from minio.credentials.credentials import Credentials
from minio.error import MinioException, S3Error
from minio.helpers import BaseURL, check_bucket_name
from minio.signer import sign_v4_s3
from minio.time import to_amz_date
from urllib3 import PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError

from everstep.runtime.store.protocol import Entry, NoSuchKey, StoreError, Unavailable
from everstep.runtime.store.s3_settings import Settings
from everstep.runtime.system.backoff import backoff

ATTEMPTS = 6
"""Attempts for one request; the pauses between them add up to 3 s at most."""
FIRST_PAUSE_S = 0.1
CONNECT_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 60.0
"""A connection without a byte for this long counts as broken."""
RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses for which another attempt may succeed."""
RETRIED_CODES = frozenset({"RequestTimeout", "SlowDown", "ConditionalRequestConflict", "OperationAborted"})
_FULL_CODES = ("XMinioStorageFull", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded")
_WRONG_REGION_CODES = ("AuthorizationQueryParametersError", "AuthorizationHeaderMalformed", "MissingFields")
"""Codes of Amazon S3 and MinIO (the last one, for a PUT) for a request signed for another region."""
_UNSIGNED = "UNSIGNED-PAYLOAD"
"""Stands for the body's hash (Amazon S3 API reference, "Signature calculations for the authorization header")."""


@dataclass(frozen=True)
class StreamedBody:
    """A body that is sent piece by piece."""

    length: int
    """Bytes, in total."""
    pieces: Callable[[], Generator[memoryview]]
    """Called again for each attempt."""


Body = bytes | StreamedBody
"""A function makes the chunks again for each attempt."""


@dataclass(frozen=True)
class Answer:
    """The response to a request; `code` is S3's, empty on success."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    data: bytes
    """Empty if the body was read into the caller's buffer."""
    code: str = ""
    message: str = ""
    attempts: int = 1
    """More than 1: an earlier attempt may have succeeded although its answer was lost."""
    filled: int = 0
    """Bytes written to the caller's buffer."""


class Upload(NamedTuple):
    """A multi-part upload that is in progress, or whose writer was killed."""

    name: str
    upload_id: str
    initiated: float
    """Unix time."""


class Requests:
    """Requests for the objects of one bucket. Thread-safe, also after a fork. `pause` waits that many seconds."""

    def __init__(self, settings: Settings, pause: Callable[[float], None] = time.sleep) -> None:
        self._settings, self._pause = settings, pause
        try:
            check_bucket_name(settings.bucket, s3_check=True)
            self._place = BaseURL(settings.endpoint, settings.region)
        except ValueError as error:
            region = f"region {settings.region}"
            raise StoreError(f"{settings.uri}: {settings.endpoint}, {region}: {str(error).rstrip('.')}") from None
        try:
            self._trust = ssl.create_default_context(cafile=settings.ca_file) if settings.secure else None
        except OSError as error:
            raise StoreError(f"AWS_CA_BUNDLE or SSL_CERT_FILE {settings.ca_file}: cannot be used ({error})") from None
        self._open_pools()

    def _open_pools(self) -> None:
        waiting = Retry(
            ATTEMPTS - 1, backoff_factor=FIRST_PAUSE_S, status_forcelist=sorted(RETRIED_STATUSES), raise_on_status=False
        )
        self._process = os.getpid()
        self._minio = Minio(
            self._settings.host,
            access_key=self._settings.access_key,
            secret_key=self._settings.secret_key,
            session_token=self._settings.session_token,
            secure=self._settings.secure,
            region=self._settings.region,
            http_client=PoolManager(
                timeout=Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
                retries=waiting,
                ssl_context=self._trust,
            ),
        )
        self._idle: deque[http.client.HTTPConnection] = deque()

    def _leave_parents_pools(self) -> None:
        """In a forked process, open pools of its own: on the parent's connections, answers of both would mix."""
        if self._process != os.getpid():
            self._open_pools()

    def send(
        self,
        method: str,
        key: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body = b"",
        into: memoryview | None = None,
        also_ok: tuple[int, ...] = (),
    ) -> Answer:
        """Send the request, with as many attempts as needed, and return the answer if its status is 200, 204, 206 or in
        `also_ok`.

        The body of a 200 or 206 is read into `into`; a
        longer one is cut. Raises NoSuchKey; StoreError for everything else.
        """
        all_headers = {"Content-Length": str(len(body) if isinstance(body, bytes) else body.length), **(headers or {})}
        pauses = backoff(FIRST_PAUSE_S)
        for attempt in range(1, ATTEMPTS + 1):
            address, signed_headers = self._sign(method, key, query or {}, all_headers)
            try:
                answer = self._send_once(method, address, signed_headers, body, into, attempt)
            except ssl.SSLCertVerificationError as error:
                self._raise_distrusted(error)
            except (OSError, http.client.HTTPException) as error:
                self._close_idle()
                if attempt == ATTEMPTS:
                    self._raise_unreachable(error)
                self._wait(pauses, "")
                continue
            if answer.status in (200, 204, 206, *also_ok):
                return answer
            if attempt < ATTEMPTS and (answer.status in RETRIED_STATUSES or answer.code in RETRIED_CODES):
                self._wait(pauses, answer.headers.get("retry-after", ""))
                continue
            self._raise_refused(method, key, answer.status, answer.code, answer.message)
        raise AssertionError("the last attempt returns or raises")

    def list(self, prefix: str) -> Iterator[Entry]:
        """The objects below `prefix`, in key order. Raises StoreError."""
        with self._explain_errors(prefix):
            for item in self._minio.list_objects(self._settings.bucket, prefix=prefix, recursive=True):
                modified_at = item.last_modified.timestamp() if item.last_modified else 0.0
                yield Entry(str(item.object_name), item.size or 0, modified_at)

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """The multi-part uploads below `prefix` that are neither completed nor aborted. Raises StoreError.

        MinIO lists them only for a complete key, or for the empty prefix. The method used is private in minio.
        """
        marker, more = None, True
        while more:
            with self._explain_errors(prefix):
                page = self._minio._list_multipart_uploads(self._settings.bucket, prefix=prefix, key_marker=marker)
            for upload in page.uploads:
                began = upload.initiated_time.timestamp() if upload.initiated_time else math.inf
                yield Upload(str(upload.object_name), str(upload.upload_id), began)
            marker, more = page.next_key_marker, page.is_truncated

    def uploaded_bytes(self, upload: Upload) -> int:
        """Bytes of its first 1,000 parts. Raises StoreError."""
        with self._explain_errors(upload.name):
            page = self._minio._list_parts(self._settings.bucket, upload.name, upload.upload_id)
        return sum(part.size or 0 for part in page.parts)

    @contextmanager
    def _explain_errors(self, prefix: str) -> Iterator[None]:
        """Turn minio's errors of a listing into StoreError."""
        self._leave_parents_pools()
        try:
            yield
        except S3Error as error:
            status = error.response.status if error.response is not None else 0
            self._raise_refused("LIST", prefix, status, str(error.code), str(error.message))
        except HTTPError as error:
            if isinstance(cause := getattr(error, "reason", error), ssl.SSLCertVerificationError):
                self._raise_distrusted(cause)
            self._raise_unreachable(error)
        except MinioException as error:
            raise Unavailable(f"{self._settings.uri}: {self._settings.endpoint} cannot list it: {error}") from None

    def _sign(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> tuple[SplitResult, dict[str, str]]:
        """The address, and `headers` with those that prove who sends them, from now on for 15 minutes."""
        settings, now = self._settings, datetime.now(UTC)
        region = self._place.region or settings.region
        address = self._place.build(
            method=method,
            region=region,
            bucket_name=settings.bucket,
            object_name=key,
            query_params={**query},
        )
        to_sign: dict[str, str | list[str] | tuple[str]] = {
            "Host": address.netloc,
            "x-amz-content-sha256": _UNSIGNED,
            "x-amz-date": to_amz_date(now),
            **{name: value for name, value in headers.items() if name.startswith("x-amz-")},
        }
        if settings.session_token:
            to_sign["x-amz-security-token"] = settings.session_token
        signed = sign_v4_s3(
            method=method,
            url=address,
            region=region,
            headers=to_sign,
            credentials=Credentials(settings.access_key, settings.secret_key),
            content_sha256=_UNSIGNED,
            date=now,
        )
        return address, {**headers, **{name: str(value) for name, value in signed.items()}}

    def _send_once(
        self,
        method: str,
        address: SplitResult,
        headers: Mapping[str, str],
        body: Body,
        into: memoryview | None,
        attempt: int,
    ) -> Answer:
        target = f"{address.path}?{address.query}" if address.query else address.path
        with self._connection(address.netloc) as connection:
            cut = False
            try:
                with nullcontext(body) if isinstance(body, bytes) else closing(body.pieces()) as data:
                    connection.request(method, target, body=data, headers=dict(headers))
            except (BrokenPipeError, ConnectionResetError):
                cut = True  # It may have answered before it closed; otherwise the next line raises.
            response = connection.getresponse()
            answer_headers = {name.lower(): value for name, value in response.getheaders()}
            status = response.status
            if into is not None and status in (200, 206):
                bytes_filled = _read_body(response, into, int(answer_headers.get("content-length", "0")))
                if not response.isclosed():
                    connection.close()
                return Answer(status, answer_headers, b"", attempts=attempt, filled=bytes_filled)
            data = response.read()
            if cut:
                connection.close()
        code, message = _parse_error(data) if status >= 300 else ("", "")
        code = code or answer_headers.get("x-minio-error-code", "")  # The answer to a HEAD has no body.
        return Answer(status, answer_headers, data, code, message, attempt)

    @contextmanager
    def _connection(self, host: str) -> Iterator[http.client.HTTPConnection]:
        """An idle connection or a new one. It is kept for reuse unless the block raises."""
        self._leave_parents_pools()
        try:
            connection = self._idle.pop()
        except IndexError:
            if self._trust is None:
                connection = http.client.HTTPConnection(host, timeout=CONNECT_TIMEOUT_S)
            else:
                connection = http.client.HTTPSConnection(host, timeout=CONNECT_TIMEOUT_S, context=self._trust)
            connection.connect()
            connection.sock.settimeout(READ_TIMEOUT_S)
            connection.timeout = READ_TIMEOUT_S
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)

    def _close_idle(self) -> None:
        """One connection has failed: the server may have closed the others, too, which would cost an attempt each."""
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _wait(self, pauses: Iterator[float], retry_after: str) -> None:
        """Wait before the next attempt. `retry_after` is the server's Retry-After."""
        pause = next(pauses)
        with suppress(ValueError):
            pause = max(pause, min(float(retry_after or 0), 10.0))
        self._pause(pause)

    def _raise_refused(self, method: str, key: str, status: int, code: str, message: str) -> NoReturn:
        uri, endpoint = self._settings.uri, self._settings.endpoint
        why = f"{code}: {message}" if message else code or f"status {status}"
        if code == "NoSuchBucket":
            raise StoreError(f"{uri}: no such bucket at {endpoint}; create it, or choose another --store")
        if status == 404 and code in ("NoSuchKey", ""):
            raise NoSuchKey(key.removeprefix(self._settings.prefix))
        if code == "RequestTimeTooSkewed":
            raise StoreError(f"{uri}: the clocks of this machine and of {endpoint} differ; correct this machine's")
        if status in (301, 307) or code in _WRONG_REGION_CODES:
            raise StoreError(f"{uri}: {endpoint} refuses to {method} ({why}); set AWS_REGION to the bucket's region")
        if status == 403:
            mend = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they may do"
            raise StoreError(f"{uri}: {endpoint} refuses to {method} with these credentials ({why}); {mend}")
        if code in _FULL_CODES or status == 507:
            raise StoreError(f"{uri}: {endpoint} is full ({why}); free some space or choose another --store")
        error_type = Unavailable if status in RETRIED_STATUSES or code in RETRIED_CODES else StoreError
        raise error_type(f"{uri}: {method} {key}: {endpoint} answers {status} ({why})")

    def _raise_unreachable(self, error: Exception) -> NoReturn:
        why = str(getattr(error, "reason", error)) or type(error).__name__
        if isinstance(error, socket.gaierror):
            why = "no such host"
        raise Unavailable(
            f"{self._settings.uri}: {self._settings.endpoint} cannot be reached ({why}); is it running, and is "
            "MINIO_ENDPOINT or AWS_ENDPOINT_URL right?"
        ) from error

    def _raise_distrusted(self, error: ssl.SSLCertVerificationError) -> NoReturn:
        raise StoreError(
            f"{self._settings.uri}: the certificate of {self._settings.endpoint} is not trusted "
            f"({error.verify_message}); set AWS_CA_BUNDLE to a file with its authority's"
        ) from error


def _read_body(response: http.client.HTTPResponse, buffer: memoryview, promised: int) -> int:
    """Read the body straight into `buffer` and return the number of bytes. Raises IncompleteRead if there are fewer
    than promised."""
    expected_bytes, bytes_read = min(len(buffer), promised), 0
    while bytes_read < expected_bytes:
        with buffer[bytes_read:expected_bytes] as rest:
            count = response.readinto(rest)
        if not count:
            raise http.client.IncompleteRead(b"", expected_bytes - bytes_read)
        bytes_read += count
    if promised <= len(buffer):
        response.read()  # The body is consumed, so the connection can be reused.
    return bytes_read


def _parse_error(data: bytes) -> tuple[str, str]:
    """(code, message) of S3's XML; empty for anything else, such as the answer to a HEAD."""
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError:
        return "", ""
    return root.findtext("Code") or "", root.findtext("Message") or ""

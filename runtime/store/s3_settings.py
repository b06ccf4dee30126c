"""Address and credentials of an S3 store: `s3://bucket/prefix` and the usual environment variables.

MINIO_ENDPOINT, or else AWS_ENDPOINT_URL, with http:// or https://; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, for
temporary credentials, AWS_SESSION_TOKEN; AWS_REGION, or else AWS_DEFAULT_REGION (by default us-east-1, like MinIO);
AWS_CA_BUNDLE, or else SSL_CERT_FILE: a file of certificates to trust instead of the system's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from everstep.runtime.store.protocol import InvalidKey, StoreError, check_key

ENDPOINTS = ("MINIO_ENDPOINT", "AWS_ENDPOINT_URL")
ACCESS_KEY, SECRET_KEY, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
CA_FILES = ("AWS_CA_BUNDLE", "SSL_CERT_FILE")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True)
class Settings:
    """The address of one prefix of one bucket, and the credentials for it."""

    bucket: str
    prefix: str
    """Empty, or ends with `/`."""
    host: str
    """host:port of the endpoint."""
    secure: bool
    """https."""
    region: str
    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(repr=False)
    ca_file: str | None

    @property
    def endpoint(self) -> str:
        """The endpoint as a URL."""
        return f"{'https' if self.secure else 'http'}://{self.host}"

    @property
    def uri(self) -> str:
        """The address that `open_store` takes."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def settings_of(uri: str, environment: Mapping[str, str]) -> Settings:
    """Raises StoreError, one line, for an invalid URI or a missing variable."""
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    prefix = prefix.rstrip("/")
    if not _BUCKET.fullmatch(bucket):
        raise StoreError(f"{uri}: {bucket!r} is not a bucket's name; give s3://bucket/prefix")
    try:
        if prefix:
            check_key(prefix)
    except InvalidKey as error:
        raise StoreError(f"{uri}: {error}") from None
    name, endpoint = _first_set(environment, ENDPOINTS)
    if not endpoint:
        raise StoreError(f"{uri}: {' or '.join(ENDPOINTS)} is not set; set it, such as http://minio:9000")
    try:
        place = urlsplit(endpoint)
    except ValueError as error:
        raise StoreError(f"{uri}: {name} {endpoint}: {error}") from None
    if place.scheme not in ("http", "https") or not place.hostname or place.path.strip("/") or place.username:
        raise StoreError(f"{uri}: {name} must be http://HOST:PORT or https://HOST:PORT and nothing more")
    missing = [name for name in (ACCESS_KEY, SECRET_KEY) if not environment.get(name)]
    if missing:
        raise StoreError(f"{uri}: {' and '.join(missing)} not set; set the credentials of {endpoint}")
    for name in (ACCESS_KEY, SECRET_KEY, TOKEN):  # They go into headers, whose errors would show them.
        if re.search(r"[^!-~]", environment.get(name, "")):
            raise StoreError(f"{uri}: {name} has a space, a line break or no ASCII character in it; set it without")
    return Settings(
        bucket=bucket,
        prefix=prefix + "/" if prefix else "",
        host=place.netloc,
        secure=place.scheme == "https",
        region=_first_set(environment, REGIONS)[1] or "us-east-1",
        access_key=environment[ACCESS_KEY],
        secret_key=environment[SECRET_KEY],
        session_token=environment.get(TOKEN) or None,
        ca_file=_first_set(environment, CA_FILES)[1] or None,
    )


def _first_set(environment: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    """(name, value) of the first variable that is set and not empty; ("", "") if there is none."""
    return next(((name, environment[name]) for name in names if environment.get(name)), ("", ""))

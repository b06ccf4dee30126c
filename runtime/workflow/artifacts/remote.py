"""Artifacts at http addresses: GET and PUT, with their kinds of authentication.

After Argo's documentation ("HTTP Artifacts"). Credentials come from Secrets.
"""

import base64
import json
import shutil
import ssl
import tempfile
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from everstep.runtime.net import web
from everstep.runtime.workflow.manifest.fields import list_at
from everstep.runtime.workflow.manifest.library import Library

TOKEN_BYTES = 1 << 20


class RemoteError(OSError):
    """The artifact cannot be fetched or put."""


class AbsentError(RemoteError):
    """The artifact does not exist: an optional one is left out."""


def secret_value(holder: Mapping[str, Any], name: str, library: Library) -> str:
    """The Secret to which the field `name` of `holder` refers; empty when there is none. Raises MissingObjectError."""
    return (library.value("Secret", holder[name]) or "") if holder.get(name) else ""


def basic_auth(user: str, password: str) -> str:
    """The value of an Authorization header (RFC 7617)."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class DiskBudget:
    """Bytes that a download may take of a disk: half of what is free, so that others can go on."""

    def __init__(self, folder: Path) -> None:
        self._most = self._left = shutil.disk_usage(folder).free // 2

    def spend(self, count: int) -> None:
        """Count bytes. Raises RemoteError when there are too many."""
        self._left -= count
        if self._left < 0:
            raise RemoteError(f"it is larger than {self._most} bytes, half of what is left on this disk")


def download(http: Mapping[str, Any], library: Library, to: Path, ending: web.Ending | None = None) -> None:
    """Get what an http location has, whole; `ending` may end it. Raises RemoteError, MissingObjectError."""
    request, room = _build_request(http, library)._replace(ending=ending), DiskBudget(to.parent)
    try:
        with web.open_request(request) as answer, to.open("wb") as file:
            if answer.status == HTTPStatus.NOT_FOUND:
                raise AbsentError(f"{answer.status} {answer.reason}")
            if answer.status // 100 != 2:
                status = f"{answer.status} {answer.reason}"
                raise RemoteError(f"loading content from {request.url} failed with reason: {status}")
            for piece in answer.pieces():
                room.spend(len(piece))
                file.write(piece)
    except web.WebError as error:
        raise RemoteError(str(error)) from None


def upload(http: Mapping[str, Any], library: Library, source: Path) -> None:
    """Put a file where an http location says. Raises RemoteError, MissingObjectError."""
    if source.is_dir():
        raise RemoteError("a folder cannot be sent to an http address; archive it")
    content = [("Content-Length", str(source.stat().st_size)), ("Content-Type", "application/octet-stream")]
    with source.open("rb") as file:
        own = _build_request(http, library)
        request = own._replace(method="PUT", body=file, headers=[*content, *own.headers])
        try:
            with web.open_request(request) as answer:
                if answer.status // 100 != 2:
                    status = f"{answer.status} {answer.reason}"
                    raise RemoteError(f"saving file {source.name} to {request.url} failed with reason: {status}")
        except web.WebError as error:
            raise RemoteError(str(error)) from None


def _build_request(http: Mapping[str, Any], library: Library) -> web.Request:
    """The request for a location, with its authentication."""
    auth, headers = http.get("auth") or {}, list[tuple[str, str]]()
    if names := auth.get("basicAuth"):
        authorization = basic_auth(
            secret_value(names, "usernameSecret", library), secret_value(names, "passwordSecret", library)
        )
        headers.append(("Authorization", authorization))
    if auth.get("oauth2"):
        headers.append(("Authorization", f"Bearer {_fetch_token(auth['oauth2'], library)}"))
    headers += [(str(header["name"]), str(header.get("value") or "")) for header in list_at(http, "headers")]
    context = _client_tls(auth["clientCert"], library) if auth.get("clientCert") else None
    return web.Request(str(http.get("url") or ""), headers=headers, context=context)


def _client_tls(artifact: Mapping[str, Any], library: Library) -> ssl.SSLContext:
    context = ssl.create_default_context()
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name in ("clientCertSecret", "clientKeySecret"):
            files.append(Path(folder, name))
            files[-1].write_text(secret_value(artifact, name, library))
        try:
            context.load_cert_chain(*files)
        except (ssl.SSLError, ValueError) as error:
            raise RemoteError(f"the client's certificate cannot be used: {error}") from None
    return context


def _fetch_token(artifact: Mapping[str, Any], library: Library) -> str:
    """An access token for the client itself (RFC 6749, 4.4)."""
    form = [("grant_type", "client_credentials")]
    if artifact.get("scopes"):
        form.append(("scope", " ".join(artifact["scopes"])))
    form += [
        (str(parameter["key"]), str(parameter.get("value") or "")) for parameter in list_at(artifact, "endpointParams")
    ]
    who = (secret_value(artifact, "clientIDSecret", library), secret_value(artifact, "clientSecretSecret", library))
    headers = [("Authorization", basic_auth(*map(urllib.parse.quote_plus, who))),
               ("Content-Type", "application/x-www-form-urlencoded")]  # fmt: skip
    url, body = secret_value(artifact, "tokenURLSecret", library), urllib.parse.urlencode(form).encode()
    try:
        with web.open_request(web.Request(url, "POST", headers, body)) as answer:
            if answer.status // 100 != 2:
                raise RemoteError(f"the token endpoint answers {answer.status} {answer.reason}")
            reply = json.loads(answer.body(TOKEN_BYTES))
    except web.WebError as error:
        raise RemoteError(f"no token: {error}") from None
    except (ValueError, RecursionError):
        raise RemoteError("the token endpoint did not send JSON") from None
    token = reply.get("access_token") if isinstance(reply, dict) else None
    if not token:
        raise RemoteError("the token endpoint sent no access_token")
    return str(token)

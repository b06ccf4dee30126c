"""The one Kubernetes client: create, read, list, watch, patch and delete objects of one namespace, and read pods' logs.

A job's master uses it with its pod's service account, the commands of a person with their kube config (`submission`).
"""

import asyncio
import json
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal, TypeVar

import aiohttp

from everstep.runtime.system.backoff import backoff

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its service account."""
CONNECT_S = 5.0
ANSWER_S = 30.0
SILENCE_S = 90.0
"""A log that is followed and silent for this long is considered broken."""
STREAM_S = 240
"""How long the server may keep a watch open; a stream that is open 30 s longer is considered dead."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
ALLOWED_S = 60.0
"""A request that was allowed before and is now forbidden is retried for this long.

An API server that has just started refuses requests until it has read its own rules (Kubernetes' issue 121635).
"""
_OUTPUT_CHANNEL, _ERROR_CHANNEL, _STATUS_CHANNEL = 1, 2, 3
FORBIDDEN_USER = re.compile(r'User ".*" cannot ')
"""Matches the message for a missing right; the server also forbids for other reasons: a quota, a policy."""
_MERGE_PATCH, _STRATEGIC_PATCH = "application/merge-patch+json", "application/strategic-merge-patch+json"
"""A list in the one replaces the whole list, in the other it adds to it (Kubernetes, "API Concepts")."""
T = TypeVar("T")
Kind = Literal[
    "pods",
    "secrets",
    "configmaps",
    "nodes",
    "workflows",
    "chaosblades",
    "podgroups.scheduling.volcano.sh",
    "podgroups.scheduling.x-k8s.io",
]
ARGO = "apis/argoproj.io/v1alpha1"
GROUPS: Mapping[Kind, str] = {
    "pods": "api/v1", "secrets": "api/v1", "configmaps": "api/v1", "nodes": "api/v1",
    "workflows": ARGO, "chaosblades": "apis/chaosblade.io/v1alpha1",
    "podgroups.scheduling.volcano.sh": "apis/scheduling.volcano.sh/v1beta1",
    "podgroups.scheduling.x-k8s.io": "apis/scheduling.x-k8s.io/v1alpha1",
}  # fmt: skip
OF_NO_NAMESPACE: tuple[Kind, ...] = ("nodes", "chaosblades")
Wait = Callable[[float], Awaitable[object]]


class KubeError(OSError):
    """The API refused, or did not answer. One line: what, where, why."""

    def __init__(
        self, text: str, status: int = 0, after_s: float = 0.0, *, reason: str = "", kind: str = "", sent: bool = True
    ) -> None:
        super().__init__(" ".join(text.split()))
        self.status = status
        """The answer's status; 0: there was no answer."""
        self.said = reason or text
        """The message without where."""
        self.kind = kind
        """The kind that a Status object names, such as `namespaces`; "": the answer named none."""
        self.sent = sent
        """False: there was no connection, so nothing was carried out."""
        self.after_s = after_s
        """Seconds until the server wants the next try (Retry-After)."""
        self.passing = status in (0, HTTPStatus.TOO_MANY_REQUESTS) or status >= 500
        """The same request may succeed later."""


def _no_authorization() -> str:
    return ""


def _no_other_login() -> bool:
    return False


@dataclass(frozen=True)
class Access:
    """Where the API is, and the account that asks."""

    url: str
    namespace: str
    authorization: Callable[[], str] = _no_authorization
    """The header of that name; "": none. Called before each request, as tokens change."""
    tls: ssl.SSLContext | bool = True
    """Whom to trust, and the client's certificate."""
    server_name: str = ""
    """The name in the server's certificate, if it is not the URL's."""
    proxy: str = ""
    """URL of the proxy on the way; "": none."""
    renew: Callable[[], bool] = _no_other_login
    """Called when the API refuses the login (401): log in again. False: there is no other login."""
    changes_certificate: bool = False
    """Whether a new login may bring another client's certificate: a connection keeps that with which it began."""
    impersonation: tuple[tuple[str, str], ...] = ()
    """The headers that say whom the account acts as."""

    @classmethod
    def of_this_pod(cls, environment: Mapping[str, str], account: Path = ACCOUNT) -> "Access":
        """The pod's own service account. Raises KubeError if there is none."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
        token, authority = account / "token", account / "ca.crt"
        if not host or not token.is_file():
            raise KubeError(
                f"no service account here (KUBERNETES_SERVICE_HOST, {token}); pods get one unless their spec says "
                "automountServiceAccountToken: false"
            )
        address = f"[{host}]" if ":" in host else host
        namespace = (account / "namespace").read_text().strip()
        trust = ssl.create_default_context(cafile=authority) if authority.is_file() else True
        return cls(f"https://{address}:{port}", namespace, bearer_from(token), trust)


def bearer_from(file: Path) -> Callable[[], str]:
    """The authorization by a file's token, read each time: a service account's token changes while a pod lives."""
    return lambda: f"Bearer {file.read_text().strip()}"


class KubeApi:
    """Requests to one namespace. `async with`; used from one event loop."""

    def __init__(self, access: Access, wait: Wait = asyncio.sleep, clock: Callable[[], float] = time.monotonic) -> None:
        """`wait(seconds)` is awaited between two tries."""
        self.namespace = access.namespace
        self._access = access
        self._wait = wait
        self._clock = clock
        self._allowed: dict[tuple[str, str], float | None] = {}
        """By (method, kind): since when a request that was allowed before is forbidden; None: it is not."""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "KubeApi":
        limits = aiohttp.ClientTimeout(total=ANSWER_S, connect=CONNECT_S)
        access = self._access
        connector = aiohttp.TCPConnector(ssl=access.tls, limit=32, force_close=access.changes_certificate)
        self._session = aiohttp.ClientSession(connector=connector, timeout=limits)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session:
            await self._session.close()

    async def create(self, kind: Kind, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Create the object and return it. Raises KubeError (409: there is one of that name)."""
        return await self._ask("POST", kind, self._path(kind), body=manifest)

    async def ensure(self, kind: Kind, manifest: Mapping[str, Any]) -> None:
        """Create the object unless it exists; waits while the API is away. Raises KubeError for a refusal."""
        try:
            await self.retry(lambda: self.create(kind, manifest))
        except KubeError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise

    async def get(self, kind: Kind, name: str) -> dict[str, Any]:
        """The object. Raises KubeError (404: there is none)."""
        return await self._ask("GET", kind, self._path(kind, name))

    async def list(self, kind: Kind, selector: str) -> tuple[list[dict[str, Any]], str]:
        """All objects with these labels ("": all), and the version to watch from. Raises KubeError."""
        answer = await self._ask("GET", kind, self._path(kind), query={"labelSelector": selector} if selector else {})
        return answer.get("items") or [], answer["metadata"].get("resourceVersion") or ""

    async def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> None:
        """Merge the change into the object. Raises KubeError (409: its version is not the one in the change)."""
        await self._ask("PATCH", kind, self._path(kind, name), body=change)

    async def delete(self, kind: Kind, name: str, uid: str, grace_s: int) -> None:
        """Delete that incarnation only. Raises KubeError (404: it is gone; 409: another one has the name)."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}
        await self._ask("DELETE", kind, self._path(kind, name), body={**body, "gracePeriodSeconds": grace_s})

    async def add_container(self, pod: str, uid: str, container: Mapping[str, Any]) -> None:
        """Add an ephemeral container to that incarnation of the pod. Raises KubeError (409: another has the name)."""
        change = {"metadata": {"uid": uid}, "spec": {"ephemeralContainers": [container]}}
        path = self._path("pods", f"{pod}/ephemeralcontainers")
        await self._ask("PATCH", "ephemeralcontainers", path, body=change, content=_STRATEGIC_PATCH)

    async def evict(self, pod: str) -> None:
        """Evict the pod, as `kubectl drain` does. Raises KubeError (429: a disruption budget forbids it for now)."""
        wish = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        await self._ask("POST", "pods", f"{pod}/eviction", body=wish)

    async def watch(self, kind: Kind, selector: str, version: str) -> AsyncIterator[dict[str, Any]]:
        """The changes from that version on: `{"type": ..., "object": ...}`, bookmarks too, until the stream ends.

        Raises KubeError; 410: the version is no longer kept, list again.
        """
        query = {"labelSelector": selector, "resourceVersion": version, "allowWatchBookmarks": "true"}
        async for event in self._watch(kind, query):
            yield event

    async def watch_one(self, kind: Kind, name: str) -> AsyncIterator[dict[str, Any]]:
        """That object as it is, then each change, until the stream ends. Raises KubeError."""
        async for event in self._watch(kind, {"fieldSelector": f"metadata.name={name}"}):
            yield event

    async def _watch(self, kind: Kind, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        query = {**query, "watch": "true", "timeoutSeconds": str(STREAM_S)}
        limits = aiohttp.ClientTimeout(total=STREAM_S + 30, connect=CONNECT_S)
        try:
            async with self._open("GET", self._path(kind), query=query, limits=limits) as answer:
                await self._check_answer(("WATCH", kind), answer)
                async for line in _lines(answer):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise KubeError(f"watch of {kind}: {status.get('message')}", int(status.get("code") or 500))
                    yield event
        except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
            raise self._no_answer(error) from None

    async def log(self, pod: str, container: str, *, follow: bool, tail: int | None) -> AsyncIterator[bytes]:
        """Lines of that container's log: all or the last `tail`, and with `follow` until it ends. Raises KubeError.

        A log that breaks off, or is silent for long, ends.
        """
        query = {"container": container, "follow": str(follow).lower()}
        query |= {"tailLines": str(tail)} if tail is not None else {}
        limits = aiohttp.ClientTimeout(total=None, connect=CONNECT_S, sock_read=SILENCE_S)
        has_begun = False
        try:
            async with self._open("GET", self._path("pods", f"{pod}/log"), query=query, limits=limits) as answer:
                await self._check_answer(("GET", "log"), answer)
                has_begun = True
                async for line in _lines(answer, rest_too=True):
                    yield line
        except (aiohttp.ClientError, TimeoutError) as error:
            if not has_begun:
                raise self._no_answer(error) from None

    async def execute(self, pod: str, container: str, command: Sequence[str], limit_s: float) -> bytes:
        """What the command prints in that container. Raises KubeError, also for a command that fails.

        Kubernetes, "Pod exec": a WebSocket of the protocol v4.channel.k8s.io; each message's first byte is its channel.
        """
        query = [("container", container), ("stdout", "true"), ("stderr", "true")]
        query += [("command", word) for word in command]
        channels: dict[int, bytes] = {}
        try:
            async with asyncio.timeout(limit_s), self._socket(self._path("pods", f"{pod}/exec"), query) as socket:
                async for message in socket:
                    if message.type is aiohttp.WSMsgType.BINARY and message.data:
                        channels[message.data[0]] = channels.get(message.data[0], b"") + message.data[1:]
        except aiohttp.WSServerHandshakeError as error:
            reason = f"exec in pod {pod}: {error.message}"
            raise KubeError(f"{self._access.url}: {reason} ({error.status})", error.status, reason=reason) from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._no_answer(error) from None
        status = json.loads(channels.get(_STATUS_CHANNEL, b"{}") or b"{}")
        if status.get("status") != "Success":
            words = (
                channels.get(_ERROR_CHANNEL, b"").decode(errors="replace").strip()
                or status.get("message")
                or "it broke off"
            )
            raise KubeError(f"exec in pod {pod}: {words}", HTTPStatus.UNPROCESSABLE_ENTITY)
        return channels.get(_OUTPUT_CHANNEL, b"")

    async def read_path(self, path: str) -> dict[str, Any]:
        """What the API says at that path, such as `version`. Raises KubeError."""
        return await self._ask("GET", path, path)

    async def review(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a review, such as a SelfSubjectAccessReview, at that path. Raises KubeError."""
        return await self._ask("POST", path, path, body=body)

    async def retry(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Retry until there is an answer: waits out 429, 5xx and no connection. Raises KubeError for other refusals."""
        pauses = retry_pauses()
        while True:
            try:
                return await ask()
            except KubeError as error:
                if not error.passing:
                    raise
                await self.pause(pauses, error.after_s)

    async def own_pod(self, name: str) -> dict[str, Any]:
        """The pod that this process runs in, once it has an address; waits while the API is away. Raises KubeError.

        Containers may run before the kubelet has reported the address.
        """
        pauses = retry_pauses()
        while not ((pod := await self.retry(lambda: self.get("pods", name))).get("status") or {}).get("podIP"):
            await self.pause(pauses)
        return pod

    async def pause(self, pauses: Iterator[float], at_least_s: float = 0.0) -> None:
        """Wait before the next try."""
        await self._wait(max(next(pauses), at_least_s))

    def _path(self, kind: Kind, name: str = "") -> str:
        space = "" if kind in OF_NO_NAMESPACE else f"/namespaces/{self.namespace}"
        return f"{GROUPS[kind]}{space}/{kind.partition('.')[0]}{f'/{name}' if name else ''}"

    async def _ask(
        self,
        method: str,
        kind: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] = {},
        content: str = _MERGE_PATCH,
    ) -> dict[str, Any]:
        """`content`: the type of a patch."""
        try:
            async with self._open(method, path, body, query, content=content) as answer:
                await self._check_answer((method, kind), answer)
                return await answer.json()
        except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
            raise self._no_answer(error) from None

    def _no_answer(self, error: Exception) -> KubeError:
        was_sent = not isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
        reason = _connection_trouble(error)
        return KubeError(f"{self._access.url}: {reason}", reason=reason, sent=was_sent)

    async def _check_answer(self, request: tuple[str, str], answer: aiohttp.ClientResponse) -> None:
        """Raises KubeError for an answer from 400 on; `passing` if the request was allowed until just now."""
        if answer.status < 400:
            self._allowed[request] = None
            return
        error = await _refusal(answer, self._access.url)
        no_right = answer.status == HTTPStatus.FORBIDDEN and FORBIDDEN_USER.search(str(error))
        if (no_right or answer.status == HTTPStatus.UNAUTHORIZED) and request in self._allowed:
            since, now = self._allowed[request], self._clock()
            self._allowed[request] = now if since is None else since
            error.passing = since is None or now < since + ALLOWED_S
        raise error

    def _login_headers(self) -> Iterator[tuple[str, str]]:
        if account := self._access.authorization():
            yield "Authorization", account
        yield from self._access.impersonation

    def _socket(self, path: str, query: Iterable[tuple[str, str]]) -> Any:
        assert self._session, "used outside of `async with`"
        more: dict[str, Any] = {"headers": [*self._login_headers()]}
        more |= {"server_hostname": self._access.server_name} if self._access.server_name else {}
        more |= {"proxy": self._access.proxy} if self._access.proxy else {}
        return self._session.ws_connect(
            f"{self._access.url}/{path}", params=list(query), protocols=["v4.channel.k8s.io"], max_msg_size=0, **more
        )

    @asynccontextmanager
    async def _open(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] = {},
        limits: aiohttp.ClientTimeout | None = None,
        content: str = _MERGE_PATCH,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer; where the API refuses the login, that to a second request with a new one."""
        for may_renew in (True, False):
            async with self._request(method, path, body, query, limits, content) as answer:
                if answer.status == HTTPStatus.UNAUTHORIZED and may_renew and self._access.renew():
                    continue
                yield answer
                return

    def _request(
        self,
        method: str,
        path: str,
        body: Any,
        query: Mapping[str, str],
        limits: aiohttp.ClientTimeout | None,
        content: str,
    ) -> Any:
        assert self._session, "used outside of `async with`"
        headers = [("Accept", "application/json"), *self._login_headers()]
        headers += [("Content-Type", content)] if method == "PATCH" else []
        more: dict[str, Any] = {"timeout": limits} if limits else {}
        more |= {"server_hostname": self._access.server_name} if self._access.server_name else {}
        more |= {"proxy": self._access.proxy} if self._access.proxy else {}
        where = f"{self._access.url}/{path}"
        return self._session.request(method, where, params=query, json=body, headers=headers, **more)


def retry_pauses() -> Iterator[float]:
    """Seconds to wait before each further try of one request."""
    return backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)


def _connection_trouble(error: Exception) -> str:
    """Why there is no answer, without the objects that aiohttp wraps around it."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"TLS with it failed: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error
        return os.strerror(reason.errno) if reason.errno and reason.errno > 0 else str(reason.strerror or reason)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"no connection in {CONNECT_S:g} s"
    return str(error) or f"no answer in {ANSWER_S:g} s"


async def _refusal(answer: aiohttp.ClientResponse, where: str) -> KubeError:
    """The error in an answer from 400 on."""
    text = await answer.text()
    try:
        status = json.loads(text)
        message, kind = str(status["message"]), str((status.get("details") or {}).get("kind") or "")
    except (ValueError, KeyError, TypeError):
        message, kind = text[:200] or answer.reason or "no reason given", ""
    wish = answer.headers.get("Retry-After", "")
    after_s = float(wish) if wish.isdigit() else 0.0
    return KubeError(f"{where}: {message} ({answer.status})", answer.status, after_s, reason=message, kind=kind)


async def _lines(answer: aiohttp.ClientResponse, rest_too: bool = False) -> AsyncIterator[bytes]:
    """Lines of any length, not the empty ones. An incomplete last line is dropped; with `rest_too`, only of a broken
    stream."""
    rest = bytearray()
    async for part in answer.content.iter_any():
        rest += part
        *whole, last = bytes(rest).split(b"\n")
        rest = bytearray(last)
        for line in filter(None, whole):
            yield line
    if rest_too and rest:
        yield bytes(rest)

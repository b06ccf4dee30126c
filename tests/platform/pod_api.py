"""A small server that speaks the Kubernetes API as far as pods and Secrets of one namespace need it.

After Kubernetes' API concepts: Status objects for every no, resource versions, watches that go on from a version,
answer 410 when it is no longer kept and end after a while, deletion with a grace period and a UID precondition.
"""

import asyncio
import base64
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web

from tests.platform.blades import BladeOperator

Object = dict[str, Any]


class PodApi:
    """What is there, what becomes of it, and what was asked. `async with` gives its URL."""

    def __init__(self, namespace: str = "ml", token: str = "") -> None:
        self.namespace = namespace
        self.token = token
        self.pods: dict[str, Object] = {}
        self.secrets: dict[str, Object] = {}
        self.configmaps: dict[str, Object] = {}
        self.workflows: dict[str, Object] = {}
        self.nodes: dict[str, Object] = {}
        """The cluster's, of no namespace."""
        self.podgroups: dict[str, Object] = {}
        self.kinds = {"pods", "secrets", "configmaps", "workflows", "podgroups"}
        """What the server knows."""
        self.asked: list[tuple[str, str]] = []
        """(method, path below the namespace), watches as WATCH."""
        self.refuse: list[tuple[int, str]] = []
        """The next requests that are no watch are answered so: (status, message); 0: done, but the answer is lost."""
        self.on_patch: Callable[[str], object] = lambda _: None
        """What a controller does at once with the pod of that name when it was patched."""
        self.kubelet = True
        """Whether pods that are told to end do."""
        self.bodies: list[Object] = []
        self.executed: list[tuple[str, str, list[str]]] = []
        """(pod, container, command) of each exec."""
        self.execute: Callable[[list[str]], tuple[bytes, str]] = lambda _: (b"", "")
        """What a command prints, and why it failed; "": it did not."""
        self.beside: Callable[[Object, Object], tuple[str, Object]] = lambda *_: ("", {"waiting": {}})
        """What a container that is added to a pod (pod, container) has in its log, and its state."""
        self.logs: dict[tuple[str, str], str] = {}
        """By pod and container, of those that were added."""
        self.blades: BladeOperator | None = None
        """ChaosBlade's operator, if it is installed."""
        self._away = 0
        self._version = 10
        self._oldest = 0
        self._history: list[tuple[int, Object]] = []
        self._streams: list[asyncio.Queue[bytes | None]] = []
        self._changed = asyncio.Event()

    async def __aenter__(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/api/v1/namespaces/{namespace}/{kind}", self._all)
        app.router.add_route("*", "/api/v1/namespaces/{namespace}/{kind}/{name}", self._one)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}/exec", self._exec)
        app.router.add_patch("/api/v1/namespaces/{namespace}/pods/{name}/ephemeralcontainers", self._add_container)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}/log", self._log)
        app.router.add_route("*", "/api/v1/nodes/{name}", self._node)
        app.router.add_route("*", "/apis/chaosblade.io/v1alpha1/chaosblades", self._blade)
        app.router.add_route("*", "/apis/chaosblade.io/v1alpha1/chaosblades/{name}", self._blade)
        app.router.add_route("*", "/apis/{group}/{version}/namespaces/{namespace}/{kind}", self._all)
        app.router.add_route("*", "/apis/{group}/{version}/namespaces/{namespace}/{kind}/{name}", self._one)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def __aexit__(self, *_: object) -> None:
        self.end_streams()
        await self._runner.cleanup()

    def become(self, name: str, **status: Any) -> None:
        """A pod's new status."""
        self._tell("MODIFIED", {**self.pods[name], "status": status})

    def change(self, name: str, **spec: Any) -> None:
        """Some fields of a pod's spec are others now."""
        pod = self.pods[name]
        self._tell("MODIFIED", {**pod, "spec": {**pod["spec"], **spec}})

    def remove(self, name: str) -> None:
        """A pod is deleted at once, by whomever."""
        self._tell("DELETED", self.pods[name])

    def end_streams(self) -> None:
        """As the server does after a while."""
        for stream in self._streams:
            stream.put_nowait(None)

    def forget(self) -> None:
        """Versions before now are no longer kept."""
        self._oldest, self._history = self._version + 1, []
        self._version += 1

    @contextlib.contextmanager
    def away(self, status: int = 503) -> Iterator[None]:
        """It is starting: nobody is served, and nobody hears of what happens meanwhile until it is over."""
        self.end_streams()
        self._away = status
        yield
        self._away = 0

    async def until(self, true: Any, deadline_s: float = 60) -> None:
        """Until it is, looked at after each request and change; fails at the deadline."""
        async with asyncio.timeout(deadline_s):
            while not true():
                self._changed.clear()
                await self._changed.wait()

    def _tell(self, kind: str, pod: Object) -> None:
        self._version += 1
        pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self._version)}}
        name = pod["metadata"]["name"]
        if kind == "DELETED":
            self.pods.pop(name, None)
        else:
            self.pods[name] = pod
        event = {"type": kind, "object": pod}
        self._history.append((self._version, event))
        for stream in self._streams:
            stream.put_nowait(_line(event))
        self._changed.set()

    def _refusal(self, request: web.Request) -> web.Response | None:
        below = request.path.partition(f"/namespaces/{self.namespace}/")[2]
        watch = request.query.get("watch") == "true"
        self.asked.append(("WATCH" if watch else request.method, below))
        self._changed.set()
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return _no(401, "Unauthorized")
        if not below:
            return _no(403, "forbidden: no rights in that namespace")
        if self._away:
            return _no(self._away, "the API server is starting")
        if self.refuse and self.refuse[0][0] and not watch:
            return _no(*self.refuse.pop(0))
        return None

    def _there(self, kind: str) -> dict[str, Object] | None:
        """The objects of that kind; None: the server knows no such kind."""
        objects_there: dict[str, Object] | None = getattr(self, kind) if kind in self.kinds else None
        return objects_there

    async def _all(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refusal(request):
            return refusal
        there = self._there(request.match_info["kind"])
        if there is None:
            return _no(404, "the server could not find the requested resource")
        if request.method == "POST":
            return self._create(request, there, await request.json())
        key, equals, value = request.query["labelSelector"].partition("=")
        if request.query.get("watch") == "true":
            return await self._watch(request, int(request.query["resourceVersion"]), (key, value))
        pods = [
            pod
            for pod in there.values()
            if (pod["metadata"]["labels"].get(key) == value if equals else key in pod["metadata"]["labels"])
        ]
        return web.json_response({"items": pods, "metadata": {"resourceVersion": str(self._version)}})

    def _create(self, request: web.Request, there: dict[str, Object], body: Object) -> web.Response:
        self.bodies.append(body)
        name = body["metadata"]["name"]
        if name in there:
            return _no(409, f'{request.match_info["kind"]} "{name}" already exists')
        pod_stored = {**body, "metadata": {**body["metadata"], "uid": f"uid-{name}-{self._version}"}}
        if there is self.pods:
            self._tell("ADDED", {**pod_stored, "status": {"phase": "Pending"}})
        else:
            if text := pod_stored.pop("stringData", None):
                pod_stored["data"] = {key: base64.b64encode(text[key].encode()).decode() for key in text}
            there[name] = pod_stored
            self._changed.set()
        self._lose_answer(request)
        return web.json_response(there[name], status=201)

    def _lose_answer(self, request: web.Request) -> None:
        if self.refuse and not self.refuse[0][0]:
            self.refuse.pop(0)
            assert request.transport
            request.transport.abort()

    async def _one(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refusal(request):
            return refusal
        name = request.match_info["name"]
        there = self._there(request.match_info["kind"])
        if there is None or name not in there:
            return _no(404, f'"{name}" not found')
        if request.method == "GET":
            return web.json_response(there[name])
        body = await request.json()
        self.bodies.append(body)
        pod = there[name]
        if request.method == "PATCH":
            if body.get("metadata", {}).get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
                return _no(409, "the UID in the precondition does not match")
            version = pod["metadata"].get("resourceVersion")
            if body.get("metadata", {}).get("resourceVersion", version) != version:
                return _no(409, "the object has been modified; please apply your changes to the latest version")
            if there is self.pods:
                changed = _merge_patch(pod, body)
                if added := _gates(changed) - _gates(pod):
                    reason = f"only deletion is allowed, but found new scheduling gate '{min(added)}'"
                    return _no(422, f'Pod "{name}" is invalid: spec.schedulingGates: Forbidden: {reason}')
                self._tell("MODIFIED", changed)
                self.on_patch(name)
            else:
                self._version += 1
                change = {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": str(self._version)}}
                there[name] = _merge_patch(pod, change)
            self._lose_answer(request)
            return web.json_response(there[name])
        if body["preconditions"]["uid"] != pod["metadata"]["uid"]:
            return _no(409, "the UID in the precondition does not match")
        if there is not self.pods:
            return web.json_response(there.pop(name))
        self._tell("MODIFIED", {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
        if self.kubelet or body["gracePeriodSeconds"] == 0:
            self.remove(name)
        return web.json_response(pod)

    async def _node(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in self.nodes:
            return _no(403, f'nodes "{name}" is forbidden')
        if request.method == "PATCH":
            assert request.content_type == "application/merge-patch+json"
            change = await request.json()
            if self.refuse:
                return _no(*self.refuse.pop(0))
            version = str(self.nodes[name].get("metadata", {}).get("resourceVersion", ""))
            if change.get("metadata", {}).get("resourceVersion", version) != version:
                return _no(409, "the object has been modified")
            self.nodes[name]["spec"] |= change["spec"]
        return web.json_response(self.nodes[name])

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        if refusal := self._refusal(request):
            return refusal
        pod, query = request.match_info["name"], request.query
        self.executed.append((pod, query["container"], query.getall("command")))
        output, why = self.execute(query.getall("command"))
        socket = web.WebSocketResponse(protocols=["v4.channel.k8s.io"])
        await socket.prepare(request)
        await socket.send_bytes(b"\1" + output)
        await socket.send_bytes(b"\2" + why.encode())
        await socket.send_bytes(b"\3" + json.dumps({"status": "Failure" if why else "Success"}).encode())
        await socket.close()
        return socket

    async def _add_container(self, request: web.Request) -> web.Response:
        """A strategic merge: the container is added to those that there are. Its state is what `beside` says."""
        if refusal := self._refusal(request):
            return refusal
        assert request.content_type == "application/strategic-merge-patch+json"
        change, name = await request.json(), request.match_info["name"]
        pod = self.pods.get(name)
        if pod is None or change["metadata"]["uid"] != pod["metadata"]["uid"]:
            return _no(409 if pod else 404, f'"{name}" not found, or another one')
        (container,) = change["spec"]["ephemeralContainers"]
        containers = [*pod["spec"].get("ephemeralContainers", ()), container]
        self._tell("MODIFIED", {**pod, "spec": {**pod["spec"], "ephemeralContainers": containers}})
        self.logs[name, container["name"]], state = self.beside(pod, container)
        if name in self.pods:
            states = [*pod["status"].get("ephemeralContainerStatuses", ()), {"name": container["name"], "state": state}]
            self.become(name, **{**pod["status"], "ephemeralContainerStatuses": states})
        return web.json_response(self.pods.get(name, pod))

    async def _log(self, request: web.Request) -> web.Response:
        if refusal := self._refusal(request):
            return refusal
        return web.Response(text=self.logs[request.match_info["name"], request.query["container"]])

    async def _blade(self, request: web.Request) -> web.Response:
        if self.blades is None:
            return _no(404, "the server could not find the requested resource")
        status, answer = self.blades.answer(request.method, request.match_info.get("name", ""), await request.read())
        return web.json_response(answer, status=status)

    async def _watch(self, request: web.Request, version: int, label: tuple[str, str]) -> web.StreamResponse:
        if version < self._oldest:
            return _no(410, "too old resource version")
        response = web.StreamResponse()
        stream: asyncio.Queue[bytes | None] = asyncio.Queue()
        for when, event in self._history:
            if when > version:
                stream.put_nowait(_line(event))
        self._streams.append(stream)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while (line := await stream.get()) is not None:
                if json.loads(line)["object"]["metadata"]["labels"].get(label[0]) == label[1]:
                    await response.write(line)
        self._streams.remove(stream)
        return response


def _merge_patch(before: Object, change: Object) -> Object:
    """After RFC 7396; a null in a spec stays, as a test looks for it."""
    merged = dict(before)
    for key, value in change.items():
        if isinstance(value, dict) and key in ("metadata", "labels", "annotations", "spec", "data"):
            merged[key] = _merge_patch(before.get(key) or {}, value)
        elif value is None and key not in ("schedulingGates",):
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


def _gates(pod: Object) -> set[str]:
    return {gate["name"] for gate in pod["spec"].get("schedulingGates") or ()}


def _line(event: Object) -> bytes:
    return json.dumps(event).encode() + b"\n"


def _no(status: int, message: str) -> web.Response:
    body = {"kind": "Status", "status": "Failure", "message": message, "code": status}
    return web.json_response(body, status=status)

"""Two small servers over one set of workflows: the Kubernetes API for custom objects, and the Argo Server's REST API.

They answer as those projects document: Status objects and watch events one JSON object a line there; `{"code",
"message"}` errors and `data: {"result": ...}` events here. Nothing is timed: a watch sends a workflow's next state
when the one before has been sent.
"""

import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

BREAK = "break"
"""In a list of states: the stream is cut here, without an end."""
END = "end"
"""The other side ends the stream, in its own way, as each does after a while."""
DELETED = "deleted"
GRPC = {400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 500: 13, 503: 14}
"""The code in the body of an Argo Server's error, by HTTP status."""


@dataclass
class Cluster:
    """What both serve, and what they were asked."""

    namespace: str = "ml"
    states: list[Any] = field(default_factory=list)
    """What becomes of a workflow, one after the other: its `status`."""
    logs: dict[str, list[str]] = field(default_factory=dict)
    """By pod."""
    refuse: list[tuple[int, str]] = field(default_factory=list)
    """The next submissions are answered so: (status, message); 0: made, but the answer is lost."""
    torn: list[bool] = field(default_factory=list)
    """The next good answers break off in their bodies; whether their lengths are told."""
    page: str = ""
    """HTML with which something else answers in place of the Argo Server."""
    serves_argo: bool = True
    token: str = "secret-token"
    workflows: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    submitted: list[dict[str, Any]] = field(default_factory=list)
    config_maps: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)
    """Names of objects that are not there; of verbs, as `create pods`, that nobody may use; see `objects`."""
    before: Callable[[], object] = bool
    """Called before each review is answered."""
    hidden: bool = False
    """Nobody may look at what a namespace has."""
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By kind and name: what an object has that is not just there."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, workflow: dict[str, Any]) -> dict[str, Any]:
        """Take a new one in."""
        name = workflow["metadata"]["name"]
        metadata = {**workflow["metadata"], "uid": f"uid-{len(self.workflows)}", "resourceVersion": "1"}
        self.workflows[name] = {**workflow, "metadata": metadata}
        return self.workflows[name]

    def events(self, name: str) -> Iterator[dict[str, Any] | str]:
        """A watch of one workflow: as it is, then what becomes of it."""
        if name not in self.workflows:
            return
        yield {"type": "ADDED", "object": self.workflows[name]}
        while True:
            with self.lock:
                if not self.states:
                    return
                state = self.states.pop(0)
                if state is DELETED:
                    workflow = self.workflows.pop(name)
                    yield {"type": "DELETED", "object": workflow}
                    return
                if state not in (BREAK, END):
                    self.workflows[name] = {**self.workflows[name], "status": state}
            if state in (BREAK, END):
                yield state
                return
            yield {"type": "MODIFIED", "object": self.workflows[name]}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's word
        """Say nothing."""

    def do_GET(self) -> None:
        """A request without a body."""
        self._ask({})

    def do_POST(self) -> None:
        """A request with a JSON body."""
        self._ask(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def do_PATCH(self) -> None:
        """As a POST."""
        self.do_POST()

    def do_PUT(self) -> None:
        """As a POST."""
        self.do_POST()

    def do_DELETE(self) -> None:
        """As a POST."""
        self.do_POST()

    def _ask(self, body: dict[str, Any]) -> None:
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        self.cluster.asked.append((self.command, url.path, query))
        if self.headers.get("Authorization") != f"Bearer {self.cluster.token}":
            self.no(401, "Unauthorized")
        else:
            self.answer(url.path.strip("/").split("/"), query, body)

    def answer(self, path: list[str], query: dict[str, str], body: dict[str, Any]) -> None:
        raise NotImplementedError

    def no(self, status: int, message: str, kind: str = "") -> None:
        raise NotImplementedError

    def yes(self, value: Any, status: int = 200, content: str = "application/json") -> None:
        """A whole answer."""
        text = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        is_torn = bool(self.cluster.torn) and status < 300
        self.close_connection |= is_torn
        self.send_response(status)
        self.send_header("Content-Type", content)
        if not is_torn or self.cluster.torn.pop(0):
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text[: len(text) // 2] if is_torn else text)

    def stream(self, parts: Iterator[bytes | str], content: str) -> None:
        """A chunked answer; BREAK cuts the connection."""
        self.send_response(200)
        self.send_header("Content-Type", content)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in parts:
            if isinstance(part, str):
                self.close_connection = True
                self.connection.close()
                return
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def submit(self, namespace: str, workflow: dict[str, Any], status_code: int) -> None:
        """Make a workflow, or refuse to."""
        cluster = self.cluster
        cluster.submitted.append(workflow)
        refusal = cluster.refuse.pop(0) if cluster.refuse else None
        if refusal and refusal[0]:
            return self.no(*refusal)
        if namespace != cluster.namespace:
            return self.no(404, f'namespaces "{namespace}" not found', "namespaces")
        name = workflow["metadata"]["name"]
        if name in cluster.workflows:
            return self.no(409, f'workflows.argoproj.io "{name}" already exists', "workflows")
        there = cluster.add(workflow)
        if refusal:
            self.close_connection = True
            return self.connection.close()
        return self.yes(there, status_code)

    def one(self, name: str) -> None:
        """A workflow as it is."""
        if name not in self.cluster.workflows:
            return self.no(404, f'workflows.argoproj.io "{name}" not found', "workflows")
        return self.yes(self.cluster.workflows[name])


class KubeApi(_Handler):
    """The Kubernetes API, as far as a client of custom objects and pod logs sees it."""

    def no(self, status: int, message: str, kind: str = "") -> None:
        """A Status object."""
        details = {"kind": kind, "group": "argoproj.io"} if kind else {}
        self.yes(
            {"kind": "Status", "status": "Failure", "message": message, "code": status, "details": details}, status
        )

    def answer(self, path: list[str], query: dict[str, str], body: dict[str, Any]) -> None:
        """One request."""
        match path:
            case ["apis", "argoproj.io", *_] if not self.cluster.serves_argo:
                self.yes("404 page not found\n", 404, "text/plain")
            case ["apis", "argoproj.io", "v1alpha1"]:
                self.yes({"kind": "APIResourceList", "groupVersion": "argoproj.io/v1alpha1", "resources": []})
            case ["apis", "argoproj.io", "v1alpha1", "namespaces", namespace, "workflows"]:
                if self.command == "POST":
                    self.submit(namespace, body, 201)
                elif "fieldSelector" not in query:
                    self.yes({"metadata": {"resourceVersion": "1"}, "items": list(self.cluster.workflows.values())})
                else:
                    name = query["fieldSelector"].removeprefix("metadata.name=")
                    events = self.cluster.events(name)
                    lines = (e if isinstance(e, str) else json.dumps(e).encode() + b"\n" for e in events if e != END)
                    self.stream(lines, "application/json")
            case ["apis", "argoproj.io", "v1alpha1", "namespaces", _, "workflows", name] if self.command == "PATCH":
                self.cluster.workflows[name] = merge(self.cluster.workflows[name], body)
                self.one(name)
            case ["apis", "argoproj.io", "v1alpha1", "namespaces", _, "workflows", name]:
                self.one(name)
            case ["api", "v1", "namespaces", _, "configmaps"]:
                key = query["labelSelector"]
                config_maps = [
                    config_map
                    for config_map in self.cluster.config_maps.values()
                    if key in config_map["metadata"]["labels"]
                ]
                self.yes({"kind": "ConfigMapList", "apiVersion": "v1", "metadata": {}, "items": config_maps})
            case ["api", "v1", "namespaces", _, "configmaps", name] if self.command == "PATCH":
                self.cluster.config_maps[name]["data"] |= body["data"]
                self.yes(self.cluster.config_maps[name])
            case ["api", "v1", "namespaces", _, "pods", name] if self.command == "DELETE":
                self.cluster.pods = [pod for pod in self.cluster.pods if pod["metadata"]["name"] != name]
                self.yes({"kind": "Status", "status": "Success"})
            case ["api", "v1", "namespaces", _, "pods"] if "list pods" in self.cluster.missing:
                self.no(403, 'pods is forbidden: User "u" cannot list resource "pods"', "pods")
            case ["api", "v1", "namespaces", _, "pods"]:
                key, _, value = query["labelSelector"].partition("=")
                labels = [pod["metadata"]["labels"] for pod in self.cluster.pods]
                pods = [
                    pod
                    for pod, own in zip(self.cluster.pods, labels, strict=True)
                    if key in own and value in ("", own[key])
                ]
                self.yes({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods})
            case ["api", "v1", "namespaces", _, "pods", pod, "log"]:
                if pod not in self.cluster.logs:
                    self.no(404, f'pods "{pod}" not found', "pods")
                else:
                    tail = self.cluster.logs[pod][-int(query.get("tailLines", 1000)) :]
                    self.stream((f"{line}\n".encode() for line in tail), "text/plain")
            case ["apis", "authorization.k8s.io", "v1", *_, "selfsubjectaccessreviews" | "localsubjectaccessreviews"]:
                self.cluster.before()
                attributes = body["spec"]["resourceAttributes"]
                right = f"{attributes['verb']} {attributes['resource']}"
                self.yes({"kind": body["kind"], "status": {"allowed": right not in self.cluster.missing}}, 201)
            case [*_, kind, name] if kind in OBJECTS or name in LISTS or kind in GROUPS:
                self.thing(kind, name)
            case _:
                self.no(404, "the server could not find the requested resource")

    def thing(self, kind: str, name: str) -> None:
        """An object, or a list, that is there unless it is missing."""
        self.cluster.before()
        if self.cluster.hidden:
            return self.no(403, f'{kind} is forbidden: User "u" cannot get', kind)
        if name in self.cluster.missing or (kind in RARE and f"{kind}/{name}" not in self.cluster.objects):
            return self.no(404, f'{kind} "{name}" not found', kind)
        usual = {"data": dict.fromkeys(KEYS, "eA=="), "type": "kubernetes.io/dockerconfigjson"}
        object_known = self.cluster.objects.get(name if name in LISTS else f"{kind}/{name}", usual)
        return self.yes({"kind": kind, "metadata": {"name": name}, **object_known})


def merge(whole: Any, change: Any) -> Any:
    """The whole after a JSON merge patch (RFC 7396)."""
    if not isinstance(change, dict):
        return change
    whole = whole if isinstance(whole, dict) else {}
    merged = {key: merge(whole.get(key), value) for key, value in change.items() if value is not None}
    return {key: value for key, value in whole.items() if key not in change} | merged


OBJECTS = (
    "serviceaccounts", "secrets", "priorityclasses", "workflowtemplates", "namespaces", "configmaps", "services",
    "nodes",
)  # fmt: skip
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL")
RARE = ("configmaps", "nodes")
"""Kinds of which there are only those that a test makes."""
LISTS = ("resourcequotas", "endpointslices")
GROUPS = ("scheduling.volcano.sh", "scheduling.x-k8s.io")


class ArgoApi(_Handler):
    """The Argo Server, as far as submission sees it."""

    def no(self, status: int, message: str, kind: str = "") -> None:
        """A gateway's error."""
        self.yes({"code": GRPC.get(status, 2), "message": message}, status)

    def answer(self, path: list[str], query: dict[str, str], body: dict[str, Any]) -> None:
        """One request."""
        match path:
            case _ if self.cluster.page:
                self.yes(self.cluster.page, content="text/html")
            case ["api", "v1", "info"]:
                self.yes({"managedNamespace": self.cluster.namespace, "links": []})
            case ["api", "v1", "workflows", _] if self.command == "GET":
                self.yes({"items": list(self.cluster.workflows.values()) or None})
            case ["api", "v1", "workflows", _, name, "stop" | "terminate" | "retry" as verb]:
                self.cluster.workflows[name]["spec"] = {"shutdown": verb.capitalize()}
                self.one(name)
            case ["api", "v1", "workflows", namespace]:
                self.submit(namespace, body["workflow"], 200)
            case ["api", "v1", "workflows", _, name]:
                self.one(name)
            case ["api", "v1", "workflow-events", _]:
                events = self.cluster.events(query["listOptions.fieldSelector"].removeprefix("metadata.name="))
                parts = (_event(e) if isinstance(e, dict) else WATCH_ENDED if e == END else e for e in events)
                self.stream(parts, "text/event-stream")
            case ["api", "v1", "workflows", _, _, "log"]:
                pod = query["podName"]
                lines = self.cluster.logs.get(pod, [])[-int(query.get("logOptions.tailLines", 1000)) :]
                self.stream((_event({"content": line, "podName": pod}) for line in lines), "text/event-stream")
            case _:
                self.no(404, "Not Found")


WATCH_ENDED = b'data: {"error": {"grpc_code": 8, "http_code": 429, "message": "EOF"}}\n\n'


def _event(value: Any) -> bytes:
    return b"data: " + json.dumps({"result": value}).encode() + b"\n\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has gone."""
        if not isinstance(sys.exception(), ConnectionError | ssl.SSLError):
            super().handle_error(request, client_address)


class Served:
    """A server in this process: `with Served(KubeApi, cluster) as url`."""

    def __init__(self, kind: type[_Handler], cluster: Cluster, tls: ssl.SSLContext | None = None) -> None:
        handler = type(kind.__name__, (kind,), {"cluster": cluster})
        self._server = _Server(("127.0.0.1", 0), handler)
        if tls:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

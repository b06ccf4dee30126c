"""The route through the Argo Server: Hera's WorkflowsService, and the server's event streams, which Hera cannot read.

After the Argo Server's REST API (`/api/v1/workflows/{namespace}`, `/api/v1/workflow-events/{namespace}`, `.../log`:
each event a line `data: {"result": ...}`) and the argo command's environment variables (ARGO_SERVER, ARGO_SECURE,
ARGO_INSECURE_SKIP_VERIFY, ARGO_TOKEN, ARGO_BASE_HREF, ARGO_NAMESPACE).
"""

import json
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import requests
from hera.workflows import WorkflowsService, models
from pydantic import ValidationError
from urllib3.exceptions import InsecureRequestWarning

from everstep.runtime.submission.route import (
    ANSWER_S,
    CONNECT_S,
    SILENCE_S,
    ApiError,
    PodLog,
    Trouble,
    trouble_for_status,
)

FALSE = ("", "0", "false", "no", "off")
LIST_OF_ONE = "listOptions.fieldSelector"
END_OF_WATCH = 429
"""An error in a stream with this code says that the server's own watch has ended, as each does after a while."""


def server_url(environment: Mapping[str, str]) -> str:
    """The server's base URL, with a slash at its end: ARGO_SERVER is `host:port`, or a URL."""
    server = environment["ARGO_SERVER"].strip().rstrip("/")
    if "://" not in server:
        secure = environment.get("ARGO_SECURE", "true").lower() not in FALSE
        server = f"{'https' if secure else 'http'}://{server}"
    base = environment.get("ARGO_BASE_HREF", "").strip("/")
    return f"{server}/{base}/" if base else f"{server}/"


class ArgoServer:
    """A Route."""

    sees_nodes = False

    def __init__(self, environment: Mapping[str, str], namespace: str) -> None:
        """Asks the server for the namespace it manages when none is given. Raises ApiError."""
        self._url = server_url(environment)
        self.where = self._url.rstrip("/")
        skip = environment.get("ARGO_INSECURE_SKIP_VERIFY", "").lower() not in FALSE
        if skip and self._url.startswith("https"):  # Otherwise every request warns.
            warnings.filterwarnings("ignore", category=InsecureRequestWarning)
            print(f"{self.where}: its certificate is not checked (ARGO_INSECURE_SKIP_VERIFY)", file=sys.stderr)
        self._service = WorkflowsService(
            host=self._url,
            verify_ssl=not skip,
            token=environment.get("ARGO_TOKEN", "").strip() or None,
            session=_Session(self.where),
        )
        with _explain_no_json(self.where):
            self.namespace = namespace or self._service.get_info().managed_namespace or "default"

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """See Route."""
        request = models.WorkflowCreateRequest(workflow=models.Workflow.model_validate(manifest))
        try:
            with _explain_no_json(self.where):
                workflow_created = self._service.create_workflow(request, namespace=self.namespace)
        except ValidationError:  # It was made; a newer server says more of it than Hera's models know.
            return self.get(manifest["metadata"]["name"])
        return json.loads(workflow_created.model_dump_json(by_alias=True, exclude_none=True))

    def get(self, name: str) -> dict[str, Any]:
        """See Route. What Hera's models do not know would be lost in them: the answer as it is."""
        return self._get_json(f"api/v1/workflows/{self.namespace}/{name}")

    def workflows(self) -> list[dict[str, Any]]:
        """See Route."""
        return self._get_json(f"api/v1/workflows/{self.namespace}").get("items") or []

    def end(self, name: str, verb: Literal["stop", "terminate"]) -> None:
        """See Route."""
        self._put(name, verb)

    def retry(self, name: str) -> None:
        """See Route."""
        self._put(name, "retry")

    def changes(self, name: str) -> Iterator[dict[str, Any]]:
        """See Route."""
        where = f"api/v1/workflow-events/{self.namespace}"
        for event in self._stream_results(where, {LIST_OF_ONE: f"metadata.name={name}"}):
            if event.get("type") == "DELETED":
                raise ApiError(Trouble.NOT_FOUND, f"workflow {name} was deleted while it was watched")
            if "object" in event:
                yield event["object"]

    def log(
        self, workflow: str, pod: str, *, container: str = "main", follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """See Route."""
        query: dict[str, Any] = {"podName": pod, "logOptions.container": container}
        if follow:
            query["logOptions.follow"] = "true"
        if tail is not None:
            query["logOptions.tailLines"] = str(tail)
        for entry in self._stream_results(f"api/v1/workflows/{self.namespace}/{workflow}/log", query):
            if entry.get("podName", pod) == pod:
                yield str(entry.get("content", "")).rstrip("\n")

    def node_logs(self, workflow: str) -> list[PodLog]:
        """See Route. It shows the logs of pods with Argo's labels only."""
        return []

    def link(self, name: str) -> str:
        """See Route."""
        return f"{self._url}workflows/{self.namespace}/{name}"

    def _put(self, name: str, verb: str) -> None:
        body = {"name": name, "namespace": self.namespace}
        self._request(f"api/v1/workflows/{self.namespace}/{name}/{verb}", {}, stream=False, body=body)

    def _get_json(self, path: str) -> dict[str, Any]:
        with _explain_no_json(self.where):
            return self._request(path, {}, stream=False).json()

    def _request(
        self, path: str, query: Mapping[str, Any], stream: bool, body: Mapping[str, Any] | None = None
    ) -> requests.Response:
        headers = {"Accept": "text/event-stream" if stream else "application/json"}
        if self._service.token:
            headers["Authorization"] = self._service.token
        return self._service.session.request(
            "get" if body is None else "put",
            f"{self._url}{path}",
            params=query,
            json=body,
            headers=headers,
            verify=self._service.verify_ssl,
            stream=stream,
            timeout=(CONNECT_S, SILENCE_S if stream else ANSWER_S),
        )

    def _stream_results(self, path: str, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The results of a stream. A stream that breaks off, or is silent for long, ends."""
        with self._request(path, query, stream=True) as response:
            try:
                for line in response.iter_lines(chunk_size=1):
                    if not line.startswith(b"data:"):
                        continue
                    event = json.loads(line.removeprefix(b"data:"))
                    if isinstance(problem := event.get("error"), dict):
                        status = int(problem.get("http_code") or 500)
                        if status == END_OF_WATCH:
                            return
                        raise ApiError(trouble_for_status(status), f"{self.where}: {problem.get('message') or status}")
                    yield event.get("result") or {}
            except (requests.RequestException, json.JSONDecodeError):  # A line may be cut, too.
                return


class _Session(requests.Session):
    """Where every request of Hera's service passes: time limits, and one line for whatever goes wrong."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.trust_env = True
        self._where = where

    def request(self, *args: Any, **options: Any) -> requests.Response:
        """Raises ApiError for no answer and for every answer from 400 on."""
        options.setdefault("timeout", (CONNECT_S, ANSWER_S))
        try:
            response = super().request(*args, **options)
            if response.status_code >= 400:
                with response:
                    raise ApiError(*_explain(self._where, response))
        except requests.exceptions.SSLError as error:
            raise ApiError(
                Trouble.OTHER,
                f"{self._where}: TLS with it failed ({_innermost_reason(error)}); ARGO_SECURE=false for a server "
                "without TLS, REQUESTS_CA_BUNDLE for its own authority, "
                "ARGO_INSECURE_SKIP_VERIFY=true to trust it unchecked",
            ) from None
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
            raise ApiError(Trouble.OTHER, f"ARGO_SERVER: {error}; write host:port or a URL") from None
        except requests.ConnectTimeout:
            raise ApiError(
                Trouble.UNREACHABLE, _unreachable_text(self._where, f"no answer in {CONNECT_S:g} s")
            ) from None
        except requests.Timeout:
            raise ApiError(Trouble.LOST, f"{self._where}: no answer in {ANSWER_S:g} s") from None
        except requests.ConnectionError as error:
            why = _innermost_reason(error)
            before = "Connection refused" in why or "resolve" in why or "Name or service" in why
            trouble = Trouble.UNREACHABLE if before else Trouble.LOST
            raise ApiError(trouble, _unreachable_text(self._where, why)) from None
        except (requests.exceptions.ChunkedEncodingError, requests.exceptions.ContentDecodingError) as error:
            raise ApiError(Trouble.LOST, f"{self._where}: its answer broke off ({_innermost_reason(error)})") from None
        except requests.exceptions.InvalidHeader:  # Its text has the token in it.
            raise ApiError(Trouble.OTHER, "ARGO_TOKEN cannot be sent: is there a line break in it?") from None
        except requests.RequestException as error:
            raise ApiError(Trouble.OTHER, f"{self._where}: {error}; is ARGO_SERVER right?") from None
        return response


@contextmanager
def _explain_no_json(where: str) -> Iterator[None]:
    """Turn an answer that is no JSON into an ApiError: it broke off, or it is a page of whatever is there instead."""
    try:
        yield
    except requests.exceptions.JSONDecodeError as error:
        if error.doc.lstrip().startswith("{"):
            raise ApiError(Trouble.LOST, f"{where}: its answer broke off") from None
        text = f"{where}: no Argo Server's API there (its answer is no JSON); see ARGO_SERVER and ARGO_BASE_HREF"
        raise ApiError(Trouble.OTHER, text) from None


def _unreachable_text(where: str, why: str) -> str:
    return f"{where} cannot be reached ({why}); is ARGO_SERVER right, and a port-forward to it open?"


def _innermost_reason(error: BaseException) -> str:
    """The reason at the bottom, without the objects that requests and urllib3 wrap around it."""
    errors_visited: set[int] = set()
    while (below := error.__cause__ or error.__context__) is not None and id(below) not in errors_visited:
        errors_visited.add(id(error))
        error = below
    return str(getattr(error, "strerror", None) or error)


def _explain(where: str, response: requests.Response) -> tuple[Trouble, str]:
    """What an answer from 400 on means, and how to fix it."""
    try:
        status_object = response.json()
        why = str(status_object.get("message") or "") if isinstance(status_object, dict) else ""
    except ValueError:
        why = response.text[:200]
    status = response.status_code
    trouble = trouble_for_status(status)
    why = why or response.reason or "no reason given"
    if trouble is Trouble.UNAUTHORIZED:
        return trouble, f"{where}: {why} (401); set ARGO_TOKEN to 'Bearer ' and a valid token (`argo auth token`)"
    if trouble is Trouble.FORBIDDEN:
        return trouble, f"{where}: {why} (403); the token's service account needs that right there, see --namespace"
    if trouble is Trouble.NOT_FOUND and "namespace" in why:
        return Trouble.NO_NAMESPACE, f"{where}: {why} (404); choose another --namespace"
    if trouble is Trouble.NOT_FOUND and not ("workflow" in why or "pod" in why):
        return trouble, f"{where}: no Argo Server's API there ({why}, 404); see ARGO_SERVER and ARGO_BASE_HREF"
    return trouble, f"{where}: {why} ({status})"

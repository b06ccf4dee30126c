"""The route through the Kubernetes API: the Workflow as a custom object, through the kubernetes client.

After Kubernetes' API conventions (Status objects, watch events one JSON object a line) and kubectl's search for a
configuration: KUBECONFIG, ~/.kube/config, then the pod's own service account.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError, NewConnectionError, ReadTimeoutError

from everstep.runtime.submission.kube_files import config_files
from everstep.runtime.submission.route import ANSWER_S, CONNECT_S, SILENCE_S, ApiError, Trouble, trouble_for_status

GROUP, VERSION, PLURAL = "argoproj.io", "v1alpha1", "workflows"
STREAM_S = 240
"""How long the API server may keep a stream open."""
ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class CustomResource:
    """A Route."""

    def __init__(self, environment: Mapping[str, str], namespace: str) -> None:
        """Reads the configuration; asks nothing yet. Raises ApiError when there is none that can be read."""
        settings = client.Configuration()
        own, context = _load_config(environment, settings)
        settings.retries = False  # type: ignore[assignment]
        self.namespace = namespace or own or "default"
        self.where = f"kube context {context}" if context else "this pod's cluster"
        self._context = context
        api = client.ApiClient(settings)
        self._api = api
        self._objects = client.CustomObjectsApi(api)
        self._core = client.CoreV1Api(api)

    def serves_argo(self) -> bool:
        """Whether the cluster knows Argo's Workflows. Raises ApiError when it does not answer that."""
        try:
            self._call(self._objects.get_api_resources, GROUP, VERSION)
        except ApiError as error:
            if error.trouble in (Trouble.NOT_FOUND, Trouble.NO_CRD):
                return False
            raise
        return True

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """See Route."""
        return self._call(
            self._objects.create_namespaced_custom_object, GROUP, VERSION, self.namespace, PLURAL, manifest
        )

    def get(self, name: str) -> dict[str, Any]:
        """See Route."""
        return self._call(self._objects.get_namespaced_custom_object, GROUP, VERSION, self.namespace, PLURAL, name)

    def changes(self, name: str) -> Iterator[dict[str, Any]]:
        """See Route."""
        stream = self._call(
            self._objects.list_namespaced_custom_object, GROUP, VERSION, self.namespace, PLURAL,
            field_selector=f"metadata.name={name}", watch=True, timeout_seconds=STREAM_S, _preload_content=False,
            _request_timeout=(CONNECT_S, SILENCE_S),
        )  # fmt: skip
        for line in _stream_lines(stream):
            event = json.loads(line)
            if event["type"] == "DELETED":
                raise ApiError(Trouble.NOT_FOUND, f"workflow {name} was deleted while it was watched")
            if event["type"] == "ERROR":  # Gone (410): what was asked for is no longer kept; the stream is opened anew.
                return
            if event["type"] != "BOOKMARK":
                yield event["object"]

    def log(self, workflow: str, pod: str, *, follow: bool = False, tail: int | None = None) -> Iterator[str]:
        """See Route."""
        asked: dict[str, Any] = {"container": "main", "follow": follow}
        if tail is not None:
            asked["tail_lines"] = tail
        stream = self._call(
            self._core.read_namespaced_pod_log, pod, self.namespace, _preload_content=False,
            _request_timeout=(CONNECT_S, SILENCE_S), **asked,
        )  # fmt: skip
        yield from (line.decode(errors="replace") for line in _stream_lines(stream))

    def config_maps(self, selector: str) -> list[dict[str, Any]]:
        """Those of the namespace with these labels. Raises ApiError."""
        return self._list(self._core.list_namespaced_config_map, selector)

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Those of the namespace with these labels. Raises ApiError."""
        return self._list(self._core.list_namespaced_pod, selector)

    def _list(self, ask: Any, selector: str) -> list[dict[str, Any]]:
        found: Any = self._api.sanitize_for_serialization(self._call(ask, self.namespace, label_selector=selector))
        return found["items"]

    def edit_config_map(self, name: str, data: Mapping[str, str]) -> None:
        """Give these keys these texts. Raises ApiError."""
        self._call(self._core.patch_namespaced_config_map, name, self.namespace, {"data": dict(data)})

    def link(self, name: str) -> str:
        """See Route. The API knows no URL of a user interface."""
        return (
            f"kubectl{f' --context {self._context}' if self._context else ''} -n {self.namespace} get workflow {name}"
        )

    def _call(self, ask: Any, *args: Any, **options: Any) -> Any:
        """Ask, with a time limit. Raises ApiError."""
        options.setdefault("_request_timeout", (CONNECT_S, ANSWER_S))
        try:
            return ask(*args, **options)
        except ApiException as error:
            raise ApiError(*_explain(self.where, self.namespace, error)) from None
        except ReadTimeoutError:
            raise ApiError(Trouble.LOST, f"{self.where}: no answer in {ANSWER_S:g} s") from None
        except HTTPError as error:
            reason = getattr(error, "reason", None) or error
            before = isinstance(reason, NewConnectionError) or "timed out" in str(reason)
            said = str(reason).rpartition(": ")[2]
            host = self._api.configuration.host
            raise ApiError(
                Trouble.UNREACHABLE if before else Trouble.LOST,
                f"{self.where} cannot be reached at {host} ({said}); is the cluster up? `kubectl cluster-info`",
            ) from None


def _load_config(environment: Mapping[str, str], settings: client.Configuration) -> tuple[str, str]:
    """Fill the settings; returns (namespace or "", context or "" in a pod)."""
    files = config_files(environment)
    try:
        if not files:
            config.load_incluster_config(client_configuration=settings)
            own = ACCOUNT_NAMESPACE.read_text().strip() if ACCOUNT_NAMESPACE.exists() else ""
            return own, ""
        paths = os.pathsep.join(map(str, files))
        _, current = config.list_kube_config_contexts(config_file=paths)
        config.load_kube_config(config_file=paths, client_configuration=settings)
    except config.ConfigException as error:
        named = ", ".join(map(str, files))
        if named:
            raise ApiError(Trouble.OTHER, f"{named}: {error}; `kubectl config get-contexts` shows it") from None
        raise ApiError(
            Trouble.OTHER,
            "cannot find an Argo: set ARGO_SERVER (and ARGO_TOKEN), or KUBECONFIG to a kube config "
            "(there is no ~/.kube/config, and this is not a pod)",
        ) from None
    return current["context"].get("namespace") or "", current["name"]


def _stream_lines(stream: Any) -> Iterator[bytes]:
    """A stream's lines, as they come. A stream that breaks off, or is silent for long, ends."""
    rest = b""
    try:
        for part in stream.stream(65536, decode_content=True):
            *whole, rest = (rest + part).split(b"\n")
            yield from filter(None, whole)
    except HTTPError:
        return
    finally:
        stream.release_conn()
    if rest:
        yield rest


def _explain(where: str, namespace: str, error: ApiException) -> tuple[Trouble, str]:
    """What an answer from 400 on means, and how to mend it."""
    status = error.status or 0
    if not status:
        return Trouble.OTHER, f"{where}: no TLS with it ({error.reason})"
    try:
        status_object = json.loads(error.body or "")
        said, kind = str(status_object["message"]), str((status_object.get("details") or {}).get("kind") or "")
    except (ValueError, KeyError, TypeError):
        said, kind = str(error.body or error.reason or "no reason given")[:200], ""
    trouble = trouble_for_status(status)
    if trouble is Trouble.UNAUTHORIZED:
        return trouble, f"{where}: {said} (401); its credentials are not valid (or no longer valid): log in again"
    if trouble is Trouble.FORBIDDEN:
        return trouble, f"{where}: {said} (403); you need that right in namespace {namespace}, see --namespace"
    if trouble is Trouble.NOT_FOUND and kind == "namespaces":
        return Trouble.NO_NAMESPACE, f"{where}: {said} (404); choose another --namespace"
    if trouble is Trouble.NOT_FOUND and not kind:
        return Trouble.NO_CRD, f"{where}: it does not know Workflows (404); install Argo Workflows, or --target local"
    return trouble, f"{where}: {said} ({status})"

"""The route through the Kubernetes API: the Workflow as a custom object, asked for with the one Kubernetes client."""

import time
from collections.abc import Callable, Container, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from everstep.runtime.platform.kubernetes.api import ARGO, KubeApi, KubeError
from everstep.runtime.platform.kubernetes.pods import NAME, NODE, has_ended
from everstep.runtime.submission.kube_config import read_access
from everstep.runtime.submission.loop_thread import LoopThread
from everstep.runtime.submission.needs import Needs
from everstep.runtime.submission.overdue_pods import run_selector
from everstep.runtime.submission.preflight import Finding, examine
from everstep.runtime.submission.retry_patch import formulate
from everstep.runtime.submission.route import ApiError, PodLog, Trouble, trouble_for_status

T = TypeVar("T")
GRACE_S = 30
"""What a pod gets to end that is deleted for a retry."""
GONE_S = 90.0
POLL_S = 0.3


class CustomResource:
    """A Route."""

    sees_nodes = True

    def __init__(self, environment: Mapping[str, str], namespace: str) -> None:
        """Reads the configuration; asks nothing yet. Raises ApiError when there is none that can be read."""
        access, context = read_access(environment, namespace)
        self.namespace = access.namespace
        self.where = f"kube context {context}" if context else "this pod's cluster"
        self._context = context
        self._url = access.url
        self._loop = LoopThread()
        self._api = self._loop.enter(KubeApi(access))

    def serves_argo(self) -> bool:
        """Whether the cluster knows Argo's Workflows. Raises ApiError when it does not answer that."""
        try:
            self.ask(lambda api: api.read_path(ARGO))
        except ApiError as error:
            if error.trouble in (Trouble.NOT_FOUND, Trouble.NO_CRD):
                return False
            raise
        return True

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """See Route."""
        return self.ask(lambda api: api.create("workflows", manifest))

    def get(self, name: str) -> dict[str, Any]:
        """See Route."""
        return self.ask(lambda api: api.get("workflows", name))

    def workflows(self) -> list[dict[str, Any]]:
        """See Route."""
        return self.ask(lambda api: api.list("workflows", ""))[0]

    def end(self, name: str, verb: Literal["stop", "terminate"]) -> None:
        """See Route. What Argo's own command writes."""
        self.ask(lambda api: api.patch("workflows", name, {"spec": {"shutdown": verb.capitalize()}}))

    def retry(self, name: str) -> None:
        """See Route. What Argo's own command does."""
        workflow = self.get(name)
        if not (workflow.get("status") or {}).get("nodes"):
            raise ApiError(
                Trouble.OTHER,
                f"workflow {name}: its steps are not in it, as they are too many or none has begun; only an Argo "
                f"Server retries it: set ARGO_SERVER, or `argo -n {self.namespace} retry {name}`",
            )
        _, pods = formulate(workflow, _argo_time())
        self._delete_pods(name, pods)
        change, _ = formulate(self.get(name), _argo_time())
        self.ask(lambda api: api.patch("workflows", name, change))

    def _delete_pods(self, workflow: str, names: Container[str]) -> None:
        """Delete these pods of the Workflow and wait until they are gone: Argo would take them for those of the retry.

        Raises ApiError.
        """
        deadline = time.monotonic() + GONE_S
        deleted = set[str]()
        while pods := [pod for pod in self.pods(run_selector(workflow)) if pod["metadata"]["name"] in names]:
            for metadata in (pod["metadata"] for pod in pods):
                if metadata["uid"] not in deleted:
                    deleted.add(metadata["uid"])
                    self._delete_pod(metadata["name"], metadata["uid"])
            if time.monotonic() > deadline:
                name = pods[0]["metadata"]["name"]
                raise ApiError(Trouble.OTHER, f"pod {name} has not ended within {GONE_S:g} s; retry again when it has")
            time.sleep(POLL_S)

    def _delete_pod(self, name: str, uid: str) -> None:
        """Raises ApiError, but not for one that is gone."""
        try:
            self.ask(lambda api: api.delete("pods", name, uid, GRACE_S))
        except ApiError as error:
            if error.trouble not in (Trouble.NOT_FOUND, Trouble.EXISTS):
                raise

    def changes(self, name: str) -> Iterator[dict[str, Any]]:
        """See Route. A stream that breaks off is opened again."""
        has_begun = False
        try:
            for event in self._loop.items(self._api.watch_one("workflows", name)):
                has_begun = True
                if event["type"] == "DELETED":
                    raise ApiError(Trouble.NOT_FOUND, f"workflow {name} was deleted while it was watched")
                if event["type"] != "BOOKMARK":
                    yield event["object"]
        except KubeError as error:
            if not has_begun:
                raise ApiError(*_explain(self.where, self._url, self.namespace, error)) from None

    def log(
        self, workflow: str, pod: str, *, container: str = "main", follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """See Route."""
        try:
            for line in self._loop.items(self._api.log(pod, container, follow=follow, tail=tail)):
                yield line.decode(errors="replace")
        except KubeError as error:
            raise ApiError(*_explain(self.where, self._url, self.namespace, error)) from None

    def node_logs(self, workflow: str) -> list[PodLog]:
        """See Route."""
        logs = [
            PodLog(
                _node_title(pod["metadata"], owner["uid"]), pod["metadata"]["name"], has_ended(pod),
                pod["spec"]["containers"][0]["name"],
            )
            for pod in self.pods(NODE)
            for owner in pod["metadata"].get("ownerReferences") or ()
            if owner["name"] == workflow and pod["status"].get("phase") != "Pending"
        ]  # fmt: skip
        return sorted(logs)

    def config_maps(self, selector: str) -> list[dict[str, Any]]:
        """Those of the namespace with these labels. Raises ApiError."""
        return self.ask(lambda api: api.list("configmaps", selector))[0]

    def pods(self, selector: str) -> list[dict[str, Any]]:
        """Those of the namespace with these labels. Raises ApiError."""
        return self.ask(lambda api: api.list("pods", selector))[0]

    def nodes(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """The machines of these names that are there and may be read. Raises ApiError."""
        objects = []
        for name in sorted(names):
            try:
                objects.append(self.ask(lambda api, name=name: api.get("nodes", name)))
            except ApiError as error:
                if error.trouble not in (Trouble.FORBIDDEN, Trouble.NOT_FOUND):
                    raise
        return objects

    def execute(self, pod: str, container: str, command: Sequence[str], limit_s: float) -> bytes:
        """What the command prints in that container of a pod. Raises ApiError."""
        return self.ask(lambda api: api.execute(pod, container, command, limit_s))

    def edit_config_map(self, name: str, data: Mapping[str, str]) -> None:
        """Give these keys these texts. Raises ApiError."""
        self.ask(lambda api: api.patch("configmaps", name, {"data": dict(data)}))

    def examine(self, needs: Needs) -> list[Finding]:
        """Whether the namespace is ready for a workflow with these needs. Raises ApiError."""
        return self.ask(lambda api: examine(api, needs))

    def link(self, name: str) -> str:
        """See Route. The API knows no URL of a user interface."""
        return (
            f"kubectl{f' --context {self._context}' if self._context else ''} -n {self.namespace} get workflow {name}"
        )

    def ask(self, request: Callable[[KubeApi], Coroutine[Any, Any, T]]) -> T:
        """The answer to one request. Raises ApiError."""
        try:
            return self._loop.result(request(self._api))
        except KubeError as error:
            raise ApiError(*_explain(self.where, self._url, self.namespace, error)) from None


def _node_title(metadata: Mapping[str, Any], workflow_uid: str) -> str:
    """STEP/NODE: a job is called by the workflow's uid and the step."""
    job = (metadata.get("annotations") or {}).get(NAME, "")
    return f"{job.removeprefix(f'{workflow_uid}-')}/{metadata['labels'][NODE]}"


def _argo_time() -> str:
    """Now, as Argo writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _explain(where: str, url: str, namespace: str, error: KubeError) -> tuple[Trouble, str]:
    """What went wrong, and how to fix it."""
    status, message = error.status, error.said
    if not status:
        trouble = Trouble.LOST if error.sent else Trouble.UNREACHABLE
        return trouble, f"{where} cannot be reached at {url} ({message}); is the cluster up? `kubectl cluster-info`"
    trouble = Trouble.BUSY if error.passing else trouble_for_status(status)
    if trouble is Trouble.UNAUTHORIZED:
        return trouble, f"{where}: {message} (401); its credentials are not valid (or no longer valid): log in again"
    if trouble is Trouble.FORBIDDEN:
        return trouble, f"{where}: {message} (403); you need that right in namespace {namespace}, see --namespace"
    if trouble is Trouble.NOT_FOUND and error.kind == "namespaces":
        return Trouble.NO_NAMESPACE, f"{where}: {message} (404); choose another --namespace"
    if trouble is Trouble.NOT_FOUND and not error.kind:
        return Trouble.NO_CRD, f"{where}: it does not know Workflows (404); install Argo Workflows, or --target local"
    return trouble, f"{where}: {message} ({status})"

"""The calls to an Argo, however it is reached, and what can go wrong on the way."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol

CONNECT_S = 5.0
ANSWER_S = 30.0
"""How long an answer may take."""
SILENCE_S = 90.0
"""A stream that is silent for this long is opened again."""


class Trouble(StrEnum):
    """The kind of a failure."""

    UNREACHABLE = "unreachable"
    """No connection: the request was not sent."""
    LOST = "lost"
    """The request was sent, but no answer came: it may have been carried out."""
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NO_CRD = "no CRD"
    NO_NAMESPACE = "no namespace"
    NOT_FOUND = "not found"
    EXISTS = "exists"
    INVALID = "invalid"
    BUSY = "busy"
    """429, 5xx, and a refusal of what was allowed until now: a later retry may succeed."""
    OTHER = "other"

    @property
    def is_passing(self) -> bool:
        """Whether a retry may succeed."""
        return self in (Trouble.UNREACHABLE, Trouble.LOST, Trouble.BUSY)


class ApiError(Exception):
    """A call to an Argo failed. The text is one line: what, where, how to fix it."""

    def __init__(self, trouble: Trouble, text: str) -> None:
        super().__init__(" ".join(text.split()))
        self.trouble = trouble


STATUS = {
    400: Trouble.INVALID, 401: Trouble.UNAUTHORIZED, 403: Trouble.FORBIDDEN, 404: Trouble.NOT_FOUND,
    409: Trouble.EXISTS, 422: Trouble.INVALID, 429: Trouble.BUSY,
}  # fmt: skip


def trouble_for_status(status: int) -> Trouble:
    """What an HTTP status means here."""
    return STATUS.get(status, Trouble.BUSY if status >= 500 else Trouble.OTHER)


class PodLog(NamedTuple):
    """Where the log of a step or of a training's node is."""

    title: str
    """Of the step; of a node STEP/NODE."""
    pod: str
    is_over: bool
    """No more lines come."""
    container: str = "main"


class Route(Protocol):
    """One way to one Argo, and one namespace there. Every method raises ApiError."""

    namespace: str
    where: str
    """For people: `http://argo.example`, `kube context ml`."""
    sees_nodes: bool
    """Whether it knows the pods that a step makes for a training's nodes: Argo does not."""

    def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The Workflow as it was made; its name is in the manifest."""
        ...

    def get(self, name: str) -> dict[str, Any]:
        """The Workflow as it is now."""
        ...

    def workflows(self) -> list[dict[str, Any]]:
        """Every Workflow of the namespace."""
        ...

    def end(self, name: str, verb: Literal["stop", "terminate"]) -> None:
        """Stop the Workflow; with `terminate` also its exit handler."""
        ...

    def retry(self, name: str) -> None:
        """Let what did not succeed run again."""
        ...

    def changes(self, name: str) -> Iterator[dict[str, Any]]:
        """The Workflow as it is, then each time that it changes. Ends when the other side ends the stream."""
        ...

    def log(
        self, workflow: str, pod: str, *, container: str = "main", follow: bool = False, tail: int | None = None
    ) -> Iterator[str]:
        """Lines of the log of a pod's container: all or the last `tail`, and with `follow` until it ends."""
        ...

    def node_logs(self, workflow: str) -> list[PodLog]:
        """Those of the Workflow's nodes that have begun and whose pods are there, by name; none unless `sees_nodes`."""
        ...

    def link(self, name: str) -> str:
        """Where a person sees the run: a URL, or a command."""
        ...

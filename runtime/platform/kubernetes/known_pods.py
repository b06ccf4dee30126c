"""What the API has said about a job's pods, kept by UID. Pure: lists, events and answers in, nodes and ends out.

Resource versions are not compared: a watch reports each pod's changes in order, and a list overrules what was known
before the list was requested.
"""

from collections.abc import Iterable
from typing import Any

from everstep.runtime.platform import Node, NodeEnd
from everstep.runtime.platform.kubernetes.pods import end_of_pod, has_ended, node_of

Pod = dict[str, Any]


class KnownPods:
    """The job's pods."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._since: dict[str, int] = {}
        """By UID: the number of the last list that was requested before the pod became known."""
        self._reported: set[str] = set()
        self._lists = 0

    def nodes(self) -> list[Node]:
        """Nodes of the pods that have not ended."""
        return [node_of(pod) for pod in self.pods()]

    def pods(self) -> list[Pod]:
        """Nodes of the pods that have not ended."""
        return [pod for pod in self._pods.values() if not has_ended(pod)]

    def pod(self, uid: str) -> Pod | None:
        """The newest known state of the pod, unless it is gone."""
        return self._pods.get(uid)

    def begin_list(self) -> int:
        """A list is about to be requested; pass the ticket to `on_list` with the answer."""
        self._lists += 1
        return self._lists

    def on_list(self, ticket: int, pods: Iterable[Pod]) -> list[NodeEnd]:
        """All pods there are. A pod that was known before the request and is missing from the list is gone."""
        by_uid = {pod["metadata"]["uid"]: pod for pod in pods}
        missing = [uid for uid, since in self._since.items() if since < ticket and uid not in by_uid]
        lost_pods = [end for uid in missing for end in self.on_deleted(self._pods[uid])]
        return [*lost_pods, *(end for pod in by_uid.values() for end in self.on_seen(pod))]

    def on_created(self, pod: Pod) -> Node:
        """The answer to a create or a get. It is older than what a watch has said about the same pod."""
        uid = pod["metadata"]["uid"]
        if uid not in self._reported and uid not in self._pods:
            self._keep(uid, pod)
        return node_of(self._pods.get(uid, pod))

    def on_seen(self, pod: Pod) -> list[NodeEnd]:
        """The pod's current state; returns its end the first time that it has ended."""
        uid = pod["metadata"]["uid"]
        self._keep(uid, pod)
        return self._end_once(pod, "") if has_ended(pod) else []

    def on_deleted(self, pod: Pod) -> list[NodeEnd]:
        """The pod is deleted; returns its end unless that was returned before."""
        uid = pod["metadata"]["uid"]
        self._pods.pop(uid, None)
        self._since.pop(uid, None)
        return self._end_once(pod, "its pod was deleted")

    def _keep(self, uid: str, pod: Pod) -> None:
        self._pods[uid] = pod
        self._since.setdefault(uid, self._lists)

    def _end_once(self, pod: Pod, otherwise: str) -> list[NodeEnd]:
        uid = pod["metadata"]["uid"]
        if uid in self._reported:
            return []
        self._reported.add(uid)
        return [end_of_pod(pod, otherwise)]

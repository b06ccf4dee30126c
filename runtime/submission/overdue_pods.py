"""Pods of a run's steps on a machine that is silent: no kubelet ends them, and Argo waits for their end. Pure.

After Kubernetes' documents ("Nodes", "Pod Lifecycle"): a node whose kubelet is silent for 50 s has the condition Ready
Unknown; its pods are asked to end 5 minutes later. `metadata.deletionTimestamp` is when the time to end is over; then
only the machine's kubelet, a forced deletion, or an out-of-service taint on the node removes the pod.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

LATE_S = 15.0
"""A live kubelet removes a pod much sooner after its time to end."""
ENDED = ("Succeeded", "Failed")
Pod = Mapping[str, Any]


def run_selector(name: str) -> str:
    """Label selector of the pods of a run's steps, as Argo labels them."""
    return f"workflows.argoproj.io/workflow={name}"


def hosts_of(pods: Iterable[Pod]) -> set[str]:
    """The machines of those that have not ended."""
    return {host for pod in pods if not _has_ended(pod) and (host := pod["spec"].get("nodeName"))}


def silent_since(node: Mapping[str, Any]) -> str:
    """Since when the machine's kubelet has been silent; "": it is not."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    silent = [
        condition for condition in conditions if condition["type"] == "Ready" and condition["status"] == "Unknown"
    ]
    return silent[0]["lastTransitionTime"] if silent else ""


def overdue_pods(pods: Iterable[Pod], silent: Mapping[str, str], now: float) -> list[dict[str, str]]:
    """Those on silent machines (by name: since when), or that should have ended before `now` (Unix time).

    Each: name, host, since when, and why it is one.
    """
    pods_overdue = []
    for pod in pods:
        name, host = pod["metadata"]["name"], pod["spec"].get("nodeName") or ""
        deleted_at = pod["metadata"].get("deletionTimestamp")
        if _has_ended(pod):
            continue
        if since := silent.get(host):
            reason = f"is on node {host}, which has been silent since {since}"
        elif deleted_at and now > datetime.fromisoformat(deleted_at).timestamp() + LATE_S:
            since = f"{datetime.fromisoformat(deleted_at).astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
            reason = f"should have ended at {since}, but node {host} has not said so"
        else:
            continue
        pods_overdue.append({"name": name, "host": host, "since": since, "reason": reason})
    return pods_overdue


def _has_ended(pod: Pod) -> bool:
    return (pod.get("status") or {}).get("phase") in ENDED

"""Pods of a run's steps on a dead machine: they were asked to end, and no kubelet ends them. Pure.

After Kubernetes' documents ("Pod Lifecycle", "Node Shutdowns"): `metadata.deletionTimestamp` is when the time to end is
over; only the machine's kubelet, or an out-of-service taint on the node, then removes the pod.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

LATE_S = 15.0
"""A live kubelet removes a pod much sooner after its time to end."""
ENDED = ("Succeeded", "Failed")


def run_selector(name: str) -> str:
    """Label selector of the pods of a run's steps, as Argo labels them."""
    return f"workflows.argoproj.io/workflow={name}"


def overdue_pods(pods: Iterable[Mapping[str, Any]], now: float) -> list[dict[str, str]]:
    """Those that should have ended before `now` (Unix time): name, host, since when."""
    pods_overdue = []
    for pod in pods:
        deleted_at = pod["metadata"].get("deletionTimestamp")
        if not deleted_at or (pod.get("status") or {}).get("phase") in ENDED:
            continue
        since = datetime.fromisoformat(deleted_at)
        if now > since.timestamp() + LATE_S:
            host, name = pod["spec"].get("nodeName") or "", pod["metadata"]["name"]
            pods_overdue.append({"name": name, "host": host, "since": f"{since.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"})
    return pods_overdue

"""The Workflow that a step belongs to: who it is, and whether it still will retry the step.

What a real Argo does at `stop`, `terminate`, a deadline and a deletion: the step's process gets SIGTERM each time, and
only the Workflow tells which it was.
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any

from everstep.runtime.platform.kubernetes.api import KubeApi, KubeError
from everstep.runtime.platform.kubernetes.pods import Owner

ANSWER_S = 5.0
"""A process that is told to end has no time to wait for long."""
FINAL_PHASES = ("Succeeded", "Failed", "Error")
EARLY_S = 5.0
"""So long before a Workflow's deadline its pods may be told to end: Argo rounds down, clocks differ."""


def owner_of(pod: Mapping[str, Any]) -> Owner:
    """The Workflow that owns the step's pod. Raises KubeError when none does."""
    metadata = pod["metadata"]
    for one in metadata.get("ownerReferences") or ():
        if one["kind"] == "Workflow":
            return Owner(one["name"], one["uid"])
    raise KubeError(f"pod {metadata['name']}: no Workflow owns it; run the step by Argo, or unset EVERSTEP_POD", 400)


async def is_over_for_good(api: KubeApi, owner: Owner, now: float) -> bool:
    """Whether the Workflow is stopped, over or deleted: the step will not be tried again.

    False where the API does not say: then the nodes train on, and end by themselves when no master comes.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            workflow = await api.get("workflows", owner.name)
    except TimeoutError:
        return False
    except KubeError as error:
        return error.status == HTTPStatus.NOT_FOUND
    return workflow["metadata"]["uid"] != owner.uid or is_over(workflow, now)


def is_over(workflow: Mapping[str, Any], now: float) -> bool:
    """Told to stop or terminate, ended, or past its deadline (of which Argo says nothing beforehand)."""
    spec, status = workflow.get("spec") or {}, workflow.get("status") or {}
    if spec.get("shutdown") or status.get("phase") in FINAL_PHASES:
        return True
    ends = deadline_of(workflow)
    return ends is not None and now >= ends - EARLY_S


def deadline_of(workflow: Mapping[str, Any]) -> float | None:
    """When Argo ends it whatever it does (Unix time); None: it has no deadline, or has not begun."""
    deadline_s = (workflow.get("spec") or {}).get("activeDeadlineSeconds")
    began = (workflow.get("status") or {}).get("startedAt")
    if deadline_s is None or not began:
        return None
    return datetime.fromisoformat(began).timestamp() + int(deadline_s)


async def read_deadline(api: KubeApi, owner: Owner) -> float | None:
    """The deadline of the Workflow, see `ends_at`. Raises KubeError where the API refuses to tell."""
    try:
        return deadline_of(await api.retry(lambda: api.get("workflows", owner.name)))
    except KubeError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise

"""The Workflow that a step belongs to: who it is, and whether it still will retry the step.

What a real Argo does at `stop`, `terminate`, a deadline and a deletion: the step's process gets SIGTERM each time, and
only the Workflow tells which it was.
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from runtime.platform.kubernetes.api import KubeApi, KubeError
from runtime.platform.kubernetes.pods import Owner

ANSWER_S = 5.0
"""A process that is told to end has no time to wait for long."""
NOT_FOUND = 404
ENDED = ("Succeeded", "Failed", "Error")


def owner_of(pod: Mapping[str, Any]) -> Owner:
    """The Workflow that owns the step's pod. Raises KubeError when none does."""
    metadata = pod["metadata"]
    for one in metadata.get("ownerReferences") or ():
        if one["kind"] == "Workflow":
            return Owner(one["name"], one["uid"])
    raise KubeError(f"pod {metadata['name']}: no Workflow owns it; run the step by Argo, or unset EVERSTEP_POD", 400)


async def will_not_return(api: KubeApi, owner: Owner, now: float) -> bool:
    """Whether the Workflow is stopped, over or deleted: the step will not be tried again.

    False where the API does not say: then the nodes train on, and end by themselves when no master comes.
    """
    try:
        async with asyncio.timeout(ANSWER_S):
            workflow = await api.get("workflows", owner.name)
    except TimeoutError:
        return False
    except KubeError as error:
        return error.status == NOT_FOUND
    return workflow["metadata"]["uid"] != owner.uid or is_over(workflow, now)


def is_over(workflow: Mapping[str, Any], now: float) -> bool:
    """Told to stop or terminate, ended, or past its deadline (of which Argo says nothing beforehand)."""
    spec, status = workflow.get("spec") or {}, workflow.get("status") or {}
    if spec.get("shutdown") or status.get("phase") in ENDED:
        return True
    deadline_s, began = spec.get("activeDeadlineSeconds"), status.get("startedAt")
    if deadline_s is None or not began:
        return False
    return now >= datetime.fromisoformat(began).timestamp() + int(deadline_s)

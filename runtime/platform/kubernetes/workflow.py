"""The Workflow that a step belongs to: its identity, and whether it will still retry the step.

A real Argo sends the step's process SIGTERM for `stop`, `terminate`, a deadline and a deletion alike; only the Workflow
tells which one it was.
"""

import asyncio
from collections.abc import Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any

from everstep.runtime.platform import POD_VARIABLE
from everstep.runtime.platform.kubernetes.api import KubeApi, KubeError
from everstep.runtime.platform.kubernetes.pods import Owner

ANSWER_S = 5.0
"""Seconds to wait for an answer: a process that is told to end has little time."""
FINAL_PHASES = ("Succeeded", "Failed", "Error")
EARLY_S = 5.0
"""Pods may be told to end this long before the Workflow's deadline: Argo rounds down, and clocks differ."""


def owner_of(pod: Mapping[str, Any]) -> Owner:
    """The Workflow that owns the step's pod. Raises KubeError if none does."""
    metadata = pod["metadata"]
    for reference in metadata.get("ownerReferences") or ():
        if reference["kind"] == "Workflow":
            return Owner(reference["name"], reference["uid"])
    raise KubeError(f"pod {metadata['name']}: no Workflow owns it; run the step by Argo, or unset {POD_VARIABLE}", 400)


async def is_over_for_good(api: KubeApi, owner: Owner, now: float) -> bool:
    """Whether the Workflow is stopped, over or deleted, so that the step will not be retried.

    False if the API does not say: the nodes then keep training, and end by themselves if no master comes.
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
    """Whether the Workflow is to stop or terminate, has ended, or is past its deadline (never announced)."""
    spec, status = workflow.get("spec") or {}, workflow.get("status") or {}
    if spec.get("shutdown") or status.get("phase") in FINAL_PHASES:
        return True
    ends = deadline_of(workflow)
    return ends is not None and now >= ends - EARLY_S


def deadline_of(workflow: Mapping[str, Any]) -> float | None:
    """The Workflow's deadline (Unix time); None: it has none, or has not started."""
    deadline_s = (workflow.get("spec") or {}).get("activeDeadlineSeconds")
    began = (workflow.get("status") or {}).get("startedAt")
    if deadline_s is None or not began:
        return None
    return datetime.fromisoformat(began).timestamp() + int(deadline_s)


async def read_deadline(api: KubeApi, owner: Owner) -> float | None:
    """Read the Workflow's deadline, see `deadline_of`. Raises KubeError if the API refuses."""
    try:
        return deadline_of(await api.retry(lambda: api.get("workflows", owner.name)))
    except KubeError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise

"""The pods of one job that a fault is done to: found through the API, and seen to go."""

import asyncio
import random
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from everstep.runtime.chaos.injector import Fault, NotFiredError
from everstep.runtime.chaos.progress import Progress
from everstep.runtime.platform.kubernetes import KubeApi, KubeError
from everstep.runtime.platform.kubernetes.pods import NODE, has_ended, selector

SEEN_S = 180.0
"""A fault may take this long to show."""
Pod = Mapping[str, Any]


async def read_again(api: KubeApi, pod: Pod) -> Pod | None:
    """The pod as it is now; None: that very pod is gone, or has ended. Raises KubeError."""
    try:
        now = await api.get("pods", pod["metadata"]["name"])
    except KubeError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
    return None if now["metadata"]["uid"] != pod["metadata"]["uid"] or has_ended(now) else now


class JobPods:
    """Of one job, in the API's namespace."""

    def __init__(self, api: KubeApi, progress: Progress, chance: random.Random) -> None:
        self._api = api
        self._progress = progress
        self._chance = chance

    async def by_node(self) -> dict[str, Pod]:
        """Those that have not ended. Raises KubeError."""
        pods, _ = await self._api.list("pods", selector(self._progress.job))
        return {pod["metadata"]["labels"][NODE]: pod for pod in pods if not has_ended(pod)}

    async def victim(self, fault: Fault) -> tuple[str, Pod]:
        """(node, its pod): the named one, or one that trains. It is on a machine. Raises NotFiredError, KubeError."""
        pods = await self.by_node()
        names = [fault.node] if fault.node else self._progress.training_nodes()
        candidates = sorted(name for name in names if name in pods and pods[name]["spec"].get("nodeName"))
        if not candidates:
            missing = f"{fault.node} has no pod" if fault.node else "no node that trains has a pod"
            raise NotFiredError(f"{missing} on a machine")
        name = self._chance.choice(candidates)
        return name, pods[name]

    async def first_running(self, fault: Fault) -> tuple[str, Pod]:
        """(node, its pod): the named one, or the first that runs, once it does. Raises NotFiredError, KubeError."""
        deadline = time.time() + SEEN_S
        while time.time() < deadline:
            pods = await self.by_node()
            for name in sorted(pods):
                if fault.node in ("", name) and pods[name]["status"].get("phase") == "Running":
                    return name, pods[name]
            await asyncio.sleep(0.5)
        raise NotFiredError(f"no pod of {fault.node or 'any node'} runs")

    async def wait_until_going(self, pod: Pod) -> None:
        """Until that very pod is gone, has ended or is told to go. Raises NotFiredError, KubeError."""
        deadline = time.time() + SEEN_S
        while time.time() < deadline:
            now = await read_again(self._api, pod)
            if now is None or now["metadata"].get("deletionTimestamp"):
                return
            await asyncio.sleep(0.5)
        raise NotFiredError(f"{pod['metadata']['name']} is still there")

"""Faults of nodes that are pods, through the API of the cluster. The story begins in `ClusterInjector.inject`."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from everstep.runtime.chaos.injector import Fault, FiredFault, Kind, NotFiredError, NotPossibleError
from everstep.runtime.chaos.progress import Progress
from everstep.runtime.job.records import RoundFormed
from everstep.runtime.platform.kubernetes import KubeApi, KubeError
from everstep.runtime.platform.kubernetes.pods import GRACE_S, NODE, object_name, selector
from everstep.runtime.platform.kubernetes.sizes import KEY, format_sizes, parse_sizes

SEEN_S = 180.0
"""A fault may take this long to show."""
TAINT = {"key": "everstep/chaos", "value": "drill", "effect": "NoExecute"}
ARGO_NODE = "workflows.argoproj.io/node-name"
"""Argo's annotation of a step's pod: WORKFLOW.TASK(TRY)."""
STEPS = "everstep/step=train"
Pod = Mapping[str, Any]


class ClusterInjector:
    """The pods of one job, in the namespace of this step's own pod."""

    def __init__(self, api: KubeApi, step: str, progress: Progress, chance: random.Random) -> None:
        """`step`: the name of the train step's task; `chance` chooses the node."""
        self._api = api
        self._step = step
        self._progress = progress
        self._chance = chance
        self._faults: Mapping[Kind, Callable[[Fault], Awaitable[FiredFault]]] = {
            Kind.NODE: self._delete_node,
            Kind.PREEMPT: self._delete_node,
            Kind.EVICT: self._evict,
            Kind.MASTER: self._delete_step,
            Kind.EVERYTHING: self._delete_everything,
            Kind.RESIZE: self._resize,
            Kind.CORDON: self._mark_machine,
            Kind.TAINT: self._mark_machine,
        }

    def refusal(self, kind: Kind) -> str:
        if kind in self._faults:
            return ""
        return f"on a cluster it needs a process beside the node's; these need none: {', '.join(self._faults)}"

    async def prepare(self, kind: Kind) -> None:
        """Nothing."""

    async def inject(self, fault: Fault) -> FiredFault:
        if why := self.refusal(fault.kind):
            raise NotPossibleError(why)
        try:
            return await self._faults[fault.kind](fault)
        except KubeError as error:
            if error.status == HTTPStatus.FORBIDDEN:
                raise NotPossibleError(str(error)) from None
            raise NotFiredError(str(error)) from None

    async def _pods(self) -> dict[str, Pod]:
        """The job's pods by node."""
        pods, _ = await self._api.list("pods", selector(self._progress.job))
        return {pod["metadata"]["labels"][NODE]: pod for pod in pods}

    async def _victim(self, fault: Fault) -> tuple[str, Pod]:
        """(node, its pod): the named one, or one that trains. Raises NotFiredError."""
        pods = await self._pods()
        names = [fault.node] if fault.node else self._progress.training_nodes()
        candidates = sorted(name for name in names if name in pods)
        if not candidates:
            raise NotFiredError(f"{fault.node or 'no node that trains'} has no pod")
        name = self._chance.choice(candidates)
        return name, pods[name]

    async def _delete(self, pods: list[Pod], grace_s: int) -> float:
        """Delete them; returns when, once the API shows none of them as before. Raises NotFiredError."""
        moment = time.time()
        for pod in pods:
            await self._api.delete("pods", pod["metadata"]["name"], pod["metadata"]["uid"], grace_s)
        for pod in pods:
            await self._wait_until_going(pod)
        return moment

    async def _wait_until_going(self, pod: Pod) -> None:
        """Until that very pod is gone or is told to go. Raises NotFiredError."""
        name, uid, deadline = pod["metadata"]["name"], pod["metadata"]["uid"], time.time() + SEEN_S
        while time.time() < deadline:
            try:
                now = (await self._api.get("pods", name))["metadata"]
            except KubeError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return
                raise
            if now["uid"] != uid or now.get("deletionTimestamp"):
                return
            await asyncio.sleep(0.5)
        raise NotFiredError(f"{name} is still there")

    async def _delete_node(self, fault: Fault) -> FiredFault:
        name, pod = await self._victim(fault)
        grace = GRACE_S if fault.kind is Kind.PREEMPT else 0
        moment = await self._delete([pod], grace)
        return FiredFault(fault.kind, name, moment, f"pod {pod['metadata']['name']} deleted with {grace} s of grace")

    async def _evict(self, fault: Fault) -> FiredFault:
        name, pod = await self._victim(fault)
        moment = time.time()
        await self._api.evict(pod["metadata"]["name"])
        await self._wait_until_going(pod)
        return FiredFault(fault.kind, name, moment, f"pod {pod['metadata']['name']} evicted")

    async def _step_pods(self) -> list[Pod]:
        """The train step's own running pod. Raises NotFiredError."""
        pods, _ = await self._api.list("pods", STEPS)
        step_pods = []
        for pod in pods:
            _, _, task = pod["metadata"].get("annotations", {}).get(ARGO_NODE, "").partition(".")
            if task.partition("(")[0] == self._step and pod["status"].get("phase") == "Running":
                step_pods.append(pod)
        if not step_pods:
            raise NotFiredError(f"no pod of the step {self._step} runs")
        return step_pods

    async def _delete_step(self, fault: Fault) -> FiredFault:
        pods = await self._step_pods()
        return FiredFault(fault.kind, "", await self._delete(pods, 0), f"pod {pods[0]['metadata']['name']} deleted")

    async def _delete_everything(self, fault: Fault) -> FiredFault:
        pods = [*await self._step_pods(), *(await self._pods()).values()]
        return FiredFault(fault.kind, "", await self._delete(pods, 0), f"{len(pods)} pods deleted")

    async def _resize(self, fault: Fault) -> FiredFault:
        name, moment = object_name(self._progress.job), time.time()
        sizes = parse_sizes(await self._api.get("configmaps", name))
        role, before = next(iter(sizes.items()))
        sizes_seen = [before]
        for target in (before + 1, before):
            await self._api.patch("configmaps", name, {"data": {KEY: format_sizes({**sizes, role: target})}})
            await self._progress.wait(
                lambda target=target: self._world(role) == target, f"{target} nodes train", SEEN_S
            )
            sizes_seen.append(target)
        return FiredFault(fault.kind, "", moment, f"rounds of {' -> '.join(map(str, sizes_seen))} nodes")

    def _world(self, role: str) -> int:
        """Nodes of that role in the newest round."""
        rounds_formed = [record for record in self._progress.records() if isinstance(record, RoundFormed)]
        return len(rounds_formed[-1].round.members[role]) if rounds_formed else 0

    async def _mark_machine(self, fault: Fault) -> FiredFault:
        """The machine takes no new pods; a taint evicts those that are there, otherwise the pod is deleted."""
        name, pod = await self._victim(fault)
        machine = pod["spec"]["nodeName"]
        before = (await self._api.get("nodes", machine)).get("spec") or {}
        taints = before.get("taints") or []
        cordon = fault.kind is Kind.CORDON
        moment = time.time()
        await self._api.patch(
            "nodes", machine, {"spec": {"unschedulable": True} if cordon else {"taints": [*taints, TAINT]}}
        )
        try:
            if cordon:
                await self._delete([pod], GRACE_S)
            else:
                await self._wait_until_going(pod)
            await asyncio.sleep(fault.seconds)
        finally:
            back = {"unschedulable": before.get("unschedulable")} if cordon else {"taints": taints}
            await self._api.retry(lambda: self._api.patch("nodes", machine, {"spec": back}))
        return FiredFault(fault.kind, name, moment, f"machine {machine} for {fault.seconds:g} s; its pod had to go")

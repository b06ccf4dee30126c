"""Pods that were checked wait for the training, which makes them its nodes instead of having new ones scheduled."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.runtime.diagnosis.report import Place
    from everstep.runtime.diagnosis.verdicts import Verdict
    from everstep.runtime.platform.kubernetes import KubeApi, Owner

WORKFLOW = "workflows.argoproj.io/workflow"
"""Argo's label of the pods of a Workflow's steps."""


class PodHold:
    """Which pods of one check are held for which training, and where their machines stand."""

    def __init__(
        self, api: "KubeApi", owner: "Owner", training: str, hold_s: float, say: Callable[[str], None]
    ) -> None:
        """`training`: its job. `hold_s`: how long they wait; 0: none does."""
        self._api = api
        self._owner = owner
        self._say = say
        self.training = training if hold_s else ""
        self.hold_s = hold_s
        self.nodes: set[str] = set()
        """Names of the nodes whose pods are held."""
        self.places: Mapping[str, Place] = {}
        """Of the checked machines, once there are verdicts."""

    def template_of(self, template: dict[str, Any]) -> dict[str, Any]:
        """The pods' spec, so that each can become a node of the training."""
        from everstep.runtime.platform.kubernetes.held_pods import token_variable

        if not self.training:
            return template
        container = template["containers"][0]
        variables = [*(container.get("env") or ()), token_variable(self.training)]
        return {**template, "containers": [{**container, "env": variables}]}

    async def begin(self) -> None:
        """Make the training's token, and end the pods that an earlier try of the check held. Raises KubeError."""
        from everstep.runtime.platform.kubernetes import KubeError
        from everstep.runtime.platform.kubernetes.held_pods import held_selector
        from everstep.runtime.platform.kubernetes.platform import ensure_token

        if not self.training:
            return
        await ensure_token(self._api, self.training, self._owner)
        pods, _ = await self._api.retry(lambda: self._api.list("pods", held_selector(self.training)))
        for pod in pods:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            with suppress(KubeError):  # It has ended meanwhile, or ends at its deadline.
                await self._api.retry(lambda name=name, uid=uid: self._api.delete("pods", name, uid, 0))

    async def hold(self, job: str, verdicts: "Sequence[Verdict]", nodes: int, needed: int) -> None:
        """Learn where the machines stand, and hold the pods of `nodes` fit ones, the first in rank order.

        None is held for a training that will not start: with fewer than `needed` fit ones.
        """
        from everstep.runtime.diagnosis.report import host_order
        from everstep.runtime.platform.kubernetes import KubeError
        from everstep.runtime.platform.kubernetes.held_pods import hold
        from everstep.runtime.platform.kubernetes.pods import NODE, selector

        pods, _ = await self._api.retry(lambda: self._api.list("pods", selector(job)))
        self.places = await self._places_of(pods)
        order = host_order(verdicts, self.places)
        fit = {verdict.node: verdict.host for verdict in verdicts if not verdict.avoid}
        if not self.training or len(fit) < needed or await self._is_crowded():
            return
        nodes_in_order = sorted(fit, key=lambda node: order.index(fit[node]) if fit[node] in order else 0)[:nodes]
        change = hold(self.training, time.time() + self.hold_s)
        for pod in pods:
            node, name = pod["metadata"]["labels"][NODE], pod["metadata"]["name"]
            if node not in nodes_in_order:
                continue
            try:
                await self._api.retry(lambda name=name: self._api.patch("pods", name, change))
            except KubeError as error:
                self._say(f"{node} does not wait for the training: {error}")
                continue
            self.nodes.add(node)
        count = f"{len(self.nodes)} checked pod{'' if len(self.nodes) == 1 else 's'}"
        self._say(f"held for the training for {self.hold_s:g} s: {count}")

    async def _is_crowded(self) -> bool:
        """Whether a step of the Workflow finds no room on any machine, so that nothing may be held."""
        from everstep.runtime.platform.kubernetes.pods import waiting_reason

        pods, _ = await self._api.retry(lambda: self._api.list("pods", f"{WORKFLOW}={self._owner.name}"))
        return any(waiting_reason(pod) for pod in pods)

    async def _places_of(self, pods: Sequence[Mapping[str, Any]]) -> "dict[str, Place]":
        from everstep.runtime.diagnosis.report import Place
        from everstep.runtime.job.topology import switches
        from everstep.runtime.platform.kubernetes import read_topology
        from everstep.runtime.platform.kubernetes.pods import ZONE_LABEL

        switch_by_ip = switches(await read_topology(self._api))
        return {
            host: Place(
                (pod["metadata"].get("labels") or {}).get(ZONE_LABEL, ""),
                switch_by_ip.get((pod.get("status") or {}).get("hostIP") or "", ""),
            )
            for pod in pods
            if (host := pod["spec"].get("nodeName"))
        }

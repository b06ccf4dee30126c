"""Faults of pods that ChaosBlade's operator injects: each is a resource that it acts on until the resource is deleted.

After ChaosBlade's documentation of its Kubernetes experiments (`blade create k8s ...`): a resource of the kind
ChaosBlade has experiments of a scope, a target, an action and matchers; its status says what became of them.
"""

import asyncio
import math
import random
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from everstep.runtime.chaos.injector import BY_CHAOSBLADE, Fault, FiredFault, Kind, NotFiredError, NotPossibleError
from everstep.runtime.chaos.job_pods import JobPods
from everstep.runtime.chaos.progress import Progress
from everstep.runtime.chaos.victims import AGENT_SERVER
from everstep.runtime.platform.kubernetes import KubeApi, KubeError
from everstep.runtime.platform.kubernetes.pods import AGENT_CONTAINER

SEEN_S = 120.0
"""How long the operator may take to begin, or to end, an experiment."""
LOOK_S = 0.5
RUNNING, FAILED = "Running", "Error"
_NOT_INSTALLED = (
    "this cluster knows no chaosblades.chaosblade.io: install ChaosBlade's operator "
    "(https://github.com/chaosblade-io/chaosblade-operator)"
)


class _Experiment(NamedTuple):
    scope: str
    target: str
    action: str
    matchers: Mapping[str, str] = {}
    lasts: bool = True


_EXPERIMENTS: Mapping[Kind, _Experiment] = {
    Kind.CPU: _Experiment("container", "cpu", "fullload", {"cpu-percent": "{percent}"}),
    Kind.MEMORY: _Experiment("container", "mem", "load", {"mode": "ram", "mem-percent": "{percent}"}),
    Kind.NETWORK: _Experiment("pod", "network", "loss", {"interface": "eth0", "percent": "100"}),
    Kind.FORK_SERVER: _Experiment(
        "container", "process", "kill", {"process": AGENT_SERVER, "signal": "9"}, lasts=False
    ),
    Kind.PREEMPT: _Experiment("pod", "pod", "delete", lasts=False),
}


def resource_of(fault: Fault, name: str, pod: str, namespace: str) -> dict[str, Any]:
    """The resource of that name that does the fault to the pod; one that lasts ends by itself, too."""
    blade = _EXPERIMENTS[fault.kind]
    matchers = {"names": pod, "namespace": namespace}
    if blade.scope == "container":
        matchers["container-names"] = AGENT_CONTAINER
    matchers |= {key: value.format(percent=round(100 * fault.share)) for key, value in blade.matchers.items()}
    if blade.lasts:
        matchers["timeout"] = str(math.ceil(fault.seconds))
    experiment = {
        "scope": blade.scope, "target": blade.target, "action": blade.action, "desc": f"{fault.kind} of {pod}",
        "matchers": [{"name": key, "value": [value]} for key, value in matchers.items()],
    }  # fmt: skip
    return {
        "apiVersion": "chaosblade.io/v1alpha1", "kind": "ChaosBlade", "metadata": {"name": name},
        "spec": {"experiments": [experiment]},
    }  # fmt: skip


class ChaosBladeInjector:
    """The pods of one job, by the operator of the cluster."""

    def __init__(self, api: KubeApi, progress: Progress, chance: random.Random) -> None:
        """`chance` chooses the node."""
        self._api = api
        self._pods = JobPods(api, progress, chance)
        self._chance = chance

    def refusal(self, kind: Kind) -> str:
        if kind in BY_CHAOSBLADE:
            return ""
        return f"ChaosBlade has no such experiment; it has {', '.join(BY_CHAOSBLADE)}"

    async def prepare(self, kind: Kind) -> None:
        """Nothing."""

    async def inject(self, fault: Fault) -> FiredFault:
        if why := self.refusal(fault.kind):
            raise NotPossibleError(why)
        try:
            node, pod = await self._pods.victim(fault)
            made = await self._create(fault, pod["metadata"]["name"])
            try:
                text, moment = await self._wait_until_running(made["metadata"]["name"]), time.time()
                await asyncio.sleep(fault.seconds if _EXPERIMENTS[fault.kind].lasts else 0)
            finally:
                await self._delete(made)
            if fault.kind is Kind.PREEMPT:
                await self._pods.wait_until_going(pod)
        except KubeError as error:
            if error.status == HTTPStatus.FORBIDDEN:
                raise NotPossibleError(str(error)) from None
            raise NotFiredError(str(error)) from None
        return FiredFault(fault.kind, node, moment, text)

    async def _create(self, fault: Fault, pod: str) -> dict[str, Any]:
        """Raises NotPossibleError, KubeError."""
        name = f"everstep-{fault.kind}-{self._chance.getrandbits(40):010x}"
        try:
            return await self._api.create("chaosblades", resource_of(fault, name, pod, self._api.namespace))
        except KubeError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                raise NotPossibleError(_NOT_INSTALLED) from None
            raise

    async def _wait_until_running(self, name: str) -> str:
        """What the operator says of it. Raises NotFiredError, KubeError."""
        deadline = time.monotonic() + SEEN_S
        while time.monotonic() < deadline:
            status = (await self._api.get("chaosblades", name)).get("status") or {}
            each = status.get("expStatuses") or []
            if status.get("phase") == FAILED or any(resource.get("error") for resource in each):
                raise NotFiredError(f"ChaosBlade: {_errors(each) or status.get('phase')}")
            if status.get("phase") == RUNNING and each and all(resource["success"] for resource in each):
                states = ", ".join(
                    f"{resource['scope']} {resource['target']} {resource['action']} {resource['state']}"
                    for resource in each
                )
                return f"ChaosBlade's {name}: {states}"
            await asyncio.sleep(LOOK_S)
        raise NotFiredError(f"ChaosBlade's operator has not begun {name} within {SEEN_S:.0f} s: does it run?")

    async def _delete(self, made: Mapping[str, Any]) -> None:
        """Until it is gone: the operator undoes the experiment first. Raises NotFiredError, KubeError."""
        name, uid, deadline = made["metadata"]["name"], made["metadata"]["uid"], time.monotonic() + SEEN_S
        try:
            await self._api.retry(lambda: self._api.delete("chaosblades", name, uid, 0))
            while time.monotonic() < deadline:
                await self._api.retry(lambda: self._api.get("chaosblades", name))
                await asyncio.sleep(LOOK_S)
        except KubeError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return
            raise
        raise NotFiredError(f"ChaosBlade's operator has not undone {name} within {SEEN_S:.0f} s: `kubectl get blade`")


def _errors(experiments: list[dict[str, Any]]) -> str:
    """What the operator says is wrong, in one line."""
    resources = [resource for experiment in experiments for resource in experiment.get("resStatuses") or []]
    return "; ".join(dict.fromkeys(state["error"] for state in [*experiments, *resources] if state.get("error")))

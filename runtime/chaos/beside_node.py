"""A container that is added to a running pod (Kubernetes, "Ephemeral Containers"), to change the pod's own network.

It has the image, variables and volumes of the pod's first container, runs `cut_off` as root with the one capability
NET_ADMIN, and says in its log when the fault fired. Such a container cannot be removed: it stays in the pod, ended.
"""

import asyncio
import json
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from everstep.runtime.chaos import cut_off
from everstep.runtime.chaos.injector import Fault, NotFiredError, NotPossibleError
from everstep.runtime.chaos.job_pods import SEEN_S, Pod, read_again
from everstep.runtime.platform.kubernetes import KubeApi, KubeError
from everstep.runtime.platform.kubernetes.pods import CANNOT_START_REASONS

LOOK_S = 0.5
_ACCOUNT = "/var/run/secrets/kubernetes.io"
_TAKEN = ("image", "imagePullPolicy", "env", "envFrom")
"""What it has of the pod's own container."""
SECURITY = {
    "runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False, "privileged": False, "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]},
}  # fmt: skip


@dataclass(frozen=True)
class Cut:
    """What the program in the pod saw."""

    began: float
    """Unix time."""
    ended: float
    """When the way was free again, or the pod was gone."""
    evidence: str


def container_of(pod: Pod, name: str, words: list[str]) -> dict[str, Any]:
    """The container to add, which runs that program. Pure."""
    first = _own_container(pod)
    mounts = [
        {"name": mount["name"], "mountPath": mount["mountPath"], "readOnly": True}
        for mount in first.get("volumeMounts") or ()
        if not {"subPath", "subPathExpr"} & mount.keys() and not mount["mountPath"].startswith(_ACCOUNT)
    ]
    return {
        "name": name,
        **{key: first[key] for key in _TAKEN if key in first},
        "command": ["python", "-m", cut_off.__name__, *words],
        "volumeMounts": mounts,
        "securityContext": SECURITY,
    }


def _own_container(pod: Pod) -> Mapping[str, Any]:
    """A step's is `main`, beside Argo's; a node's is the first."""
    containers = pod["spec"]["containers"]
    return next((container for container in containers if container["name"] == "main"), containers[0])


class BesideNode:
    """Adds such containers, in the API's namespace."""

    def __init__(self, api: KubeApi, chance: random.Random) -> None:
        self._api = api
        self._chance = chance

    async def cut(self, pod: Pod, fault: Fault, target: str) -> Cut:
        """Take the way to the target away from that pod until it is over. Raises NotPossibleError, NotFiredError,
        KubeError."""
        name, where = f"everstep-chaos-{self._chance.getrandbits(32):08x}", pod["metadata"]["name"]
        if pod["spec"].get("hostNetwork"):
            raise NotPossibleError(f"pod {where} has its machine's network (hostNetwork), which others use, too")
        await self._add(pod, container_of(pod, name, [fault.kind.value, f"{fault.seconds:g}", target]))
        facts = await self._first_words(pod, name)
        deadline = time.time() + fault.seconds + SEEN_S
        while not await self._is_over(pod, name):
            if time.time() > deadline:
                raise NotFiredError(f"container {name} of pod {where} has not ended: delete the pod")
            await asyncio.sleep(LOOK_S)
        return Cut(facts["time"], min(time.time(), facts["time"] + fault.seconds), facts["evidence"])

    async def _add(self, pod: Pod, container: Mapping[str, Any]) -> None:
        """Raises NotPossibleError, KubeError."""
        name = pod["metadata"]["name"]
        try:
            await self._api.add_container(name, pod["metadata"]["uid"], container)
        except KubeError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
            what = f"no container with NET_ADMIN can be added to pod {name}"
            raise NotPossibleError(f"{what}: {error.said}; {self._mend(error.said)}") from None

    def _mend(self, refusal: str) -> str:
        if "PodSecurity" in refusal:
            label = "pod-security.kubernetes.io/enforce=privileged"
            return f"for the drill: kubectl label --overwrite namespace {self._api.namespace} {label}"
        return (
            "it needs the right `patch` on pods/ephemeralcontainers: "
            f"kubectl apply -n {self._api.namespace} -f templates/chart/files/chaos"
        )

    async def _first_words(self, pod: Pod, name: str) -> dict[str, Any]:
        """When it fired, and what was seen of it. Raises NotFiredError, KubeError."""
        where, deadline = f"container {name} of pod {pod['metadata']['name']}", time.time() + SEEN_S
        while time.time() < deadline:
            state = await self._state(pod, name)
            if state is None:
                raise NotFiredError(f"the pod of {where} has ended before")
            if (waiting := state.get("waiting") or {}).get("reason") in CANNOT_START_REASONS:
                raise NotFiredError(f"{where}: {waiting['reason']}, {waiting.get('message', '')}")
            if "running" in state or "terminated" in state:
                lines = [line async for line in self._api.log(pod["metadata"]["name"], name, follow=False, tail=None)]
                for line in lines:
                    if line.startswith(b'{"time"'):
                        return json.loads(line)
                if "terminated" in state:
                    words = lines[-1].decode(errors="replace") if lines else "it said nothing"
                    raise NotFiredError(f"{where}: {words}")
            await asyncio.sleep(LOOK_S)
        raise NotFiredError(f"{where} has not begun within {SEEN_S:.0f} s")

    async def _is_over(self, pod: Pod, name: str) -> bool:
        state = await self._api.retry(lambda: self._state(pod, name))
        return state is None or "terminated" in state

    async def _state(self, pod: Pod, name: str) -> dict[str, Any] | None:
        """The container's state, empty before it has one; None: that very pod is gone, or has ended. Raises
        KubeError."""
        now = await read_again(self._api, pod)
        if now is None:
            return None
        statuses = now["status"].get("ephemeralContainerStatuses") or ()
        return next((status["state"] for status in statuses if status["name"] == name), {})

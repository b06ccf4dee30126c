"""Taints machines that a job found unfit, for everybody (`kubectl taint node NAME everstep/unfit:NoSchedule-` undoes).

Opt-in: by default a job only keeps its own pods off them. Tainting a node needs a right beyond the namespace.
"""

from collections.abc import Callable
from http import HTTPStatus

from everstep.runtime.platform.kubernetes.api import KubeApi, KubeError

TAINT = {"key": "everstep/unfit", "effect": "NoSchedule"}


async def taint(api: KubeApi, host: str, say: Callable[[str], None]) -> None:
    """Taint the node; if that fails, say so and go on."""
    try:
        while not await _try_taint(api, host):
            pass
        say(f"node {host} is tainted {TAINT['key']}:{TAINT['effect']}: no new pods are scheduled there")
    except KubeError as error:
        say(f"node {host} could not be tainted {TAINT['key']}: {error}")


async def _try_taint(api: KubeApi, host: str) -> bool:
    """Try once; False: somebody else has changed the node meanwhile."""
    node = await api.retry(lambda: api.get("nodes", host))
    taints = node["spec"].get("taints") or []
    if any(existing["key"] == TAINT["key"] for existing in taints):
        return True
    version = {"resourceVersion": node["metadata"]["resourceVersion"]}
    change = {"metadata": version, "spec": {"taints": [*taints, TAINT]}}
    try:
        await api.retry(lambda: api.patch("nodes", host, change))
    except KubeError as error:
        if error.status == HTTPStatus.CONFLICT:
            return False
        raise
    return True

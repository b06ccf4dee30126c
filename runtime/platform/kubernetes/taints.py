"""Machines that a job found unfit, marked for everybody (`kubectl taint node NAME everstep/unfit:NoSchedule-` undoes).

Opt-in: a job that keeps to its own pods only avoids them; to mark a node needs a right beyond the namespace.
"""

from collections.abc import Callable
from http import HTTPStatus

from everstep.runtime.platform.kubernetes.api import KubeApi, KubeError

TAINT = {"key": "everstep/unfit", "effect": "NoSchedule"}


async def taint(api: KubeApi, host: str, say: Callable[[str], None]) -> None:
    """Mark the node; where that cannot be done it is said, and the job goes on without."""
    try:
        while not await _try_taint(api, host):
            pass
        say(f"node {host} is marked {TAINT['key']}:{TAINT['effect']}: no new pod of anybody's goes there")
    except KubeError as error:
        say(f"node {host} could not be marked {TAINT['key']}: {error}")


async def _try_taint(api: KubeApi, host: str) -> bool:
    """One try; False: somebody else has changed the node meanwhile."""
    node = await api.retry(lambda: api.get("nodes", host))
    taints = node["spec"].get("taints") or []
    if any(one["key"] == TAINT["key"] for one in taints):
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

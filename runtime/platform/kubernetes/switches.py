"""The namespace's ConfigMap that maps machines to switches, in the format of DLRover."""

from http import HTTPStatus

from everstep.runtime.job.topology import TopologyError, switches
from everstep.runtime.platform.kubernetes.api import KubeApi, KubeError

NAME, KEY = "node-topology-config", "topology_config"


async def read_topology(api: KubeApi) -> tuple[str, ...]:
    """Its lines, for `JobSpec.topology`; empty if there is no such ConfigMap, or no right to read it.

    Raises KubeError for lines that cannot be read.
    """
    try:
        config_map = await api.retry(lambda: api.get("configmaps", NAME))
    except KubeError as error:
        if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.FORBIDDEN):
            return ()
        raise
    lines = tuple((config_map.get("data") or {}).get(KEY, "").splitlines())
    try:
        switches(lines)
    except TopologyError as error:
        raise KubeError(f"ConfigMap {NAME}, {KEY}: line {error}", 400) from None
    return lines

"""How the cluster's network hangs together, as whoever runs it has written down for all jobs of a namespace."""

from runtime.job.topology import TopologyError, switches
from runtime.platform.kubernetes.api import KubeApi, KubeError

TOPOLOGY = "node-topology-config"
"""A ConfigMap, named and written as DLRover's: its key `topology_config` has lines `access-switch pod-switch ip`."""
BAD_REQUEST, FORBIDDEN, NOT_FOUND = 400, 403, 404


async def topology(api: KubeApi) -> tuple[str, ...]:
    """Its lines; none where there is no such ConfigMap, or nobody lets us read it. Raises KubeError."""
    try:
        found = await api.patiently(lambda: api.get("configmaps", TOPOLOGY))
    except KubeError as error:
        if error.status in (FORBIDDEN, NOT_FOUND):
            return ()
        raise
    lines = tuple(str((found.get("data") or {}).get("topology_config") or "").splitlines())
    try:
        switches(lines)
    except TopologyError as error:
        raise KubeError(f"ConfigMap {TOPOLOGY}: topology_config line {error}", BAD_REQUEST) from None
    return lines

"""When a daemon counts as ready: its container's readinessProbe, probed on this machine (httpGet, tcpSocket).

After the Kubernetes documentation ("Configure Liveness, Readiness and Startup Probes"), but at least every second.
"""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from everstep.runtime.workflow.manifest.fields import list_at

EVERY_S = 1.0
TIMEOUT_S = 1.0


async def wait_until_ready(probe: Mapping[str, Any]) -> None:
    """Wait until the probe has passed `successThreshold` times in a row."""
    await asyncio.sleep(float(probe.get("initialDelaySeconds") or 0))
    successes_left = needed_successes = int(probe.get("successThreshold") or 1)
    while successes_left:
        successes_left = successes_left - 1 if await _passes(probe) else needed_successes
        if successes_left:
            await asyncio.sleep(min(EVERY_S, float(probe.get("periodSeconds") or EVERY_S)))


async def _passes(probe: Mapping[str, Any]) -> bool:
    timeout = float(probe.get("timeoutSeconds") or TIMEOUT_S)
    if probe.get("httpGet"):
        return await asyncio.to_thread(_http_get_succeeds, probe["httpGet"], timeout)
    place = probe["tcpSocket"]
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(place.get("host") or "127.0.0.1", place["port"])
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


def _http_get_succeeds(place: Mapping[str, Any], timeout: float) -> bool:
    """Whether the status is 200 to 399, as for the kubelet."""
    scheme, host = str(place.get("scheme") or "http").lower(), place.get("host") or "127.0.0.1"
    request = urllib.request.Request(f"{scheme}://{host}:{place['port']}/{str(place.get('path') or '').lstrip('/')}")
    for header in list_at(place, "httpHeaders"):
        request.add_header(str(header["name"]), str(header.get("value") or ""))
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout):
            return True
    except (urllib.error.URLError, OSError):
        return False

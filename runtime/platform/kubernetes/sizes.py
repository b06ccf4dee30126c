"""The ConfigMap that scales a job: `kubectl edit configmap everstep-...`, its `replicas`.

It has one line `role: number` for each role, at first with the requested sizes. The master follows every edit, and so
does a later master. The lines of its `scaleOutTimeout` are seconds: new nodes that have not joined by then are given
up. `everstep scale` also writes `requestedAt`, Unix time: the same number is a new request after nodes were given up.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from everstep.runtime.job.events import ScaleRequested
from everstep.runtime.platform.kubernetes.api import KubeApi, KubeError
from everstep.runtime.platform.kubernetes.pods import JOB, NAME, Owner, digest, object_name

KEY = "replicas"
TIMEOUT_KEY = "scaleOutTimeout"
STAMP_KEY = "requestedAt"
BOUNDS = "everstep/bounds"
"""Annotation: JSON, by role the fewest and the most nodes; shown to people who edit `replicas`."""
LOOK_AGAIN_S = 3.0
"""Seconds between two reads. Reading needs fewer rights than watching all ConfigMaps of the namespace."""
_LINE = re.compile(r"\s*([a-z][a-z0-9]*)\s*:\s*(-?[0-9]+)\s*")


def sizes_config_map(
    job: str, owner: Owner, sizes: Mapping[str, int], bounds: Mapping[str, tuple[int, int]] = {}
) -> dict[str, Any]:
    """The ConfigMap with the initial sizes. `bounds`: by role, the fewest and the most nodes."""
    metadata = {
        "name": object_name(job), "labels": {JOB: digest(job)}, "annotations": {NAME: job, BOUNDS: json.dumps(bounds)},
        "ownerReferences": [owner.reference()],
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: format_sizes(sizes)}}


def format_sizes(sizes: Mapping[str, int]) -> str:
    """The sizes as the ConfigMap's text."""
    return "".join(f"{role}: {nodes}\n" for role, nodes in sizes.items())


def parse_sizes(config_map: Mapping[str, Any], key: str = KEY) -> dict[str, int]:
    """Sizes, or the numbers of another key, by role. Raises ValueError for a line that is not `role: number`."""
    sizes = {}
    for line in ((config_map.get("data") or {}).get(key) or "").splitlines():
        if not line.strip():
            continue
        read = _LINE.fullmatch(line)
        if read is None:
            raise ValueError(f"{key}: {line.strip()!r} is not `role: number`")
        sizes[read[1]] = int(read[2])
    return sizes


def bounds_of(config_map: Mapping[str, Any], role: str) -> tuple[int, int] | None:
    """The fewest and the most nodes of a role; None where the ConfigMap does not say."""
    text = (config_map["metadata"].get("annotations") or {}).get(BOUNDS, "")
    try:
        least, most = json.loads(text)[role]
    except (ValueError, KeyError, TypeError):
        return None
    return int(least), int(most)


async def ensure_sizes(
    api: KubeApi, job: str, owner: Owner, sizes: Mapping[str, int], bounds: Mapping[str, tuple[int, int]] = {}
) -> None:
    """Create the ConfigMap unless an earlier master did. Raises KubeError."""
    await api.ensure("configmaps", sizes_config_map(job, owner, sizes, bounds))


async def watch_sizes(
    api: KubeApi, job: str, say: Callable[[str], None], wait: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> AsyncIterator[ScaleRequested]:
    """A request for each role at the start, and whenever its number, time or stamp changes.

    An unreadable ConfigMap is reported once; a deleted one changes nothing. Raises KubeError for a refusal.
    """
    name, requests, last_problem = object_name(job), dict[str, ScaleRequested](), ""
    while True:
        sizes, timeouts, stamps = dict[str, int](), dict[str, int](), dict[str, int]()
        try:
            config_map = await api.retry(lambda: api.get("configmaps", name))
            timeouts, stamps = parse_sizes(config_map, TIMEOUT_KEY), parse_sizes(config_map, STAMP_KEY)
            sizes = parse_sizes(config_map)
        except KubeError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
        except ValueError as error:
            if (text := f"ConfigMap {name}, {error}") != last_problem:
                last_problem = text
                say(text)
        for role, nodes in sizes.items():
            request = ScaleRequested(role, nodes, max(timeouts.get(role, 0), 0), stamps.get(role, 0))
            if requests.get(role) != request:
                requests[role] = request
                yield request
        await wait(LOOK_AGAIN_S)

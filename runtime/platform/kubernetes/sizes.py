"""The ConfigMap by which somebody scales a job: `kubectl edit configmap everstep-...`, its `replicas`.

One line `role: number` for each role. It is made with what the job was asked for; whoever edits it is obeyed, also by
the master after this one.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any

from everstep.runtime.platform.kubernetes.api import KubeApi, KubeError
from everstep.runtime.platform.kubernetes.pods import JOB, NAME, Owner, digest, secret_name

KEY = "replicas"
LOOK_AGAIN_S = 3.0
"""How often it is read: that asks for fewer rights than to watch every ConfigMap of the namespace."""
_LINE = re.compile(r"\s*([a-z][a-z0-9]*)\s*:\s*(-?[0-9]+)\s*")


def sizes_config_map(job: str, owner: Owner, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The ConfigMap, as it begins."""
    metadata = {
        "name": secret_name(job), "labels": {JOB: digest(job)}, "annotations": {NAME: job},
        "ownerReferences": [owner.reference()],
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: format_sizes(sizes)}}


def format_sizes(sizes: Mapping[str, int]) -> str:
    """As it stands there."""
    return "".join(f"{role}: {nodes}\n" for role, nodes in sizes.items())


def parse_sizes(found: Mapping[str, Any]) -> dict[str, int]:
    """By role. Raises ValueError for a line that says none."""
    sizes = {}
    for line in ((found.get("data") or {}).get(KEY) or "").splitlines():
        if not line.strip():
            continue
        read = _LINE.fullmatch(line)
        if read is None:
            raise ValueError(f"{KEY}: {line.strip()!r} is no `role: number`")
        sizes[read[1]] = int(read[2])
    return sizes


async def ensure_sizes(api: KubeApi, job: str, owner: Owner, sizes: Mapping[str, int]) -> None:
    """The ConfigMap is there, made now or by an earlier master. Raises KubeError."""
    await api.ensure("configmaps", sizes_config_map(job, owner, sizes))


async def watch_sizes(
    api: KubeApi, job: str, say: Callable[[str], None], wait: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> AsyncIterator[tuple[str, int]]:
    """(role, nodes) for each number that stands there first and whenever it is another one.

    What cannot be read is said once; a ConfigMap that somebody deleted says nothing. Raises KubeError for a refusal.
    """
    name, known, said = secret_name(job), {}, ""
    while True:
        try:
            there = parse_sizes(await api.retry(lambda: api.get("configmaps", name)))
        except KubeError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            there = {}
        except ValueError as error:
            there = {}
            if (text := f"ConfigMap {name}, {error}") != said:
                said = text
                say(text)
        for role, nodes in there.items():
            if known.get(role) != nodes:
                known[role] = nodes
                yield role, nodes
        await wait(LOOK_AGAIN_S)

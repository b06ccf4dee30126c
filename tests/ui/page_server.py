"""The page's server in this process, over a folder of runs."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from everstep.cli.ui.server import serve
from everstep.cli.ui.sources import LocalRuns, Source
from everstep.runtime.net.token_gate import listen

TOKEN = "the-token-of-this-test"


def serve_page(runs: Path) -> AbstractAsyncContextManager[str]:
    """Its address, `http://127.0.0.1:PORT`."""
    return served_from(LocalRuns(runs))


@asynccontextmanager
async def served_from(source: Source) -> AsyncIterator[str]:
    """The same over any source of runs."""
    listener = listen("127.0.0.1", 0)
    serving = asyncio.create_task(serve({source.place: source}, listener, TOKEN))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


async def first_event(session: aiohttp.ClientSession, address: str, expected_kind: str) -> Any:
    """The data of the first event of that kind."""
    ((_, data),) = await first_events(session, address, {expected_kind}, 1)
    return data


async def first_events(
    session: aiohttp.ClientSession, address: str, expected_kinds: Collection[str], count: int
) -> list[tuple[str, Any]]:
    """(kind, data) of the first events of those kinds."""
    headers, events, kind = {"Authorization": f"Bearer {TOKEN}"}, list[tuple[str, Any]](), ""
    async with asyncio.timeout(60), session.get(address, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            name, _, value = line.decode().rstrip("\n").partition(": ")
            kind = value if name == "event" else kind
            if name == "data" and kind in expected_kinds:
                events.append((kind, json.loads(value)))
                if len(events) == count:
                    return events
    raise AssertionError(f"only {len(events)} of {count} events {', '.join(expected_kinds)}")


def write_run(runs: Path, name: str, phase: str = "Succeeded", *, message: str = "", began: int = 0) -> Path:
    """A run of two steps that an executor left, without a store."""
    stamp = f"2026-05-01T{began // 3600 % 24:02d}:{began // 60 % 60:02d}:{began % 60:02d}Z"
    node = {
        "id": f"{name}-1", "name": f"{name}.train", "displayName": "train", "type": "Pod", "phase": phase,
        "templateName": "train", "boundaryID": name, "startedAt": stamp, "finishedAt": stamp, "message": message,
    }  # fmt: skip
    root = {"id": name, "name": name, "displayName": name, "type": "DAG", "phase": phase, "startedAt": stamp}
    tasks = [{"name": "train", "template": "train"}, {"name": "evaluate", "template": "evaluate", "depends": "train"}]
    workflow = {
        "metadata": {"name": name, "uid": "u", "creationTimestamp": stamp},
        "spec": {"entrypoint": "main", "templates": [{"name": "main", "dag": {"tasks": tasks}}]},
        "status": {
            "phase": phase, "message": message, "startedAt": stamp, "finishedAt": stamp,
            "nodes": {name: root, node["id"]: node},
        },
    }  # fmt: skip
    folder = runs / name
    (folder / "logs").mkdir(parents=True)
    (folder / "workflow.json").write_text(json.dumps(workflow))
    (folder / "lock").touch()
    return folder

"""Nodes that join by themselves, as under `everstep launch`: the platform creates none."""

import asyncio
from collections.abc import AsyncIterator

from everstep.runtime.platform import Node, NodeEnd, NodeRequest


class JoinedPlatform:
    """The platform of a job with the placement `joined`."""

    async def observe(self) -> list[Node]:
        """None: nodes are known by their joins and heartbeats."""
        return []

    async def create(self, request: NodeRequest) -> Node:
        """Raises OSError: this platform cannot create nodes."""
        raise OSError(f"{request.name}: this job's nodes join by themselves; start `everstep launch` on another host")

    async def delete(self, name: str, uid: str) -> None:
        """Does nothing: nodes end when they are told to leave."""

    async def node_ends(self) -> AsyncIterator[NodeEnd]:
        """Never yields: a silent node is lost."""
        await asyncio.Event().wait()
        for never in ():
            yield never

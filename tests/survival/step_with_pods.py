"""A train step that takes the processes of this machine for pods: its nodes stand in for it, as in a cluster."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from everstep.steps.entry import main
from everstep.steps.train import run
from everstep.steps.train.config import Config

node_backend = run.node_backend


@asynccontextmanager
async def with_pods(*arguments: Any) -> AsyncIterator[run.NodeBackend]:
    """This machine."""
    async with node_backend(*arguments) as place:
        yield place._replace(has_pods=True)


if __name__ == "__main__":
    run.node_backend, run.TAKE_BACK_S = with_pods, 2.0
    main("train", Config, run.run)

"""Retries calls to a failing store for as long as agents wait for a master."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from everstep.runtime.store import StoreError
from everstep.runtime.system.backoff import backoff

PATIENCE_S = 300.0
"""The default of an agent's dead man's timer: after it no agent is left to decide for."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


async def retry(what: str, call: Callable[[], T], stop: asyncio.Event | None = None) -> T:
    """Run `call` in a thread until it raises no StoreError, and return its result. Raises the last StoreError after
    PATIENCE_S, or once `stop` is set.

    `call` must be idempotent: it may have succeeded although it raised.
    """
    now = asyncio.get_running_loop().time
    until, pauses, has_failed = now() + PATIENCE_S, backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), False
    while True:
        try:
            result = await asyncio.to_thread(call)
        except StoreError as error:
            pause = next(pauses)
            if now() + pause > until or (stop and stop.is_set()):
                raise
            if not has_failed:
                _log.warning("%s: the store fails, retrying: %s", what, error)
            has_failed = True
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await (stop or asyncio.Event()).wait()
        else:
            if has_failed:
                _log.warning("%s: the store works again", what)
            return result

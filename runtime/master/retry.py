"""A store that fails is asked again, for as long as the agents would wait for a master."""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from everstep.runtime.store import StoreError

PATIENCE_S = 300.0
"""As long as an agent's dead-man timer, by default: afterwards there is nobody left to decide for."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0

T = TypeVar("T")
_log = logging.getLogger(__name__)


async def retry(what: str, call: Callable[[], T]) -> T:
    """The result of `call`, run off the event loop until it raises no StoreError. Raises the last one in the end.

    `call` must be one that may be repeated: it may have succeeded although it raised.
    """
    now = asyncio.get_running_loop().time
    until, pause, failed = now() + PATIENCE_S, FIRST_PAUSE_S, False
    while True:
        try:
            result = await asyncio.to_thread(call)
        except StoreError as error:
            if now() + pause > until:
                raise
            if not failed:
                _log.warning("%s: the store refuses, trying again: %s", what, error)
            failed = True
        else:
            if failed:
                _log.warning("%s: the store has taken it", what)
            return result
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)

"""An event loop in a thread of its own: callers in any thread wait for what is done in it."""

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

T = TypeVar("T")
END = object()
CLOSE_S = 2.0
"""How long the end of the process waits for connections to close."""


class LoopThread:
    """Runs coroutines until nobody refers to it any more."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def enter(self, manager: AbstractAsyncContextManager[T]) -> T:
        """Enter the context now; leave it when this object goes, at the latest when the process ends."""
        value = self.result(manager.__aenter__())
        weakref.finalize(self, _leave, self._loop, self._thread, manager)
        return value

    def result(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What the coroutine returns or raises. Ctrl-C interrupts the wait, not the coroutine."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def items(self, stream: AsyncIterator[T]) -> Iterator[T]:
        """The items of an asynchronous generator, as they come; it is closed when this generator is."""

        async def following() -> Any:
            return await anext(stream, END)

        async def close() -> None:
            await stream.aclose()  # type: ignore[attr-defined]

        try:
            while (item := self.result(following())) is not END:
                yield item
        finally:
            self.result(close())


def _leave(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, manager: AbstractAsyncContextManager[Any]
) -> None:
    async def leave() -> None:
        try:
            await manager.__aexit__(None, None, None)
        finally:
            loop.stop()

    asyncio.run_coroutine_threadsafe(leave(), loop)
    if threading.current_thread() is not thread:
        thread.join(CLOSE_S)

"""How a node comes to go although its master did not say so: a signal gave it notice, or no master answers any more."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from everstep.runtime.agent.client import MasterClient
from everstep.runtime.agent.dependencies import Leave
from everstep.runtime.agent.settings import Settings
from everstep.runtime.agent.talk import MasterDialogue
from everstep.runtime.exit_codes import ExitCode

_SAVE_S = 20.0


class Shutdown:
    """Of one node."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._given = asyncio.Event()
        self._hurry = asyncio.Event()
        self.signal = signal.SIGTERM
        """What gave notice; the workers get the same."""

    @property
    def has_notice(self) -> bool:
        """Was notice given?"""
        return self._given.is_set()

    def give_notice(self, signum: signal.Signals) -> None:
        """A signal that ends the node; the second one ends it at once."""
        if self.has_notice:
            self._hurry.set()
        else:
            self.signal = signum
            self._given.set()

    async def wait_for_notice(self) -> None:
        """Until notice was given."""
        await self._given.wait()

    async def leave_on_notice(
        self, client: MasterClient, talk: MasterDialogue, known: Callable[[], bool], save: Callable[[], Awaitable[None]]
    ) -> NoReturn:
        """From the notice on: the node is going, and says so if the master knows it. Raises Leave when it must go.

        A node that is alone (no time for a notice) only has its state saved.
        """
        await self._given.wait()
        notice_s, name = self._settings.notice_s, self.signal.name
        if known() and not notice_s:
            saving = asyncio.ensure_future(save())
            hurry = asyncio.ensure_future(self._hurry.wait())
            await asyncio.wait([saving, hurry], timeout=_SAVE_S, return_when=asyncio.FIRST_COMPLETED)
            saving.cancel()
            hurry.cancel()
        elif known():
            self._say(f"{name}: this node leaves within {notice_s:g} s; a second one ends it at once")
            trains_s = notice_s - min(self._settings.grace_s, notice_s / 4)  # Then its workers are told to end.
            try:
                async with asyncio.timeout(trains_s):
                    await client.report_leaving(talk.leaving_message(f"told to end by {name}", trains_s))
                    await self._hurry.wait()
            except TimeoutError:
                pass
        raise Leave(128 + self.signal, f"told to end by {name}")

    async def leave_without_master(self, client: MasterClient) -> NoReturn:
        """Raises Leave when none has answered for too long."""
        while True:
            limit_s = self._settings.dead_man_s if client.met else self._settings.connect_s
            left = client.heard + limit_s - time.monotonic()
            if left <= 0:
                raise Leave(ExitCode.TRY_AGAIN, f"no master of this job answered for {limit_s:g} s")
            await asyncio.sleep(left)

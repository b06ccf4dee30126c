"""Ends a node without a directive of its master: after a signal, or if no master answers."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

from everstep.runtime.agent.client import MasterClient
from everstep.runtime.agent.dependencies import Leave
from everstep.runtime.agent.master_dialogue import MasterDialogue
from everstep.runtime.agent.settings import Settings
from everstep.runtime.exit_codes import ExitCode

_SAVE_S = 20.0
_MASTER_S = 5.0
"""How long a master may take to hear that this node has to go; the rest of the notice is for the newest state."""


class Shutdown:
    """The shutdown of one node."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._given = asyncio.Event()
        self._hurry = asyncio.Event()
        self.signal = signal.SIGTERM
        """The signal that gave notice; the workers get the same one."""

    @property
    def has_notice(self) -> bool:
        """Whether a signal has told the node to end."""
        return self._given.is_set()

    def give_notice(self, signum: signal.Signals) -> None:
        """Handle a signal that ends the node; a second one ends it at once."""
        if self.has_notice:
            self._hurry.set()
        else:
            self.signal = signum
            self._given.set()

    async def leave_on_notice(
        self, client: MasterClient, dialogue: MasterDialogue, save: Callable[[], Awaitable[None]]
    ) -> NoReturn:
        """Wait for notice, then tell the master if it knows this node, and raise Leave when the time is over.

        A node without time for a notice (a single-node run) only saves its state.
        """
        await self._given.wait()
        notice_s, name = self._settings.notice_s, self.signal.name
        if dialogue.is_known and not notice_s:
            saving = asyncio.ensure_future(save())
            hurry = asyncio.ensure_future(self._hurry.wait())
            await asyncio.wait([saving, hurry], timeout=_SAVE_S, return_when=asyncio.FIRST_COMPLETED)
            saving.cancel()
            hurry.cancel()
        elif dialogue.is_known:
            self._say(f"{name}: this node leaves within {notice_s:g} s; a second one ends it at once")
            trains_s = notice_s - min(self._settings.grace_s, notice_s / 4)  # Then the workers are told to end.
            try:
                async with asyncio.timeout(trains_s):
                    async with asyncio.timeout(_MASTER_S):  # Without one nobody comes instead of this node.
                        await client.report_leaving(dialogue.leaving_message(f"stopped by {name}", trains_s))
                    await self._hurry.wait()
            except TimeoutError:
                pass
        raise Leave(128 + self.signal, f"stopped by {name}")

    async def leave_without_master(self, client: MasterClient) -> NoReturn:
        """Raise Leave once no master has answered for too long."""
        while True:
            limit_s = self._settings.dead_man_s if client.met else self._settings.connect_s
            remaining_s = client.answered_at + limit_s - time.monotonic()
            if remaining_s <= 0:
                raise Leave(ExitCode.TRY_AGAIN, f"no master of this job answered for {limit_s:g} s")
            await asyncio.sleep(remaining_s)

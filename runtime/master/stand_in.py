"""A master that an agent runs while the job's own does not answer, so that the nodes that are left go on without it.

The machine of the job's own master may be lost, and a cluster takes its time to say so (Kubernetes usually a minute,
and Argo waits for the pod until somebody removes it). A stand-in forms rounds of the nodes that are there, and creates
and deletes none. It ends when the job's own master takes the job back: it claims the job, as any newer master does.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from everstep.runtime.journal.journal import read_state
from everstep.runtime.master.left_spec import read_spec
from everstep.runtime.master.master import AgentCommand, Control, ListenAddress, run
from everstep.runtime.net.tls import Credentials
from everstep.runtime.platform.self_joining import JoinedPlatform
from everstep.runtime.store import NoSuchKey, Store

LONGEST_S = 12 * 3600.0
"""A stand-in ends after this long without the job's own master: somebody may have given the job up."""


async def stand_in(store: Store, job: str, credentials: Credentials, host: str, say: Callable[[str], None]) -> None:
    """Claim the job and be its master at `host`, on any free port, until another one takes it over.

    Raises StoreError, JournalError, CannotListen; ValueError if there is nothing to stand in for.
    """
    try:
        spec = await asyncio.to_thread(read_spec, store, job)
    except NoSuchKey:
        raise ValueError("the last one has left no spec") from None
    if (await asyncio.to_thread(read_state, store, job)).ended:
        raise ValueError("the job has ended")
    say("the master does not answer; this node stands in for it")
    why = f"it has not come back for {LONGEST_S / 3600:.0f} hours"
    with suppress(TimeoutError):
        async with asyncio.timeout(LONGEST_S):
            at = ListenAddress(host)
            agents, control = AgentCommand(), Control(asyncio.Event())
            outcome = await run(spec, store, JoinedPlatform(), credentials, agents, control, at, stands_in=True)
            why = outcome.reason
    say(f"this node does not stand in for the master any more: {why}")

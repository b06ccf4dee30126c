"""Peer copies: what a rank staged of a sharded state also lies in the memory of another failure domain.

The node that staged a shard asks its peer to fetch it, one state at a time for each local rank; a rank stages the next
one only when that is done (or has failed, which is told). So while ranks keep step, as collectives make them, the last
two states of every surviving rank (`slots.KEPT_SHARDED`) include the last one of which a lost node's shards were
copied: whatever one failure domain is lost, some (round, iteration) is held whole in memory.

Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints" (SOSP 2023), for copying
every iteration's state to a fixed peer.
"""

import http.client
import logging
import threading
import time
from collections.abc import Callable

import msgspec

from everstep.runtime.checkpoint.errors import KeeperError, RestoreError, SegmentError
from everstep.runtime.checkpoint.node.round_restore import Around
from everstep.runtime.checkpoint.node.segments import Held, Segments, copies_of
from everstep.runtime.checkpoint.node.slots import Identity
from everstep.runtime.checkpoint.shard.fetch import PEER_TIMEOUT_S, fetch
from everstep.runtime.net.tls import Credentials
from everstep.runtime.protocol.messages import Holding

PATH = "/v1/copies"
"""Where an agent is asked to fetch a copy: POST of the Holding. It answers with a dot whenever it has got on, at most
every half second, and at the end with HELD or why it cannot."""
HELD = "held"
SILENT_S = 1.5
"""A peer that tells nothing for so long is given up, and with it the copy: no save waits longer for one that is dead,
frozen or cut off."""
AGAIN_S = 20.0
"""So long no more copies are asked of it: each would cost a save that wait again."""
_PART = 4096
_LOOKS_S = 0.5
_UNDONE = "another round began from an earlier state"
_log = logging.getLogger("everstep.checkpoint")


class Sender:
    """Asks the peer to fetch. `begin`, `send` and `busy` are called holding the keeper's lock."""

    def __init__(self, segments: Segments, credentials: Credentials, described: Callable[[Held, int], Holding]) -> None:
        """`described` is what others are told of a pinned slot; it is called without the lock."""
        self._segments, self._changed, self._credentials = segments, segments.changed, credentials
        self._described = described
        self._peer = ""
        self._under_way: dict[int, object] = {}
        """What stands for the copy that is on its way: another round may send the same state to another peer."""
        self._told = ""
        self._silent_until = 0.0

    def begin(self, peer: str) -> None:
        """A round begins, with the agent at that address as peer; empty: there is no other failure domain."""
        self._peer, self._told, self._silent_until = peer, "", 0.0
        self._under_way.clear()

    @property
    def has_peer(self) -> bool:
        """Is there another failure domain?"""
        return bool(self._peer)

    def busy(self, local_rank: int) -> bool:
        """Is what that worker staged last still on its way?"""
        return local_rank in self._under_way

    def send(self, local_rank: int, held: Held, slot: int) -> None:
        """Have that whole state copied, in a thread."""
        identity = held.table[slot].identity
        if not self._peer or identity is None or local_rank in self._under_way:
            return
        if time.monotonic() < self._silent_until:
            return
        held.table.pin(slot)
        mark = self._under_way[local_rank] = object()
        job = (self._peer, local_rank, held, slot, identity, mark)
        threading.Thread(target=self._run, args=job, name="everstep-copy", daemon=True).start()

    def _run(self, peer: str, local_rank: int, held: Held, slot: int, identity: Identity, mark: object) -> None:
        why, silent = "", False
        try:
            why = _ask(peer, self._described(held, slot), self._credentials)
        except RestoreError as error:
            why = str(error)
        except TimeoutError:
            why, silent = f"{peer} has told nothing for {SILENT_S:g} s; it is asked again in {AGAIN_S:g} s", True
        finally:
            with self._changed:
                if silent and peer == self._peer:
                    self._silent_until = time.monotonic() + AGAIN_S
                if self._under_way.get(local_rank) is mark:
                    del self._under_way[local_rank]
                self._segments.unpin(held, slot)
        with self._changed:
            if not why or peer != self._peer or why == self._told:
                return
            self._told = why
        _log.warning(
            "iteration %d, shard %d has no copy in a peer's memory: %s", identity.iteration, identity.shard, why
        )


def _ask(peer: str, holding: Holding, credentials: Credentials) -> str:
    """Returns when the peer holds the copy; the reason when it cannot. Raises TimeoutError for a silent one."""
    connection = credentials.connection(peer, SILENT_S)
    try:
        headers = {**credentials.headers, "Content-Type": "application/json"}
        connection.request("POST", PATH, msgspec.json.encode(holding), headers)
        answer = connection.getresponse()
        told = b""
        while part := answer.read1(_PART):
            told = (told + part).lstrip(b".")
        text = told.decode(errors="replace")
        return "" if answer.status == http.client.OK and text == HELD else f"{peer} answered {answer.status}: {text}"
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException) as error:
        return f"{peer}: {error}"
    finally:
        connection.close()


def receive(source: Holding, around: Around, came: Callable[[], None]) -> None:
    """Fetch a copy of a peer's shard into this node's memory, its bytes checked; returns when it is held.

    `came` is called whenever it gets on: memory or bytes have come. Raises KeeperError: no room, or not the bytes that
    were promised.
    """
    identity = Identity(source.round, source.iteration, source.shard, source.shards)
    changed, segments = around.changed, around.segments
    with changed:
        place = _place(identity, source.size, around, came)
    if place is None:
        return
    held, slot = place
    try:
        fetch(source, held.file.slot(slot)[: source.size], around.store, around.credentials, came)
    except RestoreError as error:
        with changed:
            held.table.abandon(slot)
            changed.notify_all()
        raise KeeperError(str(error)) from None
    with changed:
        if segments.undone(identity):  # The round ended meanwhile.
            held.table.abandon(slot)
            changed.notify_all()
            raise KeeperError(_UNDONE)
        held.table.stage(slot, source.size)
        whole = held.table.find(identity)  # Another slot when it was asked for twice at a time.
        assert whole is not None
        held.table.digested(whole, source.digest)
        changed.notify_all()


def _place(identity: Identity, size: int, around: Around, came: Callable[[], None]) -> tuple[Held, int] | None:
    """A slot to write that copy to, None when it is held already; called holding the keeper's lock, which it lets go
    while it waits. All slots for copies have their memory then, or none is used."""
    segments, given_up = around.segments, time.monotonic() + PEER_TIMEOUT_S

    def there() -> bool:
        if segments.find(identity):
            return True
        if segments.undone(identity):
            raise KeeperError(_UNDONE)
        return False

    held: Held | None = None
    while not there():
        if held is not None and held.broken:
            raise KeeperError(held.broken)
        try:
            held = segments.to_fetch_into(copies_of(identity.shard), size)
        except SegmentError as error:
            raise KeeperError(str(error)) from None
        if held.table.absent():
            around.changed.wait(_LOOKS_S)  # Its memory is coming.
            came()
            given_up = time.monotonic() + PEER_TIMEOUT_S
            continue
        slot = held.table.acquire(identity)
        if slot is not None:
            return held, slot
        # Both slots are busy while somebody reads one and an earlier fetch goes on.
        if not around.changed.wait(max(0.0, given_up - time.monotonic())):
            raise KeeperError(f"shard {identity.shard} is still read or fetched after {PEER_TIMEOUT_S:g} s")
    return None

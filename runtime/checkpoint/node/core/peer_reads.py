"""What other nodes learn and read of this node's memory.

Invariant: a slot stays pinned exactly as long as its reader is there.
"""

from dataclasses import dataclass, field

from everstep.runtime.checkpoint.node.core.events import ListHoldings, OpenShard, ReaderGone
from everstep.runtime.checkpoint.node.core.segments import Pin, Reader, Segments
from everstep.runtime.checkpoint.node.core.transaction import Transaction
from everstep.runtime.protocol.holdings import Holding


@dataclass(eq=False)
class _Listing:
    """A ListHoldings whose digests are not all known yet."""

    ticket: int
    pins: dict[Pin, int]
    """Shards whose digest is unknown -> their position in the answer."""
    holdings: dict[int, Holding] = field(default_factory=dict)
    """By position."""


class PeerReads:
    """Reads of one node's memory by other nodes."""

    def __init__(self, tx: Transaction, segments: Segments, node: str) -> None:
        self._tx, self._segments, self._node = tx, segments, node
        self._address = ""
        """Where peers read this node's memory, as of the last ListHoldings."""
        self._listings: list[_Listing] = []
        self._pins: dict[int, Pin] = {}
        """Of peers, by ticket."""

    def describe(self, pin: Pin) -> Holding:
        """A slot whose digest is known, as other nodes learn of it."""
        place = {"node": self._node, "address": self._address, "index": max(pin.segment.local_rank, 0)}
        return Holding(*pin.identity, size=pin.location.size, digest=pin.digest, **place)

    def list_holdings(self, event: ListHoldings) -> None:
        """List every complete shard, once its digest is known."""
        self._address = event.address
        slots = [(segment, slot) for segment in self._segments.all() for slot in segment.table.complete()]
        pins = {self._segments.pin(*slot, Reader.LIST): position for position, slot in enumerate(slots)}
        self._listings.append(_Listing(event.ticket, pins))

    def advance(self) -> bool:
        """Take up the digests that are known by now, and answer where none is missing. Returns whether it did any."""
        has_moved = False
        for listing in list(self._listings):
            for pin in [pin for pin in listing.pins if pin.digest or pin.flaw]:
                has_moved = True
                if not pin.flaw:
                    listing.holdings[listing.pins[pin]] = self.describe(pin)
                del listing.pins[pin]
                self._segments.unpin(pin)
            if not listing.pins:
                has_moved = True
                self._listings.remove(listing)
                self._answer(listing)
        return has_moved

    def _answer(self, listing: _Listing) -> None:
        self._tx.answer(listing.ticket, tuple(listing.holdings[position] for position in sorted(listing.holdings)))

    def open_shard(self, event: OpenShard) -> None:
        """A peer begins to read."""
        slot = self._segments.find_shard(event.round, event.iteration, event.shard)
        if slot is None:
            self._tx.answer(event.ticket)
            return
        pin = self._pins[event.ticket] = self._segments.pin(*slot, Reader.PEER)
        self._tx.answer(event.ticket, pin.location)

    def close_shard(self, event: ReaderGone) -> None:
        """The peer has finished."""
        self._segments.unpin(self._pins.pop(event.ticket))

    def close(self) -> None:
        """List what is known by now. Peers finish reading."""
        for listing in self._listings:
            for pin in listing.pins:
                self._segments.unpin(pin)
            self._answer(listing)
        self._listings.clear()

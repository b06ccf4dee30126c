"""Who reads this node's memory: peers that fetch a shard, and masters that are told what is held. Pure: no IO.

Invariant: a slot stays pinned as long as its reader is there, and no longer.
"""

from dataclasses import dataclass, field

from everstep.runtime.checkpoint.node.core.events import Answer, ListHoldings, Read
from everstep.runtime.checkpoint.node.core.segments import Pin, Reader, Segments
from everstep.runtime.protocol.messages import Holding


@dataclass(eq=False)
class _Listing:
    """A ListHoldings whose digests are not all known."""

    ticket: int
    pins: dict[Pin, int]
    """Those that are not known yet, and their places in the answer."""
    found: dict[int, Holding] = field(default_factory=dict)
    """By place."""

    def answer(self) -> Answer:
        """What is known by now."""
        return Answer(self.ticket, tuple(self.found[place] for place in sorted(self.found)))


class Reading:
    """Of one node's memory."""

    def __init__(self, segments: Segments, node: str) -> None:
        self._segments, self._node = segments, node
        self._address = ""
        """Where peers read this node's memory, as the last join told it."""
        self._listings: list[_Listing] = []
        self._reads: dict[int, Pin] = {}
        """By ticket."""

    def describe(self, pin: Pin) -> Holding:
        """What others are told of a slot whose digest is known."""
        place = {"node": self._node, "address": self._address, "index": max(pin.segment.local_rank, 0)}
        return Holding(*pin.identity, size=pin.where.size, digest=pin.digest, **place)

    def list_all(self, asked: ListHoldings) -> None:
        """Everything that is whole; missing digests are computed first."""
        self._address = asked.address
        whole = [(segment, slot) for segment in self._segments.all() for slot in segment.table.whole()]
        pins = {self._segments.pin(*found, Reader.LIST): place for place, found in enumerate(whole)}
        self._listings.append(_Listing(asked.ticket, pins))

    def advance(self) -> bool:
        """Note what is known by now, answer where nothing is missing; was there any?"""
        moved = False
        for listing in list(self._listings):
            for pin in [pin for pin in listing.pins if pin.digest or pin.flaw]:
                moved = True
                if not pin.flaw:
                    listing.found[listing.pins[pin]] = self.describe(pin)
                del listing.pins[pin]
                self._segments.unpin(pin)
            if not listing.pins:
                moved = True
                self._listings.remove(listing)
                self._segments.act(listing.answer())
        return moved

    def open(self, asked: Read) -> None:
        """A peer reads until it is gone."""
        found = self._segments.find_shard(asked.round, asked.iteration, asked.shard)
        if found is None:
            self._segments.act(Answer(asked.ticket))
            return
        pin = self._reads[asked.ticket] = self._segments.pin(*found, Reader.PEER)
        self._segments.act(Answer(asked.ticket, pin.where))

    def gone(self, ticket: int) -> None:
        """That one reads no more."""
        self._segments.unpin(self._reads.pop(ticket))

    def close(self) -> None:
        """Who is to be told hears what is known; peers read on."""
        for listing in self._listings:
            for pin in listing.pins:
                self._segments.unpin(pin)
            self._segments.act(listing.answer())
        self._listings.clear()

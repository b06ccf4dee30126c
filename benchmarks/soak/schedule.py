"""Which faults happen when, from a seed."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from everstep.runtime.chaos import Fault, Kind

MEAN_GAP_S = 15.0
PAIR_SHARE, RECOVERY_SHARE = 0.15, 0.15
"""Of all faults: those that another one accompanies at once, and those that another one meets while it is recovered
from."""
RECOVERY_S = 0.6
"""A second fault that comes so long after the first finds it being recovered from."""
SHORT_S = 3.0
"""How long a fault that lasts does so: less than the silence after which a node is given up."""
KINDS = (
    Kind.CRASH,
    Kind.NODE,
    Kind.FORK_SERVER,
    Kind.MASTER,
    Kind.PREEMPT,
    Kind.FREEZE,
    Kind.SLOW,
    Kind.CPU,
    Kind.MEMORY,
    Kind.OOM,
    Kind.STORE,
    Kind.SLOW_DISK,
    Kind.RESIZE,
    Kind.EVERYTHING,
)
PARTNERS = (Kind.CRASH, Kind.NODE, Kind.FORK_SERVER, Kind.MASTER)
"""Kinds that may accompany any other."""
LEFT_OUT = {
    Kind.FAULTY: "a check before the training: the drill has it",
    Kind.NETWORK: "a node is given up after its silence, which takes longer than the limit here: the drill has it",
    Kind.DISK: "only a store on a file system of its own has it",
    Kind.CLOCK: "recoveries are measured by the times that nodes report",
    Kind.EVICT: "only pods have it",
    Kind.CONTAINER: "only pods have it",
    Kind.CORDON: "only machines of a cluster have it",
    Kind.TAINT: "only machines of a cluster have it",
}


@dataclass(frozen=True)
class PlannedFault:
    """A fault that is to come."""

    at_s: float
    """After the first iterations."""
    fault: Fault
    how: str = ""
    """Empty: alone; else in which company."""


def plan(seconds: float, seed: int) -> Iterator[PlannedFault]:
    """Faults until then, in the order of their time. Each kind comes once before any comes again."""
    chance = random.Random(seed)
    at_s, deck = 0.0, list[Kind]()
    while True:
        at_s += chance.expovariate(1 / MEAN_GAP_S)
        if at_s >= seconds:
            return
        if not deck:
            deck = list(KINDS)
            chance.shuffle(deck)
        yield PlannedFault(at_s, _fault(deck.pop()))
        company = chance.random()
        if company < PAIR_SHARE:
            yield PlannedFault(at_s, _fault(chance.choice(PARTNERS)), "with the one before")
        elif company < PAIR_SHARE + RECOVERY_SHARE:
            yield PlannedFault(at_s + RECOVERY_S, _fault(chance.choice(PARTNERS)), "while that is recovered from")


def _fault(kind: Kind) -> Fault:
    return Fault(kind, seconds=SHORT_S, share=0.8)

"""Warm spares: processes that have done an iteration of the script by themselves, and wait for a seat.

A worker that dies is followed by a spare of its node, if one is warm: it has imported, built and compiled what a new
process would have to. Only scripts that survive rounds have spares, as only these can be seated later.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from everstep.runtime.agent.output import Pipe
from everstep.runtime.agent.settings import Settings
from everstep.runtime.platform.devices import may_have_devices
from everstep.runtime.protocol.survivor_link import Rehearsed


def must_be_gone(settings: Settings, environment: Mapping[str, str]) -> bool:
    """Whether a spare needs what a dead worker still has while the kernel frees its memory: devices may write that
    memory, and the port that the user chose is bound, where others would meet a listener that is about to close."""
    return may_have_devices(environment) or settings.meet is not None


@dataclass
class Spare:
    """One spare process."""

    local_rank: int
    """The worker whose part it rehearses."""
    command: Sequence[str]
    cpus: Sequence[int]
    """Those that it is bound to; empty: all."""
    output: Pipe
    is_warm: bool = False

    def fits(self, command: Sequence[str], cpus: Sequence[int]) -> bool:
        """Can it take this worker's place? What it has in memory is near the CPUs that it is bound to."""
        return self.is_warm and tuple(self.cpus) == tuple(cpus) and tuple(self.command) == tuple(command)


class Spares:
    """The spares of one node, by the fork server's number."""

    def __init__(self, note: Callable[[str], None], has_devices: bool = False) -> None:
        """`note` gets lines for the log. `has_devices`: each local rank may have a device of its own, on which a spare
        keeps memory, and for which it has compiled: it takes the place of no other."""
        self._note = note
        self._has_devices = has_devices
        self._spares: dict[int, Spare] = {}
        self.failed_at: float | None = None
        """When a spare last ended by itself."""
        self.state_bytes = 0
        """How large a slot for the script's state is, as the last rehearsal found; 0: not known."""

    def __contains__(self, number: int) -> bool:
        return number in self._spares

    def numbers(self) -> list[int]:
        """Of all, in the order in which they were started."""
        return list(self._spares)

    def local_ranks(self) -> list[int]:
        """Whose parts they rehearse."""
        return [spare.local_rank for spare in self._spares.values()]

    @property
    def warm(self) -> int:
        """How many are warm."""
        return sum(spare.is_warm for spare in self._spares.values())

    @property
    def rehearses(self) -> bool:
        """Is one not warm yet?"""
        return any(not spare.is_warm for spare in self._spares.values())

    def add(self, number: int, spare: Spare) -> None:
        """Another one was started."""
        self._spares[number] = spare

    def take(self, local_rank: int, command: Sequence[str], cpus: Sequence[int]) -> tuple[int, Spare] | None:
        """Remove and return the spare to take this worker's place: one that rehearsed its part if there is one."""
        fitting = [
            number
            for number, spare in self._spares.items()
            if spare.fits(command, cpus) and (spare.local_rank == local_rank or not self._has_devices)
        ]
        if not fitting:
            return None
        number = min(fitting, key=lambda number: self._spares[number].local_rank != local_rank)
        return number, self._spares.pop(number)

    def note_rehearsed(self, number: int, message: Rehearsed) -> None:
        """It is warm."""
        self._spares[number].is_warm = True
        self.state_bytes = message.state_bytes
        but = f"; its rehearsal ended early: {message.problem}" if message.problem else ""
        self._note(f"a spare is warm after {message.seconds:.1f} s{but}")

    def bury(self, number: int, exit_code: int, now: float) -> None:
        """It is dead."""
        spare = self._spares.pop(number)
        spare.output.close()
        self.failed_at = now
        *_, last = spare.output.last_words().splitlines() or [""]
        self._note(f"a spare ended with exit code {exit_code}: {last[:300]}")

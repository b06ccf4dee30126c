"""The host discovery script of Horovod's elastic launcher, by "Elastic Horovod" (--host-discovery-script).

It prints one HOST:SLOTS a line. The agent writes it again for each round, under the same name, so that a launcher that
outlives rounds (`everstep.keep_running`) reads the newest one.
"""

import shlex
from collections import Counter

from everstep.runtime.job.spec import LAUNCHER
from everstep.runtime.protocol.rounds import Seat


def hosts(seat: Seat) -> dict[str, int]:
    """Slots by host, of all roles but the launcher's. Nodes of one machine are one host to Horovod."""
    slots = Counter[str]()
    for role, members in seat.members.items():
        if role != LAUNCHER:
            for member in members:
                slots[member.machine_address] += member.slots
    return dict(slots)


def discovery_script(seat: Seat) -> str:
    """The script's text."""
    lines = [f"{host}:{slots}" for host, slots in hosts(seat).items()]
    return "#!/bin/sh\n" + "".join(f"echo {shlex.quote(line)}\n" for line in lines)

"""What a node watches of itself while it trains: its devices, its processes, the pace of its workers, and the
iterations that a script does not report."""

import os
import time
from collections.abc import Callable

from everstep.runtime.agent.device_watch import DeviceWatch
from everstep.runtime.agent.host_watch import HostWatch
from everstep.runtime.agent.pace_watch import PaceWatch
from everstep.runtime.agent.round_boards import RoundBoards
from everstep.runtime.agent.shown_iterations import ShownIterations
from everstep.runtime.agent.telemetry_sender import TelemetrySender
from everstep.runtime.platform.devices import machine_devices


class NodeWatch:
    """The watches of one node; what they find is telemetry, and the paces go with the heartbeats."""

    def __init__(self, boards: RoundBoards, sender: TelemetrySender, note: Callable[[str], None]) -> None:
        names = machine_devices(os.environ, count=lambda: 0)  # An agent has no time to ask torch.
        devices = DeviceWatch(names, sender.add, note)
        host = HostWatch(os.getpid(), sender.add)
        self.paces = PaceWatch(boards.of_running, time.monotonic, devices.lowered)
        self.shown = ShownIterations(boards.unreported, sender.add_shown)
        self.parts = self.paces.run, self.shown.run, devices.run, host.run
        """Each runs until it is cancelled."""

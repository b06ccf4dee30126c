"""A check of several nodes on one machine: the coordinator in this process, measurements in forks of another."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence

from everstep.runtime.diagnosis.coordinator import Coordinator
from everstep.runtime.diagnosis.evidence import Round
from everstep.runtime.diagnosis.measurement_process import start_measurement_process
from everstep.runtime.diagnosis.messages import Arrive
from everstep.runtime.diagnosis.node import check_node
from everstep.runtime.diagnosis.switchbox import SwitchboxError, SwitchboxSpec, missing_devices
from everstep.runtime.diagnosis.verdicts import Verdict
from everstep.runtime.platform.devices import machine_devices, node_devices
from everstep.runtime.system.cpus import usable_cpus

ADDRESS = "127.0.0.1"


async def check_one_machine(
    hosts: Sequence[str],
    *,
    timeout_s: float,
    exclude_straggler: bool = False,
    box: SwitchboxSpec | None = None,
    on_round: Callable[[Round], None] = lambda round_: None,
) -> tuple[list[Verdict], list[Round]]:
    """Check one node for each of `hosts`. Returns a verdict for each, and the rounds.

    Raises SwitchboxError if `box` needs devices that this machine lacks, MeasurementError if the process does not
    start.
    """
    rounds: list[Round] = []

    def record(round_: Round) -> None:
        rounds.append(round_)
        on_round(round_)

    coordinator = Coordinator(timeout_s=timeout_s, exclude_straggler=exclude_straggler, on_round=record)
    devices = {} if box else _share_devices(hosts, machine_devices(os.environ))
    threads = max(1, usable_cpus() // len(hosts))
    async with start_measurement_process(threads=threads, devices=devices) as measuring:
        if box is not None and (why := missing_devices(box, await measuring.count_devices())):
            raise SwitchboxError(why)
        nodes = [Arrive(host, host, ADDRESS) for host in hosts]
        for node in nodes:
            await coordinator.arrive(node)
        parts = [asyncio.create_task(check_node(coordinator, node, measuring, box)) for node in nodes]
        try:
            verdicts = await coordinator.check(list(hosts))
            await asyncio.gather(*parts)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
    return verdicts, rounds


def _share_devices(nodes: Sequence[str], devices: Sequence[str]) -> Mapping[str, str]:
    """Each node's devices, as CUDA_VISIBLE_DEVICES names them. Empty: there are too few, and all nodes use the same."""
    each = len(devices) // len(nodes)
    shares = (node_devices(devices, number * each, each) for number in range(len(nodes)))
    return dict(zip(nodes, shares, strict=True)) if each else {}

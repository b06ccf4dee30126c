"""The wire between two nodes becomes slow: the training goes on, and says that it waits for the network."""

import random
import re
import subprocess

import pytest

from everstep.runtime.agent.pace_watch import WINDOW_S
from everstep.runtime.agent.ports import free_port
from everstep.runtime.job.records import Record, SlowSeen
from everstep.runtime.watch.slow_ranks import SlowPart
from tests.launch.launchers import Launcher, until
from tests.launch.networks import INTERFACE, Network
from tests.launch.nodes import Nodes
from tests.watch.named_after import Note, note_seconds

SCRIPT = """
import os, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.AdamW(model.parameters())
for iteration in range(100_000):
    model(torch.randn(4, 256)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    if iteration == 20:
        open("trains", "w").close()
"""
SLOW = ("root", "tbf", "rate", "4mbit", "burst", "32kb", "latency", "300ms")
"""tc-tbf(8): packets wait in a queue of up to 0.3 s."""


@pytest.mark.long
def test_a_link_that_becomes_slow_is_named_while_the_training_goes_on(
    launcher: Launcher, network: Network, record_property: Note
) -> None:
    pytest.importorskip("torch")
    (launcher.folder / "train.py").write_text(SCRIPT)
    nodes = Nodes(launcher, free_port(random.Random()), network.address(0))
    for number, name in enumerate("ab"):
        more = {"EVERSTEP_JOB_TOKEN": "of both", "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
        nodes.start(name, nodes="2:2", within=network.enter(number), **more)
    until(lambda: (launcher.folder / "trains").exists(), nodes.stderr_text)
    try:
        for number in (0, 1):
            network.run(number, "tc", "qdisc", "add", "dev", INTERFACE, *SLOW)
        (launcher.folder / "slow").touch()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no link can be made slow here: {error}")
    until(lambda: "communication" in nodes.stderr_text(), nodes.stderr_text)
    match = re.search(
        r"ranks wait \d+% of the time in collectives, .* round trips of up to (\d+) ms", nodes.stderr_text()
    )
    assert match, nodes.stderr_text()
    assert int(match[1]) >= 20

    def names(record: Record) -> bool:
        return isinstance(record, SlowSeen) and record.part is SlowPart.NETWORK

    note_seconds(record_property, launcher, launcher.folder / "slow", WINDOW_S, names)

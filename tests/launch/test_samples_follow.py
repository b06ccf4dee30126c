"""From 3 nodes to 4 and back to 3, each one `everstep launch`: every sample is applied once an epoch, in the order of
(seed, consumed samples), whatever the world size, and the weights never go back behind the last iteration but one.
"""

import os
import random
import signal

import pytest

from everstep.runtime.agent.ports import free_port
from tests.launch import sampled
from tests.launch.launchers import EVERSTEP, Launcher, until

pytest.importorskip("torch")


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["told to leave", "killed"])
def test_three_four_three_nodes_apply_every_sample_once(launcher: Launcher, how: signal.Signals) -> None:
    folder = launcher.folder
    dataset = sampled.make_dataset(folder)
    (folder / "train.py").write_text(sampled.script())
    patience = "--rdzv-conf=last_call_timeout=2,keep_alive_interval=5,keep_alive_max_attempt=2"
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port(random.Random())}"
    flags = ("--nnodes=3:4", "--rdzv-backend=c10d", endpoint, patience, "--cooldown=0", "train.py", dataset)

    def start(name: str) -> int:
        return launcher.start(EVERSTEP, *flags, name=name, OMP_NUM_THREADS="1").pid

    def stderr_text() -> str:
        return "".join(f"\n[{path.stem}] {path.read_text()}" for path in sorted(folder.glob("*.err")))

    def trains(world: int, after: int) -> int:
        """Wait for a round later than `after`; its number."""
        until(lambda: sampled.later_round(folder, world, after), stderr_text)
        return sampled.later_round(folder, world, after)

    for name in ("a", "b", "c"):
        start(name)
    first = trains(3, 0)
    fourth = start("d")
    second = trains(4, first)
    os.kill(fourth, how)
    assert launcher.named["d"].wait(180) == (143 if how is signal.SIGTERM else -signal.SIGKILL)
    trains(3, second)
    (folder / "stop").touch()
    assert [launcher.wait_for_end(launcher.named[name], name).code for name in ("a", "b", "c")] == [0, 0, 0], (
        stderr_text()
    )
    sampled.assert_applied_once(folder, dataset, [3, 4, 3])
    until(lambda: not launcher.processes(), stderr_text)
    if how is signal.SIGTERM:
        assert launcher.leftovers() == []

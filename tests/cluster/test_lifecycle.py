"""The cluster itself: up is idempotent, down leaves nothing behind."""

from pathlib import Path
from subprocess import run

import psutil

from tests.cluster import lifecycle, processes
from tests.cluster.layout import HOME, NODES, PREFIX, host_name
from tests.cluster.lifecycle import Cluster


def left_behind() -> list[str]:
    """Whatever carries the cluster's name, except its lock."""
    leftovers = [f"mount {line}" for line in Path("/proc/mounts").read_text().splitlines() if str(HOME) in line]
    leftovers += [f"namespace {path.name}" for path in Path("/run/netns").glob(f"{PREFIX}*")]
    leftovers += [f"link {path.name}" for path in Path("/sys/class/net").glob(f"{PREFIX}*")]
    hosts = [host_name(host) for host in range(NODES + 1)]
    leftovers += [f"control group {path}" for host in hosts for path in Path("/sys/fs/cgroup").glob(f"*/{host}")]
    lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    leftovers += [f"process {line}" for line in lines if str(HOME) in line]
    routes = run(["ip", "route"], capture_output=True, text=True, check=True).stdout.splitlines()
    leftovers += [f"route {line}" for line in routes if line.startswith("unreachable 10.9")]
    return [*leftovers, *([str(HOME)] if HOME.exists() else [])]


def pids() -> dict[str, int]:
    """Of all the cluster's processes."""
    alive = {name: processes.running(name) for name in processes.names()}
    return {name: process.pid for name, process in alive.items() if process}


def test_up_starts_only_what_is_missing_and_down_leaves_nothing_behind(cluster: Cluster) -> None:
    before = pids()
    processes.stop("scheduler")
    lifecycle.up()
    after = pids()
    assert after.keys() == before.keys()
    assert {name for name in before if before[name] != after[name]} == {"scheduler"}
    lifecycle.down()
    assert left_behind() == []
    lifecycle.down()
    lifecycle.up()
    assert len(cluster.kubectl.list("nodes")) == NODES

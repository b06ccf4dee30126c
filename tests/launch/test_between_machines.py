"""Two nodes on networks of their own: what they say to each other cannot be read on the wire between them."""

import json
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from everstep.runtime.agent.ports import free_port
from tests.launch import sampled
from tests.launch.launchers import Launcher, until
from tests.launch.networks import INTERFACE, Network
from tests.launch.nodes import SCRIPT, Nodes

TOKEN = "the-token-of-both-nodes"
LISTENS = """
import json, socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind((sys.argv[1], 0))
print("ready", flush=True)
total, clear, end = 0, [], False
while not end:
    packet = wire.recv(1 << 17)
    end = b"the control" in packet
    total += len(packet)
    clear += [word for word in sys.argv[2:] if not end and word.encode() in packet]
print(json.dumps({"bytes": total, "clear": clear, "control": all(word.encode() in packet for word in sys.argv[2:])}))
"""
"""Reads every packet of an interface until one says that it is the last, in which it must find all words."""
SAYS = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), (sys.argv[1], 9))"
WORDS = (TOKEN, "HTTP/1.1", "/v1/", "worker-")


@contextmanager
def listening(network: Network) -> Iterator[subprocess.Popen[str]]:
    """Somebody who reads the wire."""
    command = [*network.enter(0), "python3", "-c", LISTENS, INTERFACE, *WORDS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listens:
        assert listens.stdout is not None
        assert listens.stdout.readline() == "ready\n"
        try:
            yield listens
        finally:
            listens.kill()


def sources(store: Path) -> list[str]:
    """Where the states came from that rounds began with."""
    lines = [line for path in store.rglob("telemetry/*.jsonl") for line in path.read_text().splitlines()]
    return [line["source"] for line in map(json.loads, lines) if line.get("kind") == "restored"]


def test_who_reads_the_wire_learns_nothing_while_a_node_restores_from_another(
    launcher: Launcher, network: Network
) -> None:
    pytest.importorskip("torch")
    folder, store = launcher.folder, launcher.folder / "store"
    dataset = sampled.make_dataset(folder)
    (folder / "train.py").write_text(sampled.script())
    nodes = Nodes(launcher, free_port(random.Random()), network.address(0), (dataset,))

    def start(name: str, number: int) -> None:
        more = {"EVERSTEP_JOB_TOKEN": TOKEN, "GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1"}
        flags = ("--store", str(store), "--rdzv-id", "j", "--persist-interval", "1000000")
        nodes.start(name, *flags, within=network.enter(number), **more)

    def trains(world: int, after: int) -> int:
        until(lambda: sampled.later_round(folder, world, after), nodes.stderr_text)
        return sampled.later_round(folder, world, after)

    with listening(network) as listens:
        start("a", 0)
        start("b", 1)
        first = trains(2, 0)
        launcher.named["b"].kill()
        assert launcher.named["b"].wait() < 0, "the fault fired"
        start("c", 1)
        trains(2, first)
        until(lambda: any(source.startswith("peer ") for source in sources(store)), lambda: str(sources(store)))
        assert [outcome.code for outcome in nodes.finish("a", "c")] == [0, 0], nodes.stderr_text()
        network.run(1, "python3", "-c", SAYS, network.address(0), f"the control {' '.join(WORDS)}")
        assert listens.stdout is not None
        report = json.loads(listens.stdout.readline())
    assert report["control"], "it can read"
    assert report["bytes"] > 10_000
    assert report["clear"] == []


@pytest.mark.parametrize(
    ("master", "other", "words"),
    [
        ((), ("--no-tls",), "this port speaks TLS, but received plain text; give --no-tls to all nodes"),
        (("--no-tls",), (), "does not speak TLS; give --no-tls to all nodes of a job or to none"),
    ],
    ids=["clear at TLS", "TLS at clear"],
)
def test_a_node_that_speaks_otherwise_than_its_master_is_told_so_in_one_line(
    launcher: Launcher, network: Network, master: tuple[str, ...], other: tuple[str, ...], words: str
) -> None:
    (launcher.folder / "train.py").write_text(SCRIPT)
    nodes = Nodes(launcher, free_port(random.Random()), network.address(0))
    nodes.start("a", *master, nodes="2", within=network.enter(0), EVERSTEP_JOB_TOKEN=TOKEN)
    nodes.start("b", *other, nodes="2", within=network.enter(1), EVERSTEP_JOB_TOKEN=TOKEN)
    outcome = nodes.wait_for_end("b")
    (line,) = [line for line in outcome.err.splitlines() if words in line]
    assert outcome.code == 2, nodes.stderr_text()
    assert line.startswith("everstep: ")
    assert "Traceback" not in outcome.err

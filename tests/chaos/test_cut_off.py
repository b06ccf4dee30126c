"""A network that is taken away from inside: between two machines with networks of their own, wired to each other."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.harness import wait_until
from tests.launch.networks import INTERFACE, Network

LOSE = """
import sys
from everstep.runtime.chaos import routes
place, port = sys.argv[1:]
with routes.lost([place], int(port)) if place else routes.everything_lost():
    print("lost", flush=True)
    sys.stdin.read()
"""
"""Holds until its stdin is closed."""
ECHO = """
import socket, sys, threading
def serve(connection):
    while data := connection.recv(99):
        connection.sendall(data)
server = socket.create_server((sys.argv[1], 0), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
print(server.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
ASK = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.settimeout(1)
print("connected", flush=True)
for line in sys.stdin:
    if line.strip() == "new":
        try:
            socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1).close()
            print("connected", flush=True)
        except OSError as error:
            print(error, flush=True)
        continue
    if line.strip() == "send":
        connection.sendall(b"word")
    try:
        print(connection.recv(99).decode(), flush=True)
    except TimeoutError:
        print("silence", flush=True)
"""
HEAR = """
import socket, sys
with socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM) as hearer:
    hearer.bind((sys.argv[1], 0))
    print(hearer.getsockname()[1], flush=True)
    while True:
        print(hearer.recv(99).decode(), flush=True)
"""
SAY = """
import socket, sys
with socket.socket(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM) as speaker:
    speaker.sendto(sys.argv[3].encode(), (sys.argv[1], int(sys.argv[2])))
"""
IPV4, IPV6 = "10.213.77.{}", "fd00::{}"
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def network() -> Iterator[Network]:
    """Machine 0 is another one, machine 1 the pod that loses its network."""
    new_network = Network()
    try:
        new_network.make()
        for number in range(2):
            address = f"{IPV6.format(number + 1)}/64"
            new_network.run(number, "ip", "addr", "add", address, "dev", INTERFACE, "nodad")
    except (OSError, subprocess.CalledProcessError) as error:
        new_network.close()
        pytest.skip(f"no network namespaces here: {error}")
    yield new_network
    new_network.close()


@pytest.fixture
def start(network: Network) -> Iterator[Start]:
    """Starts a script on that machine; its lines are read from stdout."""
    processes: list[subprocess.Popen[str]] = []

    def started(number: int, script: str, *words: object) -> subprocess.Popen[str]:
        command = [*network.enter(number), sys.executable, "-c", script, *map(str, words)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def ask(process: subprocess.Popen[str], what: str) -> str:
    """What the process that has a connection says."""
    assert process.stdin
    print(what, file=process.stdin, flush=True)
    return line_of(process)


@contextmanager
def lost(start: Start, place: str = "", port: int = 0) -> Iterator[None]:
    """Lost meanwhile on machine 1."""
    losing = start(1, LOSE, place, port)
    assert line_of(losing) == "lost"
    yield
    losing.communicate()
    assert losing.returncode == 0


def rules(network: Network) -> list[str]:
    words = (["ip", family, "rule"] for family in ("-4", "-6"))
    return [subprocess.check_output([*network.enter(1), *command], text=True) for command in words]


@pytest.mark.parametrize("addresses", [IPV4, IPV6])
def test_a_lost_network_loses_what_is_sent_and_what_comes_and_is_as_before_in_the_end(
    network: Network, start: Start, addresses: str
) -> None:
    there, here, before = addresses.format(1), addresses.format(2), rules(network)
    port = line_of(start(0, ECHO, there))
    asking = start(1, ASK, there, port)
    hearing = start(1, HEAR, here)
    hears_at, inside = line_of(hearing), line_of(start(1, ECHO, here))
    assert (line_of(asking), ask(asking, "send")) == ("connected", "word")
    with lost(start):
        assert ask(asking, "send") == "silence", "a connection that is there"
        assert "unreachable" in ask(asking, "new"), "a new one"
        start(0, SAY, here, hears_at, "during").wait()
        assert line_of(start(1, ASK, here, inside)) == "connected", "its processes reach each other"
        assert rules(network) != before
    assert rules(network) == before
    wait_until(lambda: ask(asking, "hear") == "word", "what was sent meanwhile, sent again", 60)
    start(0, SAY, here, hears_at, "after").wait()
    assert line_of(hearing) == "after"


@pytest.mark.parametrize("addresses", [IPV4, IPV6])
def test_a_lost_store_is_one_port_of_its_addresses(network: Network, start: Start, addresses: str) -> None:
    there, before = addresses.format(1), rules(network)
    store, other = (line_of(start(0, ECHO, there)) for _ in range(2))
    asking_store, asking_other = (start(1, ASK, there, port) for port in (store, other))
    assert [line_of(asking) for asking in (asking_store, asking_other)] == ["connected"] * 2
    with lost(start, there, int(store)):
        assert ask(asking_store, "send") == "silence"
        assert "unreachable" in ask(asking_store, "new")
        assert (ask(asking_other, "send"), ask(asking_other, "new")) == ("word", "connected")
    assert rules(network) == before
    wait_until(lambda: ask(asking_store, "hear") == "word", "what was sent meanwhile, sent again", 60)


def cut(network: Network, kind: str, target: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program in a pod, for half a second."""
    words = [sys.executable, "-m", "everstep.runtime.chaos.cut_off", kind, "0.5", target]
    given = ["env", *(f"{name}={value}" for name, value in variables.items())]
    return subprocess.run([*network.enter(1), *given, *words], capture_output=True, text=True, check=False)


def test_the_program_says_when_it_fired_and_leaves_no_rule(network: Network, start: Start) -> None:
    there, before = IPV4.format(1), rules(network)
    port = line_of(start(0, ECHO, there))
    of_network = cut(network, "network", f"{there}:{port}")
    evidence = f"no packet leaves or enters the pod: no connection to the master at {there}:{port}"
    assert json.loads(of_network.stdout)["evidence"] == evidence
    store = {"MINIO_ENDPOINT": f"http://{there}:{port}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    of_store = cut(network, "store", "s3://bucket/mine", **store)
    assert json.loads(of_store.stdout)["evidence"] == f"no connection to {there}:{port} ({there})"
    assert (of_network.returncode, of_store.returncode, rules(network)) == (0, 0, before)


def test_what_was_out_of_reach_before_has_not_been_cut_off(network: Network) -> None:
    nobody = f"{IPV4.format(1)}:9"
    completed = cut(network, "network", nobody)
    assert (completed.returncode, completed.stdout) == (1, "")
    assert completed.stderr == f"{nobody} was already unreachable\n"

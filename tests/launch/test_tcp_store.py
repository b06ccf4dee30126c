"""Rank 0's store listens at the address that the ranks are told, and at no other."""

import random
import socket
from datetime import timedelta
from typing import Any

import pytest

from everstep.runtime.agent.ports import free_port
from everstep.runtime.agent.tcp_store import bind_listener, restrict_torch_store
from tests.launch.launchers import EVERSTEP, Launcher

ELSEWHERE = "127.0.0.2"
"""Also this machine's, as the whole of 127/8."""
SCRIPT = """
import os, socket, sys, time
import torch.distributed as dist

def answers(address):
    try:
        socket.create_connection((address, int(os.environ["MASTER_PORT"]))).close()
    except ConnectionRefusedError:
        return False
    return True

for again in range(3):
    dist.init_process_group("gloo")
    dist.barrier()
    if dist.get_rank() == 0:
        sys.stdout.write(f"{answers(os.environ['MASTER_ADDR'])} {answers('127.0.0.2')}\\n")
    dist.barrier()
    if dist.get_rank() == again % 2:
        time.sleep(0.3)
    dist.destroy_process_group()
"""


def is_open(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port)).close()
    except ConnectionRefusedError:
        return False
    return True


def test_the_store_of_a_job_on_one_machine_is_reached_by_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rendezvous: Any = pytest.importorskip("torch.distributed.rendezvous")
    monkeypatch.setattr(rendezvous, "TCPStore", rendezvous.TCPStore)
    port = free_port(random.Random())
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))

    def store() -> Any:
        return next(rendezvous.rendezvous("env://", timeout=timedelta(seconds=60)))[0]

    before = store()
    assert is_open(ELSEWHERE, port)
    del before
    restrict_torch_store()
    restrict_torch_store()  # Twice is once.
    own = store()
    assert is_open("127.0.0.1", port)
    assert not is_open(ELSEWHERE, port)
    own.set("key", "value")
    further = store()  # Of the same process and server, for a further group: it sees none of the first one's keys.
    assert not further.check(["key"])
    further.set("key", "other")
    assert own.get("key") == b"value"


@pytest.mark.parametrize(
    ("host", "one_machine", "address"),
    [
        ("127.0.0.1", True, "127.0.0.1"),
        ("127.0.0.1", False, "127.0.0.1"),
        ("::1", True, "::1"),
        ("localhost", False, "127.0.0.1"),
        ("node-0", True, "127.0.1.1"),
        ("node-0", False, None),
        ("node-1", False, "127.0.0.9"),
        ("far", True, None),
        ("nobody", True, None),
    ],
)
def test_it_listens_where_the_other_ranks_look_for_it(
    host: str, one_machine: bool, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`node-0` is written into /etc/hosts as Debian does; `far` is another machine's; nobody knows `nobody`."""
    names = {"localhost": "127.0.0.1", "node-0": "127.0.1.1", "node-1": "127.0.0.9", "far": "192.0.2.1"}
    real_getaddrinfo = socket.getaddrinfo

    def resolve(name: str, port: int, **how: Any) -> Any:
        if name == "nobody":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real_getaddrinfo(names.get(name, name), port, **how)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    if host == "node-1":  # Its address is no loopback's.
        monkeypatch.setattr("everstep.runtime.agent.tcp_store.is_loopback", lambda _: False)
    listener = bind_listener(host, 0, one_machine)
    assert (listener.getsockname()[0] if listener else None) == address
    if listener:
        listener.close()


def test_a_port_that_is_taken_is_left_to_torch() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy_socket:
        assert bind_listener("127.0.0.1", busy_socket.getsockname()[1], True) is None


def test_a_script_that_knows_nothing_of_it_has_its_store_there(launcher: Launcher) -> None:
    """Also when it makes its group anew, and one of its ranks is ahead of the other."""
    """Also when it makes its group anew, and one of its ranks is ahead of the other."""
    (launcher.folder / "train.py").write_text(SCRIPT)
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, "--standalone", "--nproc-per-node=2", "train.py"))
    assert outcome.lines() == ["True False"] * 3, outcome.err

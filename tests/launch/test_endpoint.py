"""How nodes find each other: addresses, who hosts, the secret; and the one line where they cannot."""

import os
import random
import socket
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from everstep.runtime.agent.ports import free_port
from everstep.runtime.journal.journal import claim
from everstep.runtime.launch import endpoint, probe
from everstep.runtime.launch.flags import Parser
from everstep.runtime.launch.local_state import LocalState
from everstep.runtime.launch.node_identity import NodeIdentity, identify_node
from everstep.runtime.launch.options import read_launch
from everstep.runtime.launch.probe import Answer, probe_endpoint
from everstep.runtime.net.tls import Credentials
from everstep.runtime.store import open_store
from everstep.runtime.system.own_folder import own_folder
from tests.launch.launchers import EVERSTEP, Launcher, until


def test_a_loopback_address_is_this_machine_and_a_foreign_one_is_not() -> None:
    assert endpoint.is_this_machine("localhost")
    assert endpoint.is_this_machine(socket.gethostname())
    assert endpoint.is_this_machine("127.0.0.1")
    assert not endpoint.is_this_machine("192.0.2.1")


def test_a_name_that_cannot_be_resolved_is_refused_after_some_tries() -> None:
    pauses: list[float] = []
    with pytest.raises(ValueError, match=r"nobody\.invalid:1: the master's name cannot be resolved"):
        endpoint.resolve("nobody.invalid", 1, pauses.append)
    assert 1 < len(pauses) < 20


def test_the_users_token_stands_and_a_node_alone_makes_its_own(tmp_path: Path) -> None:
    assert endpoint.token_of({"EVERSTEP_JOB_TOKEN": "given"}, "192.0.2.1", "j") == "given"
    first, second = endpoint.token_of({}, None, "j"), endpoint.token_of({}, None, "j")
    assert first != second
    assert len(first) > 30


def test_nodes_of_one_machine_share_a_token_that_no_other_user_can_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    token = endpoint.token_of({}, "127.0.0.1", "j")
    assert token == endpoint.token_of({}, "127.0.0.1", "j") != endpoint.token_of({}, "127.0.0.1", "k")
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*.token")] == [0o600] * 2


def test_a_folder_that_others_can_open_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    own_folder().chmod(0o755)
    with pytest.raises(ValueError, match="only this user can open"):
        own_folder()


def test_several_machines_without_a_token_are_refused_and_told_how_to_set_one() -> None:
    with pytest.raises(ValueError, match="EVERSTEP_JOB_TOKEN is not set") as raised:
        endpoint.token_of({}, "192.0.2.1", "j")
    assert "set the same on all of them" in str(raised.value)


@pytest.fixture
def debian(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is node-0, and has it in /etc/hosts as Debian writes it."""
    real_getaddrinfo = socket.getaddrinfo

    def resolve(name: str, *more: Any, **how: Any) -> Any:
        return real_getaddrinfo("127.0.1.1" if name == "node-0" else name, *more, **how)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


def identify(folder: Path, *flags: str) -> NodeIdentity:
    """The identity of a node that is started with these flags."""
    (folder / "train.py").write_text("")
    options = read_launch(Parser({}).parse_args([*flags, str(folder / "train.py")]), {})
    return identify_node(options, {"EVERSTEP_JOB_TOKEN": "the nodes'"}, LocalState(folder), random.Random())


@pytest.mark.parametrize(
    ("flags", "address"), [([], "127.0.0.9"), (["--local-addr=127.0.0.8"], "127.0.0.8")], ids=["route", "flag"]
)
@pytest.mark.usefixtures("debian")
def test_a_machine_whose_own_name_is_a_loopback_address_hosts_the_master_where_others_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], address: str
) -> None:
    monkeypatch.setattr(endpoint, "own_address", lambda towards, port: "127.0.0.9")
    monkeypatch.setattr(endpoint, "is_loopback", lambda address: address == "127.0.1.1")
    place = identify(tmp_path, "--nnodes=1:2", f"--rdzv-endpoint=node-0:{free_port(random.Random())}", *flags)
    assert (place.host, place.address, place.hosts_master) == (address, address, True)
    assert place.credentials.tls


@pytest.mark.usefixtures("debian")
def test_a_machine_that_no_other_reaches_by_its_own_name_or_by_a_route_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own_address(towards: str, port: int) -> str:
        raise ValueError(f"{towards}: no route from this machine")

    monkeypatch.setattr(endpoint, "own_address", own_address)
    with pytest.raises(ValueError, match=r"^node-0: on this machine it is 127\.0\.1\.1, .*; give --local-addr "):
        identify(tmp_path, "--nnodes=1:2", "--rdzv-endpoint=node-0:1")


@pytest.mark.parametrize(("nodes", "host"), [("1:2", "localhost"), ("1:2", "127.0.1.1"), ("1", "node-0")])
@pytest.mark.usefixtures("debian")
def test_who_asks_for_loopback_or_for_one_node_gets_loopback(tmp_path: Path, nodes: str, host: str) -> None:
    flags = ("--rdzv-backend=c10d", f"--rdzv-endpoint={host}:{free_port(random.Random())}")
    place = identify(tmp_path, f"--nnodes={nodes}", *flags)
    assert endpoint.is_loopback(place.host)
    assert not place.credentials.tls


def test_a_node_finds_the_master_that_has_moved_to_an_ipv6_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_TIMEOUT_S", 0.5)  # It accepts and does not answer, as a busy master.
    store = str(tmp_path / "store")
    flags = ("--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{free_port(random.Random())}", "--rdzv-id=mine")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        claim(open_store(store), "mine", f"[::1]:{port}", 0.0)
        place = identify(tmp_path, *flags, f"--store={store}")
    assert (place.host, place.port, place.hosts_master) == ("::1", port, False)


def test_a_free_port_is_nobodys_and_a_strange_listener_is_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_TIMEOUT_S", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.settimeout(20)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"+PONG\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert probe_endpoint("127.0.0.1", port, Credentials("t"), "j") == (Answer.OTHER, "answers '+PONG'")
        thread.join()
    assert probe_endpoint("127.0.0.1", port, Credentials("t"), "j").answer is Answer.NOBODY


@pytest.mark.parametrize(
    ("flags", "more", "words"),
    [
        (["--standalone", "missing.py"], {}, "missing.py: no such file"),
        (
            ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=nobody.invalid:1", "train.py"],
            {},
            "cannot be resolved",
        ),
        (["--nnodes=2", "--master-addr=192.0.2.1", "--node-rank=1", "train.py"], {}, "EVERSTEP_JOB_TOKEN is not set"),
        (["--rdzv-backend=etcd", "train.py"], {}, "etcd is not supported"),
        (["--standalone", "--store=http://x", "train.py"], {}, "give a directory or s3://bucket/prefix"),
        (["--standalone", "train.py"], {"PET_STANDALONE": "x"}, "PET_STANDALONE=x"),
        (
            ["--nnodes=1:2", "--rdzv-endpoint=127.0.0.1:1", "--local-addr=192.0.2.1", "train.py"],
            {},
            "--local-addr 192.0.2.1: this machine has no such address",
        ),
    ],
    ids=["script", "master", "token", "etcd", "store", "environment", "own address"],
)
def test_bad_input_is_one_line_and_exit_code_2_with_nothing_left(
    launcher: Launcher, flags: list[str], more: dict[str, str], words: str
) -> None:
    (launcher.folder / "train.py").write_text("")
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, *flags, **more))
    assert outcome.code == 2, outcome.err
    assert words in outcome.err
    assert outcome.err.startswith("everstep launch: ")
    assert len(outcome.err.splitlines()) == 1
    assert launcher.leftovers() == []
    assert launcher.processes() == [], "no master is left"


HTTP = b"HTTP/1.1 200 OK\r\nServer: theirs\r\nContent-Length: 2\r\n\r\nhi"


@pytest.mark.parametrize(
    ("answer", "probe_text"),
    [
        (HTTP, "answers HTTP 200 of theirs"),
        (b"SSH-2.0-theirs\r\n", "answers 'SSH-2.0-theirs'"),
        (b"", "accepts connections and does not answer"),
    ],
    ids=["HTTP", "SSH", "silent"],
)
def test_a_port_that_something_else_uses_is_one_line_and_exit_code_2(
    launcher: Launcher, answer: bytes, probe_text: str
) -> None:
    (launcher.folder / "train.py").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        process = launcher.start(
            EVERSTEP, "--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "train.py"
        )
        connection, _ = listener.accept()
        with connection:
            connection.sendall(answer)
            outcome = launcher.wait_for_end(process)
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
    assert f"{endpoint}: process {os.getpid()} (" in outcome.err
    assert probe_text in outcome.err
    assert outcome.err.endswith("; choose another port\n")


@pytest.mark.parametrize(
    ("listens", "probe_text"),
    [(True, "the listener there answers 'SSH-2.0-theirs'"), (False, "nothing listens there yet")],
)
def test_a_node_that_waits_for_its_master_says_what_it_found(
    launcher: Launcher, *, listens: bool, probe_text: str
) -> None:
    (launcher.folder / "train.py").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if listens:
            threading.Thread(target=_greet_all, args=(listener, b"SSH-2.0-theirs\r\n")).start()
        else:
            listener.close()
        flags = ["--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", f"--master-port={port}", "train.py"]
        process = launcher.start(EVERSTEP, *flags)
        until(lambda: "no master of this job" in launcher.text("node", "err"), lambda: launcher.text("node", "err"))
        process.terminate()
        error_text = launcher.wait_for_end(process).err
        if listens:
            listener.shutdown(socket.SHUT_RDWR)
    assert f"127.0.0.1:{port}: {probe_text}; this node tries for 900 s" in error_text


def test_a_listener_on_another_address_of_the_same_port_is_not_taken_for_it() -> None:
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port = listener.getsockname()[1]
        listening = probe.listening_process("127.0.0.2", port)
        assert listening is not None
        assert listening.pid == os.getpid()
        assert probe.listening_process("127.0.0.1", port) is None


def _greet_all(listener: socket.socket, greeting: bytes) -> None:
    """Greet whoever connects, until the listener is closed."""
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(greeting)
                connection.recv(1000)

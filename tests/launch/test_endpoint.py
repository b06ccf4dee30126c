"""How nodes find each other: addresses, who hosts, the secret; and the one line where they cannot."""

import os
import socket
import stat
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from everstep.runtime.launch import endpoint, probe
from everstep.runtime.launch.probe import Answer, probe_endpoint
from everstep.runtime.net.tls import Credentials
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
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_folder_that_others_can_open_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    own_folder().chmod(0o755)
    with pytest.raises(ValueError, match="only this user can open"):
        own_folder()


def test_several_machines_without_a_token_are_refused_and_told_how_to_set_one() -> None:
    with pytest.raises(ValueError, match="EVERSTEP_JOB_TOKEN is not set") as raised:
        endpoint.token_of({}, "192.0.2.1", "j")
    assert "set the same on all of them" in str(raised.value)


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
    ],
    ids=["script", "master", "token", "etcd", "store", "environment"],
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
    assert [path for path in launcher.tmp.rglob("*") if path.is_file() and path.suffix != ".token"] == []


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

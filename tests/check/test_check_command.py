"""`everstep check`, as a person or a pod runs it: processes of this machine, or one node on each of several."""

import asyncio
import os
import random
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from everstep.cli.check import exit_code_of
from everstep.cli.main import main
from everstep.runtime.agent.ports import free_port
from everstep.runtime.diagnosis import multi_machine
from everstep.runtime.diagnosis.coordinator import Coordinator
from everstep.runtime.diagnosis.errors import NoQuorumError, RefusedError
from everstep.runtime.diagnosis.http_link import serve_coordinator
from everstep.runtime.diagnosis.messages import Over
from everstep.runtime.diagnosis.multi_machine import (
    Endpoint,
    MultiMachineCheck,
    _resolve_own_address,
    check_machines,
)
from everstep.runtime.diagnosis.verdicts import Health, Verdict
from everstep.runtime.net.token_gate import TokenGate, listen
from tests.check.test_check_step import late_s

Ended = tuple[int, str]


def command(*flags: str) -> list[str]:
    return [sys.executable, "-m", "everstep", "check", *flags]


def endpoint() -> str:
    """Where nobody else listens, although node 0 does so only seconds later: a loopback address of this test's own."""
    chance = random.Random()
    return f"127.{chance.randrange(1, 255)}.{chance.randrange(256)}.{chance.randrange(1, 255)}:{free_port(chance)}"


def machines(tmp_path: Path, count: int, *flags: str, faults: str = "", fired: int = 0) -> list[Ended]:
    """Exit code and stderr of each machine, in rank order; node 0 starts last. `fired` faults have fired."""
    marks = tmp_path / "faults"
    marks.mkdir()
    place = endpoint()
    started = []
    for rank in reversed(range(count)):
        environment = {
            **os.environ, "NODE_RANK": str(rank), "DLROVER_MASTER_ADDR": place,
            "EVERSTEP_FAULT": faults, "EVERSTEP_FAULT_DIR": str(marks), "EVERSTEP_JOB_TOKEN": "secret",
        }  # fmt: skip
        check_command = command(f"--nnodes={count}", *flags)
        started.append(subprocess.Popen(check_command, env=environment, stderr=subprocess.PIPE, text=True))
    outcomes = []
    for process in reversed(started):
        output = process.communicate(timeout=240)[1]
        outcomes.append((process.returncode, output))
    assert len(list(marks.iterdir())) == fired, outcomes
    return outcomes


def test_nodes_of_this_machine_are_told_round_by_round() -> None:
    completed = subprocess.run(command("--nodes=3"), stderr=subprocess.PIPE, text=True, timeout=240)
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr.startswith("Round 1: {local-0: ")
    assert "3 nodes healthy" in completed.stderr or "slow" in completed.stderr


def test_a_faulty_node_of_this_machine_is_exit_code_3_unless_fewer_are_enough(tmp_path: Path) -> None:
    for flags, code in (((), 3), (("--min-nodes=1",), 0)):
        marks = tmp_path / str(code)
        marks.mkdir()
        fault = {"EVERSTEP_FAULT": "check.matmul,node=local-1=kill", "EVERSTEP_FAULT_DIR": str(marks)}
        completed = subprocess.run(
            command(*flags), env={**os.environ, **fault}, stderr=subprocess.PIPE, text=True, timeout=240
        )
        assert completed.returncode == code, completed.stderr
        assert "local-1 is faulty: its check was ended by SIGKILL" in completed.stderr
        assert any(marks.iterdir())


@pytest.mark.long
def test_machines_find_each_other_by_the_variables_of_a_pytorchjob(tmp_path: Path) -> None:
    outcomes = machines(tmp_path, 3)
    assert [code for code, _ in outcomes] == [0, 0, 0], outcomes
    assert outcomes[0][1].startswith("Round 1: {node-0: ")
    assert "this node (node-2) is " in outcomes[2][1]


def test_across_machines_only_the_faulty_one_ends_with_code_3(tmp_path: Path) -> None:
    faults = ";".join(f"check.all_reduce,node=node-3,round={number}=raise" for number in (1, 2))
    outcomes = machines(tmp_path, 4, faults=faults, fired=2)
    assert [code for code, _ in outcomes] == [0, 0, 0, 3], outcomes
    assert "this node (node-3) is faulty: works alone but not with " in outcomes[3][1]
    assert "faulty: node-3" in outcomes[1][1]


def test_a_machine_whose_process_is_killed_is_named_across_machines(tmp_path: Path) -> None:
    outcomes = machines(tmp_path, 2, faults="check.all_reduce,node=node-0=kill", fired=1)
    assert [code for code, _ in outcomes] == [3, 0], outcomes
    assert "this node (node-0) is faulty: its check was ended by SIGKILL" in outcomes[0][1]


@pytest.mark.long
def test_an_excluded_straggler_says_so_and_ends_with_code_3(tmp_path: Path) -> None:
    seconds = late_s(tmp_path / "calm")
    faults = ";".join(f"check.matmul,node=node-1,round={number}=sleep:{seconds}" for number in (1, 2))
    outcomes = machines(tmp_path, 2, "--exclude-straggler", faults=faults, fired=2)
    assert [code for code, _ in outcomes] == [0, 3], outcomes
    assert "this node (node-1) is a straggler and is excluded (--exclude-straggler): " in outcomes[1][1]


def test_too_few_machines_in_time_are_no_quorum(capfd: pytest.CaptureFixture[str]) -> None:
    check_command = [f"--rdzv-endpoint={endpoint()}", "--nnodes=3", "--node-rank=0", "--join-timeout=0.5"]
    assert main(["check", *check_command]) == 3
    assert capfd.readouterr().err == ("everstep check: 1 of 3 nodes came within 0.5 s; missing: node-1, node-2\n")


def test_when_node_0_starts_again_the_others_arrive_again(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def no_process(_: object) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(multi_machine, "_measurement_process", no_process)
    host, _, port = endpoint().rpartition(":")
    options = MultiMachineCheck(Endpoint(host, int(port)), 1, 2, 2, "secret")

    @asynccontextmanager
    async def node_0() -> AsyncIterator[Coordinator]:
        coordinator = Coordinator()
        async with serve_coordinator(coordinator, listen(host, int(port)), TokenGate(options.credentials), end_s=0.1):
            yield coordinator

    async def story() -> None:
        async with node_0() as coordinator:
            other = asyncio.create_task(check_machines(options))
            assert not await coordinator.wait_for_arrivals(["node-1"], 60.0)
        async with node_0() as coordinator:
            assert not await coordinator.wait_for_arrivals(["node-1"], 60.0)
            coordinator.call_off("that was all")
            with pytest.raises(NoQuorumError, match="that was all"):
                await other

    asyncio.run(story())


@pytest.mark.parametrize(
    ("own_name", "to_others", "address"),
    [
        (["127.0.1.1", "10.1.2.3"], [], "10.1.2.3"),
        (["127.0.1.1"], ["10.1.2.3"], "10.1.2.3"),
        (["127.0.1.1"], [], "127.0.0.1"),
        ([], ["10.1.2.3"], "10.1.2.3"),
    ],
    ids=["its name has another address", "its name is loopback", "it is alone", "its name has no address"],
)
def test_where_the_endpoint_is_loopback_a_machine_gives_others_an_address_that_they_can_reach(
    own_name: list[str], to_others: list[str], address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def source_address(host: str, port: int) -> str:
        if host == "localhost":
            return "127.0.0.1"
        if not to_others:
            raise OSError("no route")
        return to_others[0]

    def resolve(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        assert host == socket.gethostname()
        if not own_name:
            raise socket.gaierror("unknown")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (each, 0)) for each in own_name]

    monkeypatch.setattr(multi_machine, "_source_address", source_address)
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert asyncio.run(_resolve_own_address(Endpoint("localhost", 1), 1.0)) == address


def test_an_endpoint_without_a_route_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    async def source_address(host: str, port: int) -> str:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(multi_machine, "_source_address", source_address)
    with pytest.raises(RefusedError) as caught:
        asyncio.run(_resolve_own_address(Endpoint("10.9.9.9", 1), 0.0))
    assert str(caught.value) == "10.9.9.9: no route from this machine (Network is unreachable); check the address"


@pytest.mark.parametrize(
    ("host", "place"), [("10.0.0.1", "10.0.0.1:29400"), ("fd00::1", "[fd00::1]:29400"), ("a.b", "a.b:29400")]
)
def test_an_ipv6_address_is_in_brackets_where_a_port_follows(host: str, place: str) -> None:
    assert Endpoint(host, 29400).place == place


def test_a_wrong_token_is_bad_input() -> None:
    check_command = command(f"--rdzv-endpoint={endpoint()}", "--nnodes=2")
    host = subprocess.Popen([*check_command, "--node-rank=0"], stderr=subprocess.PIPE, text=True)
    try:
        environment = {**os.environ, "EVERSTEP_JOB_TOKEN": "another"}
        completed = subprocess.run(
            [*check_command, "--node-rank=1"], env=environment, stderr=subprocess.PIPE, text=True, timeout=240
        )
        assert completed.returncode == 2
        assert "refused: the Authorization header does not have this check's token" in completed.stderr
    finally:
        host.kill()
        host.communicate()


def test_a_port_in_use_is_one_line_and_exit_code_2(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert main(["check", f"--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=2", "--node-rank=0"]) == 2
    output = capfd.readouterr().err
    assert output == (
        f"everstep check: cannot listen at 127.0.0.1:{port}: Address already in use; choose another port\n"
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--nodes 0", "--nodes 0, --min-nodes 0: must be at least 1"),
        ("--nodes 2 --min-nodes 3", "--min-nodes at most --nodes"),
        ("--nodes 2 --rdzv-endpoint a:1", "give only one of them"),
        ("--nnodes 2", "need --rdzv-endpoint HOST:PORT or $DLROVER_MASTER_ADDR"),
        ("--rdzv-endpoint a --nnodes 2 --node-rank 0", "--rdzv-endpoint a: write HOST:PORT"),
        ("--rdzv-endpoint a:70000 --nnodes 2 --node-rank 0", "write HOST:PORT"),
        ("--rdzv-endpoint a:1 --nnodes 2", "NODE_RANK='': give --node-rank"),
        ("--rdzv-endpoint a:1 --node-rank 0", "--nnodes (missing)"),
        ("--rdzv-endpoint a:1 --nnodes 3:2 --node-rank 0", "--nnodes 3:2: write N or MIN:MAX"),
        ("--rdzv-endpoint a:1 --nnodes 2 --node-rank 2", "--node-rank 2: must be from 0 to 1"),
        ("--rdzv-endpoint a:1 --nnodes 2 --node-rank 0 --min-nodes 1", "write --nnodes MIN:MAX"),
        ("--rdzv-endpoint a:1 --nnodes 2 --node-rank 0 --topology nowhere", "--topology nowhere: No such file"),
        ("--rdzv-endpoint no.such.name.invalid:1 --nnodes 2 --node-rank 1 --join-timeout 0.1", "cannot be resolved"),
        ("--rdzv-endpoint a..b:1 --nnodes 2 --node-rank 1", "a..b: is no name of a machine"),
        ("--timeout 0", "must be above 0"),
        ("--switchbox-check --box-pairs 0", "'0' is not DEVICE:DEVICE"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    flags: str, words: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("NODE_RANK", "DLROVER_MASTER_ADDR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("EVERSTEP_JOB_TOKEN", "secret")
    assert main(["check", *flags.split()]) == 2
    output = capfd.readouterr().err
    assert output.startswith("everstep check: ")
    assert words in output
    assert output.count("\n") == 1


def test_with_a_range_of_nodes_fewer_usable_than_its_minimum_are_no_quorum() -> None:
    own = Verdict("node-0", "a", Health.HEALTHY, "works alone", False, 0.6)
    over = Over(9, own, faulty=("node-1",), usable=2)
    assert exit_code_of(over, 2) == (0, "this node (node-0) is healthy: works alone (faulty: node-1)")
    code, output = exit_code_of(over, 3)
    assert code == 3
    assert output.startswith("2 nodes are usable, 3 needed (--nnodes MIN:MAX); this node (node-0) is healthy")

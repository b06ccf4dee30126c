"""What waits for a peer that does not come raises when the groups' sockets are cut; other sockets are left alone."""

import random
import socket
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._C._distributed_c10d import ErrorType

from everstep import group_sockets
from everstep.reentry import calm_watchdog
from everstep.runtime.agent.ports import free_port
from tests.forks import Forks

SCRIPT = Path(__file__).with_name("cut_script.py")


@pytest.mark.parametrize(
    ("where", "raised"),
    [("collective", "RuntimeError"), ("store", "DistNetworkError"), ("new group", "DistNetworkError")],
)
def test_a_wait_for_a_peer_ends_when_the_sockets_are_cut(tmp_path: Path, forks: Forks, where: str, raised: str) -> None:
    done_path, places = tmp_path / "done", {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    places["MASTER_PORT"] = str(free_port(random.Random()))
    process_numbers = [
        forks.start([str(SCRIPT), where, str(done_path)], {**places, "RANK": str(rank)}, tmp_path / f"{rank}.err")
        for rank in range(2)
    ]
    codes = [forks.wait(number) for number in process_numbers]
    assert codes == [0, 0], [(tmp_path / f"{rank}.err").read_text() for rank in range(2)]
    assert done_path.read_text() == f"{raised} own"


def test_a_scripts_own_connections_are_not_cut_after_the_making_of_a_group_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look, looks = group_sockets._sockets, list[int]()

    def interrupted_look() -> dict[str, int]:
        looks.append(1)
        if len(looks) == 2:  # As by the signal that ends a round, when the group's own error is on its way up.
            raise KeyboardInterrupt
        return look()

    sockets = group_sockets.GroupSockets()
    with monkeypatch.context() as patch:
        patch.setattr(group_sockets, "_sockets", interrupted_look)
        with pytest.raises(KeyboardInterrupt), sockets.watching():
            pass
    sockets.forget()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        sockets.cut()
        with theirs:
            ours.sendall(b"x")
            assert theirs.recv(1) == b"x"


def test_communicators_are_aborted_all_at_a_time_as_one_may_wait_for_the_others_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, ended = threading.Barrier(2), list[str]()

    class Group:
        def abort(self) -> None:
            begun.wait(30.0)
            ended.append("aborted")

    class Failing:
        def abort(self) -> None:
            raise RuntimeError("this backend cannot")

    groups = {Group(): ("nccl", None), Group(): ("cpu:gloo,cuda:nccl", None), Failing(): ("mpi", None)}
    world = SimpleNamespace(pg_map={**groups, object(): ("gloo", None)})
    monkeypatch.setattr(group_sockets.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(group_sockets.distributed_c10d, "_world", world)
    group_sockets._abort_groups()
    assert ended == ["aborted"] * 2


def test_no_group_is_aborted_while_groups_are_released_nor_released_while_one_is_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sockets, could_release = group_sockets.GroupSockets(), list[bool]()

    def abort() -> None:
        could_release.append(sockets.releasing.acquire(blocking=False))

    monkeypatch.setattr(group_sockets, "_abort_groups", abort)
    with sockets.releasing:
        sockets.cut()
    assert could_release == []
    sockets.cut()
    assert could_release == [False]
    sockets.abort_no_more()
    sockets.cut()
    assert could_release == [False]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("SUCCESS", ""),
        ("TIMEOUT", "a collective exceeded the timeout of 0 on cuda"),
        ("COMM_ERROR", "COMM_ERROR of 0 on cuda"),
        ("REMOTE_ERROR", "REMOTE_ERROR of 0 on cuda"),
    ],
)
def test_a_communicators_error_is_known(name: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = next(member for member in ErrorType.__members__.values() if member.name == name)
    fine, failing = (SimpleNamespace(get_error=lambda error=error: error) for error in (ErrorType.SUCCESS, error))

    class Silent:
        _device_types = (torch.device("cuda"),)

    class Group:
        _device_types = (torch.device("cpu"), torch.device("cuda"))
        group_name = "0"

        def _get_backend(self, device: torch.device) -> SimpleNamespace:
            return {"cpu": fine, "cuda": failing}[device.type]

    world = SimpleNamespace(pg_map={Silent(): ("gloo", None), Silent(): ("mpi", None), Group(): ("nccl", None)})
    monkeypatch.setattr(group_sockets.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(group_sockets.distributed_c10d, "_world", world)
    assert group_sockets.communicator_error() == told


def test_nccls_watchdog_does_not_end_a_survivor_unless_the_user_wants_it() -> None:
    environment = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    calm_watchdog(environment)
    assert environment == {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "0", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
    environment["TORCH_NCCL_RETHROW_CUDA_ERRORS"] = "1"
    calm_watchdog(environment)
    assert environment["TORCH_NCCL_RETHROW_CUDA_ERRORS"] == "1"

"""A worker's environment is torchrun's."""

import random
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from everstep.runtime.agent.environment import worker_command, worker_environment
from everstep.runtime.agent.ports import free_port
from everstep.runtime.agent.settings import Settings, settings_of
from everstep.runtime.agent.spares import must_be_gone
from everstep.runtime.protocol.rounds import Seat

SEAT = Seat(
    epoch=1, round=4, role="worker", group_rank=1, group_world_size=2, first_rank=3, world_size=6,
    role_first_rank=2, role_world_size=5, master_addr="10.0.0.1", master_port=20000, restart_count=3, restore=None,
    persists=False,
)  # fmt: skip
SETTINGS = Settings(
    job="j", token="t", master="http://127.0.0.1:1", store="/store", node="worker-1-0", role="worker", host="h",
    slots=3, command=("train.py",), threads="2",
)  # fmt: skip


def environment_of(local_rank: int, base: Mapping[str, str] | None = None, **settings: Any) -> Mapping[str, str]:
    """The environment of one worker."""
    return worker_environment(replace(SETTINGS, **settings), SEAT, local_rank, link="/s/link", base=base or {})


@pytest.mark.parametrize(
    ("devices", "meet", "waits"), [("", None, False), ("0", None, True), ("", ("127.0.0.1", 29500), True)]
)
def test_a_spare_waits_until_the_dead_workers_devices_and_the_users_port_are_free(
    devices: str, meet: tuple[str, int] | None, waits: bool
) -> None:
    assert must_be_gone(replace(SETTINGS, meet=meet), {"CUDA_VISIBLE_DEVICES": devices}) is waits


def test_ranks_are_counted_from_the_seat_and_the_names_are_torchruns() -> None:
    expected_variables = {
        "RANK": "5", "LOCAL_RANK": "2", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2", "ROLE_NAME": "worker", "ROLE_RANK": "4", "ROLE_WORLD_SIZE": "5",
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20000", "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "j", "TORCHELASTIC_USE_AGENT_STORE": "False",
        "OMP_NUM_THREADS": "2", "EVERSTEP_ROUND": "4",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "3",
    }  # fmt: skip
    assert expected_variables.items() <= environment_of(2).items()


def test_nccls_watchdog_does_not_sleep_for_long_after_an_error_unless_the_user_says_otherwise() -> None:
    calm = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "50", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}
    assert calm.items() <= environment_of(0).items()
    own = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "15000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    assert own.items() <= environment_of(0, own).items()


def test_nccls_groups_are_of_the_class_that_a_survivor_can_leave_unless_the_user_says_otherwise() -> None:
    assert environment_of(0)["TORCH_DIST_USE_NCCL2"] == "0"
    assert environment_of(0, {"TORCH_DIST_USE_NCCL2": "1"})["TORCH_DIST_USE_NCCL2"] == "1"


def test_the_thread_count_stays_unset_where_nobody_set_it() -> None:
    assert "OMP_NUM_THREADS" not in environment_of(0, threads="")


NEEDED: dict[str, str] = {
    **dict.fromkeys(("EVERSTEP_JOB", "EVERSTEP_JOB_TOKEN", "EVERSTEP_STORE"), "x"),
    "EVERSTEP_MASTER": "http://m:1",
}


def test_the_nodes_share_of_the_cores_is_each_workers_thread_count_unless_the_user_set_one() -> None:
    arguments = ["--node", "n", "--slots", "10000", "--", "-m", "json"]
    assert settings_of(arguments, NEEDED)[0].threads == "1"
    assert settings_of(arguments, {**NEEDED, "OMP_NUM_THREADS": "7"})[0].threads == "7"


def test_an_agent_listens_on_this_machine_alone_unless_it_is_told_its_address() -> None:
    arguments = ["--node", "n", "--", "-m", "json"]
    assert settings_of(arguments, NEEDED)[0].address == "127.0.0.1"
    cluster = settings_of(arguments, {**NEEDED, "EVERSTEP_IP": "10.1.2.3"})[0]
    assert (cluster.address, cluster.ip) == ("10.1.2.3", "10.1.2.3")


def test_a_virtual_local_rank_is_0_and_sees_its_own_device_alone() -> None:
    alone = environment_of(1, {"CUDA_VISIBLE_DEVICES": "4, 6,7"}, virtual_local_rank=True)
    assert (alone["LOCAL_RANK"], alone["CUDA_VISIBLE_DEVICES"], alone["EVERSTEP_LOCAL_RANK"]) == ("0", "6", "1")
    assert environment_of(2, virtual_local_rank=True)["CUDA_VISIBLE_DEVICES"] == "2"
    amd = environment_of(0, {"HIP_VISIBLE_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "9"}, virtual_local_rank=True)
    assert (amd["HIP_VISIBLE_DEVICES"], amd["CUDA_VISIBLE_DEVICES"]) == ("3", "3")
    with pytest.raises(ValueError, match="no device for local rank 2"):
        environment_of(2, {"CUDA_VISIBLE_DEVICES": "0,1"}, virtual_local_rank=True)


def test_the_local_rank_is_filled_into_the_scripts_arguments() -> None:
    assert worker_command(("train.py", "--out=${local_rank}", "$HOME"), 3) == ("train.py", "--out=3", "$HOME")


def test_a_taken_port_is_not_given_and_the_ephemeral_range_is_left_alone() -> None:
    first = free_port(random.Random(5), below=32768)
    with socket.socket() as busy_socket:
        busy_socket.bind(("", first))
        second = free_port(random.Random(5), below=32768)
    assert second != first
    assert max(first, second) < 32768


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--node", "n"], "no script"),
        (["--node", "n", "--", "missing.py"], "no such script: missing.py"),
        (["--node", "n", "--slots", "0", "--", "-m", "json"], "--slots"),
        (["--node", "n", "--notice", "-1", "--", "-m", "json"], "--notice -1"),
        (["--node", "n", "--grace", "nan", "--", "-m", "json"], "--grace nan"),
    ],
)
def test_bad_settings_are_refused_in_one_line(arguments: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings_of(arguments, NEEDED)
    with pytest.raises(ValueError, match="EVERSTEP_JOB_TOKEN"):
        settings_of(["--node", "n", "--", "-m", "json"], {"EVERSTEP_JOB": "x"})
    with pytest.raises(ValueError, match="EVERSTEP_MASTER=m:1: give http://HOST:PORT or https://HOST:PORT"):
        settings_of(["--node", "n", "--", "-m", "json"], {**NEEDED, "EVERSTEP_MASTER": "m:1"})
    for seconds in ("soon", "0", "nan"):
        with pytest.raises(ValueError, match=f"EVERSTEP_DEAD_MAN_S={seconds}: not a number of seconds above 0"):
            settings_of(["--node", "n", "--", "-m", "json"], {**NEEDED, "EVERSTEP_DEAD_MAN_S": seconds})

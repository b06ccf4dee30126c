"""A worker's environment is torchrun's."""

import random
import socket

import pytest

from runtime.agent.environment import NodeFacts, worker_environment
from runtime.agent.ports import free_port
from runtime.agent.settings import settings_of
from runtime.job.messages import Seat

SEAT = Seat(
    epoch=1, round=4, role="worker", group_rank=1, group_world_size=2, first_rank=3, world_size=6,
    role_first_rank=2, role_world_size=5, master_addr="10.0.0.1", master_port=20000, restart_count=3, restore=None,
    persists=False,
)  # fmt: skip
FACTS = NodeFacts("j", "worker-1-0", 3, "/s/link", "/store", "", max_restarts=3, cores=8)


def test_ranks_are_counted_from_the_seat_and_the_names_are_torchruns() -> None:
    told = worker_environment(FACTS, SEAT, 2, "/e.json")
    wanted = {
        "RANK": "5", "LOCAL_RANK": "2", "WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "3", "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2", "ROLE_NAME": "worker", "ROLE_RANK": "4", "ROLE_WORLD_SIZE": "5",
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "20000", "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "j", "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/e.json", "OMP_NUM_THREADS": "2", "EVERSTEP_ROUND": "4",
    }  # fmt: skip
    assert wanted.items() <= told.items()


def test_the_users_thread_count_stands_and_there_is_at_least_one() -> None:
    from dataclasses import replace

    assert worker_environment(replace(FACTS, threads="7"), SEAT, 0, "")["OMP_NUM_THREADS"] == "7"
    assert worker_environment(replace(FACTS, cores=1), SEAT, 0, "")["OMP_NUM_THREADS"] == "1"


def test_a_taken_port_is_not_given_and_the_ephemeral_range_is_left_alone() -> None:
    first = free_port(random.Random(5), below=32768)
    with socket.socket() as taken:
        taken.bind(("", first))
        second = free_port(random.Random(5), below=32768)
    assert second != first
    assert max(first, second) < 32768


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--node", "n"], "no script"),
        (["--node", "n", "--", "missing.py"], "no such script: missing.py"),
        (["--node", "n", "--slots", "0", "--", "-m", "json"], "--slots"),
    ],
)
def test_bad_settings_are_refused_in_one_line(arguments: list[str], told: str) -> None:
    names = ("EVERSTEP_JOB", "EVERSTEP_JOB_TOKEN", "EVERSTEP_MASTER", "EVERSTEP_STORE")
    with pytest.raises(ValueError, match=told):
        settings_of(arguments, dict.fromkeys(names, "x"))
    with pytest.raises(ValueError, match="EVERSTEP_JOB_TOKEN"):
        settings_of(["--node", "n", "--", "-m", "json"], {"EVERSTEP_JOB": "x"})

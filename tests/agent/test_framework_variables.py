"""What the workers of TensorFlow, Horovod, Paddle and Volcano's jobs find, from the seat of their node."""

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from everstep.runtime.agent.frameworks.worker_variables import variables, write_files
from everstep.runtime.protocol.rounds import Framework, Member, Seat


def member(name: str, number: int, slots: int = 1) -> Member:
    return Member(name, "host", f"10.0.0.{number}:500", slots, port=2000 + number)


SERVERS = {
    "chief": (member("chief-0-0", 1),),
    "ps": (member("ps-0-0", 2),),
    "worker": (member("worker-0-0", 3), member("worker-1-1", 4)),
    "evaluator": (member("evaluator-0-0", 5),),
}
TRAINERS = {"launcher": (member("launcher-0-0", 1),), "trainer": (member("a", 2, 2), member("b", 3, 2))}


def seat(framework: Framework, members: dict[str, tuple[Member, ...]], role: str, index: int = 0) -> Seat:
    sizes = {name: sum(role_member.slots for role_member in group) for name, group in members.items()}
    names = list(members)
    before = sum(sizes[name] for name in names[: names.index(role)])
    own = sum(role_member.slots for role_member in members[role][:index])
    nodes = sum(len(group) for group in members.values())
    return Seat(
        1, 7, role, index, nodes, before + own, sum(sizes.values()), own, sizes[role], "10.0.0.1", 2001, 6, None, True,
        framework=framework, members=members,
    )  # fmt: skip


def tf_config(role: str, index: int = 0) -> Any:
    variables_set = variables(seat(Framework.TENSORFLOW, SERVERS, role, index), 0, Path("/nowhere"))
    return json.loads(variables_set["TF_CONFIG"])


def test_tf_config_names_the_tasks_of_the_round_and_ones_own() -> None:
    task_config = tf_config("worker", 1)
    assert task_config == {
        "cluster": {
            "chief": ["10.0.0.1:2001"],
            "ps": ["10.0.0.2:2002"],
            "worker": ["10.0.0.3:2003", "10.0.0.4:2004"],
        },
        "task": {"type": "worker", "index": 1},
    }


def test_an_evaluator_is_no_task_of_the_cluster() -> None:
    task_config = tf_config("evaluator")
    assert task_config["task"] == {"type": "evaluator", "index": 0}
    assert "evaluator" not in task_config["cluster"]


def test_a_paddle_trainer_finds_its_number_and_all_endpoints_in_rank_order() -> None:
    members = {"worker": TRAINERS["trainer"]}
    variables_set = variables(seat(Framework.PADDLE, members, "worker", 1), 1, Path("/nowhere"))
    endpoints = ["10.0.0.2:2002", "10.0.0.2:2003", "10.0.0.3:2003", "10.0.0.3:2004"]
    assert variables_set["PADDLE_TRAINER_ENDPOINTS"].split(",") == endpoints
    assert variables_set["PADDLE_TRAINER_ID"] == "3"
    assert variables_set["PADDLE_TRAINERS_NUM"] == "4"
    assert variables_set["PADDLE_CURRENT_ENDPOINT"] == endpoints[3]
    assert variables_set["PADDLE_RANK_IN_NODE"] == "1"


def test_the_discovery_script_prints_the_rounds_hosts_and_their_slots(tmp_path: Path) -> None:
    first = seat(Framework.HOROVOD, TRAINERS, "launcher")
    write_files(first, tmp_path, "secret", "job")
    script = variables(first, 0, tmp_path)["EVERSTEP_DISCOVERY_SCRIPT"]
    assert subprocess.check_output([script], text=True) == "10.0.0.2:2\n10.0.0.3:2\n"
    fewer = {**TRAINERS, "trainer": TRAINERS["trainer"][1:]}
    write_files(seat(Framework.HOROVOD, fewer, "launcher"), tmp_path, "secret", "job")
    assert subprocess.check_output([script], text=True) == "10.0.0.3:2\n"


def test_nodes_of_one_machine_are_one_host_to_horovod(tmp_path: Path) -> None:
    same = {"launcher": (member("l", 1),), "trainer": (member("a", 1), member("b", 1), member("c", 2))}
    write_files(seat(Framework.HOROVOD, same, "launcher"), tmp_path, "secret", "job")
    assert subprocess.check_output([tmp_path / "discover_hosts.sh"], text=True) == "10.0.0.1:2\n10.0.0.2:1\n"


def test_every_node_of_a_job_has_the_same_ssh_keys_and_another_job_has_others(tmp_path: Path) -> None:
    place = seat(Framework.HOROVOD, TRAINERS, "launcher")
    for name, token, job in (
        ("a", "secret", "job"),
        ("b", "secret", "job"),
        ("c", "other", "job"),
        ("d", "secret", "2"),
    ):
        (tmp_path / name).mkdir()
        write_files(place, tmp_path / name, token, job)
    keys = {name: (tmp_path / name / "ssh" / "authorized_keys").read_bytes() for name in "abcd"}
    assert keys["a"] == keys["b"]
    assert len(set(keys.values())) == 3
    folder = tmp_path / "a" / "ssh"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes.pop("ssh") == 0o700
    assert set(modes.values()) == {0o600}
    for private, public in (("id_ed25519", "authorized_keys"), ("ssh_host_ed25519_key", "known_hosts")):
        text = (folder / public).read_bytes().removeprefix(b"* ")
        own = load_ssh_private_key((folder / private).read_bytes(), None).public_key()
        assert own == load_ssh_public_key(text)


@pytest.mark.parametrize("local_rank", [0, 1])
def test_a_node_finds_its_number_and_the_hosts_of_each_role_as_volcanos_plugins_say_them(local_rank: int) -> None:
    found = variables(seat(Framework.VOLCANO, TRAINERS, "trainer", 1), local_rank, Path("/nowhere"))
    assert found == {
        "VC_TASK_INDEX": "1", "VK_TASK_INDEX": "1", "VC_LAUNCHER_NUM": "1", "VC_LAUNCHER_HOSTS": "10.0.0.1",
        "VC_TRAINER_NUM": "2", "VC_TRAINER_HOSTS": "10.0.0.2,10.0.0.3",
    }  # fmt: skip


@pytest.mark.parametrize("local_rank", [0, 1])
def test_a_job_of_torch_gets_neither_variables_nor_files(tmp_path: Path, local_rank: int) -> None:
    place = seat(Framework.PYTORCH, TRAINERS, "trainer")
    write_files(place, tmp_path, "secret", "job")
    assert variables(place, local_rank, tmp_path) == {}
    assert list(tmp_path.iterdir()) == []

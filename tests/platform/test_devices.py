"""Nodes of one machine share its devices out."""

from pathlib import Path

import pytest

from everstep.runtime.job.spec import JobSpec, RoleSpec
from everstep.runtime.platform.devices import (
    TooFewDevices,
    first_worker,
    fit_to_devices,
    machine_devices,
    may_have_devices,
    near_cpus,
    node_devices,
    shown_by,
)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ("0,2", ("0", "2")),
        ("", ()),
        ("GPU-a1, GPU-b2", ("GPU-a1", "GPU-b2")),
        ("MIG-c3", ("MIG-c3",)),
        ("1,-1,2", ("1",)),
        ("-1", ()),
        ("NoDevFiles", ()),  # As Slurm writes it.
    ],
)
def test_the_devices_are_those_that_cuda_would_show(listed: str, expected: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert machine_devices({"CUDA_VISIBLE_DEVICES": listed}, tmp_path) == expected
    assert may_have_devices({"CUDA_VISIBLE_DEVICES": listed}, tmp_path) is bool(expected)


def test_rocms_own_list_counts_before_cudas_and_a_node_gets_both() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "0,1,2", "HIP_VISIBLE_DEVICES": "2,3"}
    assert machine_devices(environment) == ("2", "3")
    assert shown_by("3", environment) == {"CUDA_VISIBLE_DEVICES": "3", "HIP_VISIBLE_DEVICES": "3"}


def test_numbers_of_everstep_count_by_the_bus_and_the_users_as_cuda_or_the_user_says() -> None:
    assert shown_by("3", {}) == {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert shown_by("3", {"CUDA_VISIBLE_DEVICES": "2,3"}) == {"CUDA_VISIBLE_DEVICES": "3"}
    assert shown_by("3", {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}) == {"CUDA_VISIBLE_DEVICES": "3"}


@pytest.mark.parametrize("driver", ["dxg", "kfd"])
def test_where_a_driver_has_no_file_for_each_device_they_are_counted_so_that_nodes_share_them_out(
    driver: str, tmp_path: Path
) -> None:
    (tmp_path / driver).touch()
    devices = machine_devices({}, tmp_path, lambda: 1)
    assert devices == ("0",)
    assert may_have_devices({}, tmp_path)
    assert fit_to_devices(JobSpec("j", {"worker": RoleSpec(2, 2, 1)}), devices)[0].roles["worker"].nodes == 1
    assert machine_devices({"CUDA_VISIBLE_DEVICES": ""}, tmp_path, lambda: 1) == ()


def test_nobody_counts_where_files_or_their_absence_say_how_many_there_are(tmp_path: Path) -> None:
    def count() -> int:
        raise AssertionError("torch was asked")

    assert machine_devices({}, tmp_path, count) == ()
    for name in ("nvidia0", "dxg"):
        (tmp_path / name).touch()
    assert machine_devices({}, tmp_path, count) == ("0",)


def test_without_a_list_they_are_those_that_have_a_file_numbered_as_cuda_does(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidia7", "nvidiactl", "nvidia-uvm"):  # A container has not all files.
        (tmp_path / name).touch()
    assert machine_devices({}, tmp_path) == ("0", "1", "2")
    assert machine_devices({}, tmp_path / "none") == ()


@pytest.mark.parametrize(
    ("devices", "nodes", "slots", "expected"),
    [
        ("", 2, 1, ["", ""]),
        ("0", 1, 1, ["0"]),
        ("0,1", 2, 1, ["0", "1"]),
        ("0,1,2,3,4,5,6,7", 2, 4, ["0,1,2,3", "4,5,6,7"]),
        ("3,1,2", 1, 2, ["3,1"]),
    ],
)
def test_each_node_sees_a_device_for_each_of_its_workers(
    devices: str, nodes: int, slots: int, expected: list[str]
) -> None:
    roles, every = {"worker": RoleSpec(nodes, nodes, slots)}, machine_devices({"CUDA_VISIBLE_DEVICES": devices})
    assert [node_devices(every, first_worker(roles, "worker", index), slots) for index in range(nodes)] == expected


@pytest.mark.parametrize(
    ("names", "cpus"),
    [(["0"], "0-1,4"), (["1"], "2"), (["GPU-b"], "2"), (["1", "0"], "0-2,4"), (["2"], ""), ([""], ""), ([], "")],
)
def test_a_node_runs_on_the_cpus_near_its_devices(names: list[str], cpus: str, tmp_path: Path) -> None:
    driver, bus = tmp_path / "gpus", tmp_path / "devices"
    gpus = (
        (5, "GPU-a", "0000:1a:00.0", "0-1,4"),
        (6, "GPU-hidden", "0000:4b:00.0", "3"),
        (2, "GPU-b", "0000:9c:00.0", "2"),
    )
    for minor, uuid, place, near in gpus:
        if uuid != "GPU-hidden":
            (tmp_path / f"nvidia{minor}").touch()
        (driver / place).mkdir(parents=True)
        (bus / place).mkdir(parents=True)
        facts = f"Model: \t\t one\nGPU UUID: \t {uuid}\nBus Location: \t {place}\nDevice Minor: \t {minor}\n"
        (driver / place / "information").write_text(facts)
        (bus / place / "local_cpulist").write_text(f"{near}\n")
    expected = {"": set[int](), "0-1,4": {0, 1, 4}, "2": {2}, "0-2,4": {0, 1, 2, 4}}[cpus]
    assert near_cpus(names, driver, bus, tmp_path) == expected
    assert near_cpus(names, driver, tmp_path / "another", tmp_path) == frozenset()
    assert near_cpus(names, tmp_path / "no driver", bus, tmp_path) == frozenset()


def test_roles_follow_one_another() -> None:
    roles = {"actor": RoleSpec(1, 1, 2, max_nodes=2), "learner": RoleSpec(2, 2, 1)}
    assert [first_worker(roles, "learner", index) for index in range(2)] == [4, 5]


@pytest.mark.parametrize(
    ("devices", "slots", "nodes", "lines"),
    [
        (0, 1, 4, []),
        (1, 1, 1, ["worker: 1 of 4 nodes, as this machine has 1 devices"]),
        (2, 1, 2, ["worker: 2 of 4 nodes, as this machine has 2 devices"]),
        (8, 1, 4, []),
        (8, 4, 2, ["worker: 2 of 4 nodes, as this machine has 8 devices"]),
    ],
)
def test_more_nodes_than_devices_are_told_and_made_fewer(
    devices: int, slots: int, nodes: int, lines: list[str]
) -> None:
    spec = JobSpec("j", {"worker": RoleSpec(4, 3, slots)})
    fitted, lines_said = fit_to_devices(spec, [str(number) for number in range(devices)])
    assert (fitted.roles["worker"].nodes, lines_said) == (nodes, lines)
    assert fitted.roles["worker"].min_nodes == min(3, nodes)


def test_a_node_with_more_workers_than_devices_is_an_error_that_says_what_to_do() -> None:
    spec = JobSpec("j", {"worker": RoleSpec(1, 1, 4)})
    with pytest.raises(TooFewDevices, match="worker: 4 workers a node, 2 of this machine's 2 devices are left"):
        fit_to_devices(spec, ["0", "1"])

"""`make accept-gpu`, rehearsed: on a stand-in for torch.cuda every line of it runs, and figures mean nothing."""

import argparse
import gc
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from benchmarks import accept_gpu, gpu_bundle, gpu_copies, gpu_runs
from benchmarks.accept_gpu import Part
from benchmarks.apart import PartError, run_apart
from benchmarks.gpu_runs import RunError
from everstep.runtime.checkpoint.shard.cuda_copies import CudaCopies
from everstep.runtime.checkpoint.worker import overlapped_saves
from everstep.runtime.diagnosis import devices
from everstep.runtime.diagnosis.devices import DeviceWork
from everstep.runtime.diagnosis.evidence import DeviceFinding
from tests.checkpoint.cuda_stand_in import stand_in
from tests.diagnosis.fake_nvml import Device, FakeNvml
from tests.fake_agent import Node
from tests.harness import ROOT, wait_until

Measure = Callable[[argparse.Namespace], tuple[str, bool | None]]
OPTIONS = argparse.Namespace(gib=0.001, words=[], minutes=10.0, shared_memory=Path("/dev/shm"), memory_gib=0.0)
DEVICE = DeviceFinding("cuda:0", 0.1, 50_000.0, 50_000.0, (), 0)


@pytest.fixture
def rehearsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for torch.cuda, and everything small."""
    stand_in(monkeypatch, own=0)
    nvml = FakeNvml(Device("GPU-a", used=1 << 20, busy=40), Device("GPU-b"))
    monkeypatch.setattr(overlapped_saves, "_KINDS", {"cpu": CudaCopies})
    small = {"WIDTH": 64, "FACTOR": 32, "ITERATION_S": 1e-4, "CONTEXT_S": 0.0}
    for name, value in {**small, "DEVICE": "cpu", "PINS": False}.items():
        monkeypatch.setattr(gpu_copies, name, value)
    for name, value in {
        "MATRIX_SIZE": 64,
        "COPIED_BYTES": 1 << 22,
        "SHORT_BYTES": 1 << 20,
        "MEMORY_SHARE": 1e-3,
    }.items():
        monkeypatch.setattr(devices, name, value)
    monkeypatch.setattr(devices, "_time_collectives", lambda count, note: 0.1)
    monkeypatch.setattr(devices, "SLOW_FACTOR", 1e9)
    monkeypatch.setattr(devices, "SLOWEST_COPY", 1.0)
    monkeypatch.setattr(gpu_runs, "COPIED_BYTES", 1 << 20)
    for module in (devices, gpu_runs):
        monkeypatch.setattr(module, "open_nvml", lambda: nvml)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")


@pytest.mark.usefixtures("rehearsed")
@pytest.mark.parametrize(
    ("measure", "words"),
    [
        (gpu_copies.measure_staging, " x ("),
        (gpu_copies.measure_restore, "the agent's check before took"),
        (gpu_copies.measure_overlap, "saved in each"),
        (gpu_copies.measure_peers, "torch.save "),
        (gpu_runs.measure_memory_error, "out of GPU memory"),
        (gpu_runs.measure_check, "cuda:0: 0 errors, full clocks; cuda:1: 0 errors, full clocks"),
        (gpu_runs.measure_telemetry, "0.0 GB used, 20% busy"),
    ],
)
def test_every_line_that_one_process_measures_ends_with_its_figures(
    measure: Measure, words: str, tmp_path: Path
) -> None:
    assert words in measure(argparse.Namespace(**vars(OPTIONS), folder=tmp_path))[0]


@pytest.mark.usefixtures("rehearsed")
def test_a_small_state_is_told_and_not_judged(tmp_path: Path) -> None:
    words, holds = gpu_copies.measure_staging(argparse.Namespace(**vars(OPTIONS), folder=tmp_path))
    assert words.endswith("; not judged: of 0.0 GB, not 12")
    assert holds is None
    assert gpu_copies.judge("1.0 x", 12.9e9, holds=True) == ("1.0 x", True)
    assert "at most 0.0 GB of state, too little to judge it (--shared-memory" in accept_gpu.describe_host(OPTIONS)


@pytest.mark.usefixtures("rehearsed")
def test_a_restore_that_copies_nothing_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_copies.Checkpointer, "load", lambda self, state: 1)
    measured = gpu_copies.measure_restore(argparse.Namespace(**vars(OPTIONS), folder=tmp_path))
    assert measured == ("iteration 1 was restored, and a parameter is not what was saved", False)


@pytest.mark.usefixtures("rehearsed")
def test_nothing_goes_to_the_store_beside_a_restore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = list[Node]()

    class Watched(Node):
        def close(self) -> None:
            nodes.append(self)
            super().close()

    monkeypatch.setattr(gpu_copies, "Node", Watched)
    gpu_copies.measure_restore(argparse.Namespace(**vars(OPTIONS), folder=tmp_path))
    assert [node.persisted for node in nodes] == [[]]


@pytest.mark.usefixtures("rehearsed")
def test_our_slots_have_left_memory_before_a_peer_is_measured(tmp_path: Path) -> None:
    gpu_copies._our_stop_s(gpu_copies.state_of(0.001), tmp_path)
    gc.collect()
    assert f"{tmp_path}" not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize(
    ("work", "holds"),
    [
        (DeviceWork((DEVICE, DEVICE), 0.1, ""), True),
        (DeviceWork((DEVICE, DEVICE), 0.0, ""), False),
        (DeviceWork((DEVICE,), 0.0, "", "cuda:1: memory: CUDA out of memory"), None),
        (DeviceWork((DEVICE, DEVICE), 0.1, "cuda:1: NVML: Unknown Error"), None),
    ],
)
def test_a_check_that_did_not_test_everything_does_not_hold(
    work: DeviceWork, holds: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(gpu_runs, "exercise_devices", lambda count, short: work)
    assert gpu_runs.measure_check(OPTIONS)[1] is holds


@pytest.mark.parametrize(
    ("lines", "devices", "holds"),
    [
        (["Round 1: {local-0: 0.60, local-1: 0.61 (NCCL)} s, pairs", "2 nodes healthy  matmul 0.5 s"], 2, True),
        (["Round 1: {local-0: 0.60, local-1: 0.61 (gloo)} s, pairs", "2 nodes healthy  matmul 0.5 s"], 2, False),
        (["Round 1: {local-0: 0.60, local-1: 0.61 (gloo)} s, pairs", "2 nodes healthy  matmul 0.5 s"], 1, True),
        (["Round 1: {local-0: 0.60, local-1: 9.61 (gloo)} s, pairs", "2 nodes healthy  slow local-1"], 1, False),
        (["Round 1: {local-0: 0.60, local-1: 0.61 (gloo)} s, pairs", "local-1 on local-1: not tested: cuda:0: memory",
          "2 nodes healthy  matmul 0.5 s"], 1, None),
    ],
)  # fmt: skip
def test_two_nodes_hold_if_both_are_healthy_tested_and_reduce_by_nccl_where_each_has_a_device(
    lines: list[str], devices: int, holds: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(gpu_runs, "run", lambda command, **more: "\n".join(lines))
    assert gpu_runs.measure_nodes_check(OPTIONS)[1] is holds


def test_what_cannot_be_read_or_pinned_or_compiled_here_is_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, own=0)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(gpu_runs, "COPIED_BYTES", 1 << 20)
    assert gpu_runs.measure_telemetry(OPTIONS) == ("the package nvidia-ml-py is not installed", None)
    options = argparse.Namespace(**vars(OPTIONS), folder=tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: argparse.Namespace(f_bavail=64, f_frsize=1 << 20, f_blocks=64))
    monkeypatch.setattr(gpu_runs, "run", lambda command, **more: "..\n1 failed, 9 passed\n")
    words = "1 failed, 9 passed; not judged: shared memory has no room for the slots"
    assert gpu_runs.measure_exactness(options) == (words, None)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": f"{tmp_path}"})
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert gpu_runs.missing_compiler() == f"no {tmp_path}/Python.h"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert gpu_runs.missing_compiler() == "no C compiler"


def test_a_script_that_does_not_end_is_ended_though_others_hold_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_runs, "END_S", 0.1)
    script = (
        "import pathlib, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
        "print('last words', file=sys.stderr, flush=True)\n"
        "pathlib.Path(sys.argv[1]).write_text(f'{child.pid}')\n"
        "time.sleep(1000)"
    )
    with pytest.raises(RunError, match="not done within 5 s"):
        gpu_runs.run(["-c", script, f"{tmp_path}/pid"], 5.0)
    child = psutil.Process(int((tmp_path / "pid").read_text()))
    child.kill()
    assert "last words" in capfd.readouterr().err


@pytest.mark.long
def test_the_script_that_is_killed_ends_with_the_weights_of_the_one_that_is_not() -> None:
    words, _ = gpu_runs._train("eager")  # Nothing is staged beside training without a device.
    assert words.startswith("equal weights; ")


@pytest.mark.long
@pytest.mark.parametrize("measure", [gpu_runs.measure_abort, gpu_runs.measure_timeout])
def test_a_rank_whose_peer_is_gone_or_stays_away_leaves_its_collective(
    measure: Measure,
) -> None:
    assert "s, the round ended after " in measure(OPTIONS)[0]  # By gloo, which raises both by itself.


@pytest.mark.long
def test_a_worker_whose_import_asks_for_devices_is_forked_where_there_are_none() -> None:
    assert gpu_runs.measure_import(OPTIONS) == ("forked 8.0", False)


@pytest.mark.long
def test_the_default_script_trains_with_the_flags_that_gpus_are_for() -> None:
    assert gpu_runs._train_llama() == ("10 iterations", True)  # To compile it takes minutes without a device.


def test_more_memory_counts_than_is_free_now_where_it_comes_with_use_and_a_small_room_gets_a_small_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = stand_in(monkeypatch, own=0)
    stand.free_bytes = 1 << 50
    monkeypatch.setattr(gpu_copies, "DEVICE", "cpu")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: argparse.Namespace(available=20 << 20))
    room = {"f_bavail": 1 << 38, "f_frsize": 1, "f_blocks": 1 << 38}
    monkeypatch.setattr(os, "statvfs", lambda _: argparse.Namespace(**room))
    options = {**vars(OPTIONS), "gib": 12.0, "folder": tmp_path}
    small = gpu_copies.fitting_gib(argparse.Namespace(**options))
    assert gpu_copies.state_bytes(gpu_copies.state_of(small)) <= 5 << 20
    assert gpu_copies.fitting_gib(argparse.Namespace(**{**options, "memory_gib": 120.0})) == 12.0
    room.update(f_bavail=0, f_blocks=0)  # A tmpfs without a limit.
    assert gpu_copies.fitting_gib(argparse.Namespace(**{**options, "memory_gib": 120.0})) == 12.0


def fail(_: argparse.Namespace) -> NoReturn:
    raise ValueError("of\ntwo lines")


def die(options: argparse.Namespace) -> NoReturn:
    (options.folder / "slots").touch()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_a_line_that_fails_or_kills_its_process_or_needs_more_devices_leaves_the_next_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [("fails", 1, fail), ("dies", 1, die), ("two", 2, fail), ("well", 1, lambda _: (f"{os.getpid()}", True))]
    monkeypatch.setattr(accept_gpu, "PARTS", [Part(promise, "", count, work) for promise, count, work in parts])
    options = argparse.Namespace(**{**vars(OPTIONS), "shared_memory": tmp_path})
    failed, died, two, well = accept_gpu.lines(options, 1)
    assert not os.listdir(tmp_path)
    assert (failed.measured, failed.holds) == ("ValueError: of two lines", False)
    assert (died.measured, died.holds) == ("its process ended with exit code -9", False)
    assert (two.measured, two.holds) == ("needs 2 devices", None)
    assert (int(well.measured) != os.getpid(), well.holds) == (True, True)
    late = argparse.Namespace(**{**vars(OPTIONS), "minutes": 0.0})
    assert {(line.measured, line.holds) for line in accept_gpu.lines(late, 2)} == {("not begun within 0 minutes", None)}
    assert {line.measured for line in accept_gpu.lines(OPTIONS, 0)} == {"no device"}
    monkeypatch.setattr(accept_gpu, "PARTS", [Part("packed", "", 1, fail, "no_such_package")])
    (packed,) = accept_gpu.lines(options, 1)
    assert (packed.measured, packed.holds) == ("needs no_such_package", None)


def test_a_line_that_the_end_of_the_minutes_cuts_is_not_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**vars(OPTIONS), "shared_memory": tmp_path}
    monkeypatch.setattr(accept_gpu, "PARTS", [Part("long", "", 1, lambda _: (f"{time.sleep(1000)}", True))])
    (late,) = accept_gpu.lines(argparse.Namespace(**{**options, "minutes": 0.5}), 1)
    assert (late.measured, late.holds) == ("not begun within 0.5 minutes", None)
    monkeypatch.setattr(accept_gpu, "LEAST_S", 0.0)
    (cut,) = accept_gpu.lines(argparse.Namespace(**{**options, "minutes": 0.01}), 1)
    assert (cut.measured, cut.holds) == ("cut by --minutes: not done within 1 s", None)
    monkeypatch.setattr(accept_gpu, "LIMIT_S", 0.6)
    (long,) = accept_gpu.lines(argparse.Namespace(**options), 1)
    assert (long.measured, long.holds) == ("not done within 1 s", False)


def test_a_line_that_does_not_end_is_ended_with_the_processes_that_it_began(tmp_path: Path) -> None:
    def hang() -> None:
        child = psutil.Popen(["sleep", "1000"])
        (tmp_path / "fresh").write_text(f"{child.pid}")
        (tmp_path / "fresh").rename(tmp_path / "pid")
        time.sleep(1000)

    with pytest.raises(PartError, match="not done within 1 s"):
        run_apart(hang, 1.0)
    pid = int(wait_until((tmp_path / "pid").read_text, "the work had begun"))
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


IMPORTED = (
    "benchmarks.accept_gpu",
    "everstep.reentry",
    "everstep.runtime.agent.agent",
    "everstep.runtime.agent.forkserver",
    "everstep.runtime.launch.run",
    "everstep.runtime.report",
)
"""What the lines and the processes that they start import."""
IMPORT_ALONE = """
import importlib, sys
from importlib.machinery import PathFinder

bundled, wanted = (words.split(",") for words in sys.argv[1:])

class Bundled:
    @staticmethod
    def find_spec(name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target)
        is_installed = spec is not None and "site-packages" in (spec.origin or "")
        return None if is_installed and name.partition(".")[0] not in bundled else spec

sys.meta_path[sys.meta_path.index(PathFinder)] = Bundled
for name in wanted:
    importlib.import_module(name)
"""


def required_packages(name: str, known: set[str]) -> set[str]:
    """The package, and what it needs, without `known`."""
    if (name := canonicalize_name(name)) in known:
        return known
    known.add(name)
    for requirement in map(Requirement, metadata.requires(name) or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            required_packages(requirement.name, known)
    return known


def test_the_lines_import_nothing_but_what_torch_and_the_bundle_bring() -> None:
    packages = required_packages("torch", set[str]()) | set(gpu_bundle.PACKAGES)
    modules = [
        module
        for module, names in metadata.packages_distributions().items()
        if packages & set(map(canonicalize_name, names))
    ]
    command = [sys.executable, "-c", IMPORT_ALONE, ",".join(modules), ",".join(IMPORTED)]
    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr


def test_a_package_tests_of_the_machine_does_not_hide_the_bundles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = subprocess.run

    def run_all_but_pip(command: list[str], **more: Any) -> object:
        return None if "pip" in command else run(command, **more)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", run_all_but_pip)
        assert gpu_bundle.bundle(tmp_path / "gpu") > 0
    (tmp_path / "site" / "tests").mkdir(parents=True)
    (tmp_path / "site" / "tests" / "__init__.py").touch()
    script = (
        f"import sys; sys.path.append({f'{tmp_path}/site'!r}); import tests.datasets as found; print(found.__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}/gpu"}
    found = run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.startswith(f"{tmp_path}/gpu/tests/")


def test_all_that_the_bundle_brings_along_is_locked_with_its_hashes() -> None:
    entries = gpu_bundle.locked((ROOT / "constraints.txt").read_text(), gpu_bundle.PACKAGES)
    assert [line.partition("==")[0] for line in entries.splitlines() if "==" in line] == list(gpu_bundle.PACKAGES)
    assert entries.count("--hash=") >= len(gpu_bundle.PACKAGES)
    with pytest.raises(ValueError, match="does not lock msg"):
        gpu_bundle.locked("msgspec==1\n", ["msg"])

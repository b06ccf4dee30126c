"""Lines of `benchmarks.accept_gpu`: tests, trainings and checks on the devices of this machine."""

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_copies import free_bytes
from everstep.runtime.agent.device_watch import line_of
from everstep.runtime.agent.preload import is_cuda_initialized
from everstep.runtime.diagnosis.devices import exercise_devices
from everstep.runtime.diagnosis.evidence import DeviceFinding
from everstep.runtime.job.error_kinds import kind_of
from everstep.runtime.job.records import RoundBroken
from everstep.runtime.journal.journal import read_journal
from everstep.runtime.platform.devices import machine_devices, node_devices, shown_by
from everstep.runtime.store import DirectoryStore
from everstep.runtime.system.gpu_readings import NoReadingsError, open_nvml, read_devices
from tests.datasets import write_dataset
from tests.harness import ROOT

SCRIPT_S = 200.0
"""Within this a script's job has ended, also where torch compiles for the first time."""
END_S = 10.0
"""Within this a launcher that is asked to end has ended its agents."""
TIMEOUT_S = 15.0
"""Of a group whose collective exceeds it: the ranks also meet within it."""
COPIED_BYTES = 1 << 30
TESTED_BYTES = 1 << 30
"""More than the tests' slots."""
TOO_MANY_BYTES = 1 << 50
ITERATIONS = 10
IMPORT = "import os, torch\ntorch.cuda.is_available() and torch.cuda.init()\nPID = os.getpid()\n"
"""A module that uses CUDA when it is imported, as some do that compile kernels."""
IMPORTER = """
import os, torch, uses_cuda
device = "cuda" if torch.cuda.is_available() else "cpu"
print("by exec" if uses_cuda.PID == os.getpid() else "forked", torch.ones(8, device=device).sum().item())
"""


class RunError(RuntimeError):
    """A script failed. One line."""


def launch(store: Path, script: str, arguments: Sequence[str], *flags: str) -> str:
    """As `run`, of a script of this folder, or a path, by Everstep's launcher. What torch compiles, and which of its
    kernels it found to be the fastest, lies beside the store for the next one."""
    command = ["-m", "everstep", "launch", "--standalone", "--max-restarts=1", f"--store={store}", *flags]
    compiled = {"TORCHINDUCTOR_CACHE_DIR": f"{store.parent / 'compiled'}"}
    return run([*command, f"{ROOT / 'benchmarks' / script}", *arguments], env={**os.environ, **compiled})


def run(command: Sequence[str], limit_s: float = SCRIPT_S, **more: Any) -> str:
    """The output of Python with these arguments. Raises RunError, and ends it by SIGTERM after `limit_s`."""
    file = partial(tempfile.TemporaryFile, "w+", errors="replace")  # A pipe may be held by others.
    with file() as out, file() as errors:
        files = {"stdout": out, "stderr": errors, **more}
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, **files)
        problem = _wait(process, limit_s)
        texts = list[str]()
        for written in (out, errors):
            written.seek(0)
            texts.append(written.read())
    output, error_text = texts
    if problem or process.returncode:
        print(output, error_text, sep="\n", file=sys.stderr)
        words = [line for line in (error_text or output).splitlines() if line.strip()]
        raise RunError(problem or f"exit code {process.returncode}: {(words or [''])[-1][:200]}")
    return output


def _wait(process: subprocess.Popen[Any], limit_s: float) -> str:
    """Wait for its end, and end it after `limit_s`; returns a problem then."""
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # By which a launcher ends its agents.
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
        return f"not done within {limit_s:.0f} s"
    return ""


def missing_compiler() -> str:
    """What torch lacks to compile for a device, as Triton does (triton/runtime/build.py); empty: nothing."""
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        return "no C compiler"
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    return "" if header.exists() else f"no {header}"


def measure_exactness(options: argparse.Namespace) -> tuple[str, bool | None]:
    """The tests that need a device. Without shared memory for their slots nothing is judged: of a file on a disk, Linux
    may let a device pin no pages."""
    folder = ROOT / "tests" / "checkpoint"  # Its own fixtures are enough; those of all tests need more packages.
    command = ["-m", "pytest", "-p", "no:cacheprovider", f"--confcutdir={folder}", f"{folder / 'test_cuda.py'}"]
    command += ["-o", f"faulthandler_timeout={SCRIPT_S / 2}"]  # A test that hangs says where.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if free_bytes(options.folder) <= TESTED_BYTES:
        try:
            words = run(command, env=environment).strip().splitlines()[-1]
        except RunError as error:
            words = f"{error}"
        return f"{words}; not judged: shared memory has no room for the slots", None
    command.append(f"--basetemp={options.folder / 'tests'}")
    words = run(command, env=environment).strip().splitlines()[-1]
    return words, "passed" in words and "skipped" not in words


def measure_determinism(_: argparse.Namespace) -> tuple[str, bool]:
    """Two runs of one product and backward pass in processes that set what the default script sets."""
    script = (
        "import os, torch\nos.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')\n"
        "torch.use_deterministic_algorithms(True)\ntorch.manual_seed(0)\n"
        "m = torch.nn.Linear(512, 512).cuda()\nm(torch.randn(64, 512, device='cuda')).square().sum().backward()\n"
        "print(m.weight.grad.double().sum().item().hex())\n"
    )
    sums = {run(["-c", script]) for _ in range(2)}
    return ("equal bit for bit" if len(sums) == 1 else f"they differ: {sums}"), len(sums) == 1


def measure_driver(_: argparse.Namespace) -> tuple[str, bool]:
    """What the driver says before and after an initialization that torch's flag does not show."""
    ctypes.CDLL("libcuda.so.1")
    before = is_cuda_initialized()
    ctypes.CDLL("libcuda.so.1").cuInit(0)
    words = f"{before} {is_cuda_initialized()}"
    return words, words == "False True" and not torch.cuda.is_initialized()


def measure_memory_error(_: argparse.Namespace) -> tuple[str, bool]:
    """What a device without room is called."""
    try:
        torch.empty(TOO_MANY_BYTES, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        name = kind_of(f"{type(error).__name__}: {error}", 1).name
        return name, name == "out of GPU memory"
    return "no error", False


def measure_check(_: argparse.Namespace) -> tuple[str, bool | None]:
    """The node check's work on every device, and what their driver says of memory errors and lowered clocks. What was
    not tested or not told is not judged."""
    count = torch.cuda.device_count()
    done = exercise_devices(count, short=False)
    copies = min((min(device.to_host, device.to_device) for device in done.devices), default=0.0)
    matmul, collectives = f"matmul {done.matmul_s:.2f} s", f"collectives {done.collectives_s:.2f} s"
    parts = [f"{matmul}, {collectives}, copies >= {copies / 1e3:.1f} GB/s", *map(_driver_words, done.devices)]
    if open_points := [*filter(None, (done.untested, done.unread))]:
        return "; ".join([*parts, *(f"not tested: {point}" for point in open_points)]), None
    return "; ".join(parts), len(done.devices) == count and (count == 1 or done.collectives_s > 0)


def _driver_words(of: DeviceFinding) -> str:
    errors = "errors not told" if of.uncorrected is None else f"{of.uncorrected} errors"
    clocks = "clocks not told" if of.lowered is None else ", ".join(of.lowered) or "full clocks"
    return f"{of.device}: {errors}, {clocks}"


def measure_nodes_check(_: argparse.Namespace) -> tuple[str, bool | None]:
    """`everstep check` of two nodes, which share this machine's devices where there is one for each, and then reduce by
    NCCL, and else use the same."""
    lines = run(["-m", "everstep", "check", "--nodes", "2"], stderr=subprocess.STDOUT).strip().splitlines()
    summary, last_round = lines[-1], [line for line in lines if line.startswith("Round ")][-1]
    words = "; ".join([last_round, summary])
    if untested := [line for line in lines if ": not tested: " in line]:
        return "; ".join([words, *untested]), None
    are_healthy = summary.startswith("2 nodes healthy") and "  slow " not in summary
    return words, are_healthy and ("(NCCL)" in last_round or torch.cuda.device_count() == 1)


def measure_telemetry(_: argparse.Namespace) -> tuple[str, bool | None]:
    """A line of a node's telemetry while the device copies."""
    on_device = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    pinned = torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    try:
        nvml = open_nvml()
        for _number in range(50):
            pinned.copy_(on_device, non_blocking=True)
        line = line_of(read_devices(nvml, machine_devices(os.environ) or ("0",)))
    except NoReadingsError as error:
        return f"{error}", None
    torch.cuda.synchronize()
    used, busy, rate = float(line["used_bytes"]), line.get("busy"), line.get("from_device")
    if busy is None or rate is None:
        return f"{used / 1e9:.1f} GB used; the driver does not tell the rest", None
    words = f"{used / 1e9:.1f} GB used, {float(busy):.0%} busy, {float(rate) / 1e9:.1f} GB/s to the host"
    return words, used >= COPIED_BYTES and float(rate) > 0


def measure_sharing(_: argparse.Namespace) -> tuple[str, bool]:
    """What two nodes of this machine see, with one worker each."""
    devices, script = machine_devices(os.environ), (
        "import torch\nprint(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)"
    )  # fmt: skip
    shown = [shown_by(node_devices(devices, node, 1), os.environ) for node in range(2)]
    replies = [run(["-c", script], env={**os.environ, **variables}).strip() for variables in shown]
    return "; ".join(replies), len(set(replies)) == 2 and all(reply.startswith("1 ") for reply in replies)


def measure_abort(_: argparse.Namespace) -> tuple[str, bool]:
    """How soon after its peer's death a survivor leaves its collective, and the round ends."""
    return _time_end()


def measure_timeout(_: argparse.Namespace) -> tuple[str, bool]:
    """The same after the group's timeout, of a rank whose peer does not join the collective."""
    return _time_end(f"{TIMEOUT_S}")


def _time_end(*more: str) -> tuple[str, bool]:
    job = "survivor"
    with tempfile.TemporaryDirectory(prefix="everstep-gpu-") as name:
        store, mark = Path(name, "store"), Path(name, "fault")
        out = launch(store, "gpu_survivor.py", [f"{mark}", *more], "--nproc-per-node=2", f"--rdzv-id={job}")
        fault = float(mark.read_text())
        ends = [record.time for record in read_journal(DirectoryStore(store), job) if isinstance(record, RoundBroken)]
    seconds = [float(line.split()[-1]) for line in out.splitlines() if "left " in line]
    if not seconds or not ends:
        return "no rank survived" if ends else "the round did not end", False
    left, ended = max(seconds), ends[0] - fault
    return f"left after {left:.2f} s, the round ended after {ended:.2f} s", max(left, ended) <= 1.0


def measure_import(_: argparse.Namespace) -> tuple[str, bool]:
    """How a worker starts if its script imports a module that uses CUDA, which a fork cannot use after that."""
    with tempfile.TemporaryDirectory(prefix="everstep-gpu-") as name:
        Path(name, "uses_cuda.py").write_text(IMPORT)
        Path(name, "train.py").write_text(IMPORTER)
        words = launch(Path(name, "store"), f"{name}/train.py", []).strip()
    return words, "by exec 8.0" in words


def measure_llama(_: argparse.Namespace) -> tuple[str, bool]:
    """A short training by the default script, with the flags that GPUs are for."""
    return _train_llama("--compile")


def _train_llama(*more: str) -> tuple[str, bool]:
    flags = ["--precision=bf16", "--micro-batch=2", "--global-batch=4", "--sequence-length=16", *more]
    with tempfile.TemporaryDirectory(prefix="everstep-gpu-") as name:
        dataset = write_dataset(Path(name, "tokens"))
        script = f"{ROOT / 'steps' / 'train' / 'llama.py'}"
        launch(Path(name, "store"), script, [f"--dataset={dataset}", f"--iterations={ITERATIONS}", *flags])
    return f"{ITERATIONS} iterations", True


def measure_training(_: argparse.Namespace) -> tuple[str, bool]:
    """A training that is killed once beside one that is not, and what its report says of its saves.

    Where torch cannot compile, it is also tried without.
    """
    if missing := missing_compiler():
        words, holds = _train("eager")
        return f"{missing}, so not compiled: {words}", holds
    try:
        return _train("compiled")
    except RunError as error:
        return f"compiled: {error}; not compiled: {_train('eager')[0]}", False


def _train(mode: str) -> tuple[str, bool]:
    weights = list[str]()
    with tempfile.TemporaryDirectory(prefix="everstep-gpu-") as name:
        for number, more in enumerate(([], [f"{name}/killed"])):
            result = Path(name, f"{number}")
            arguments = [mode, f"{result}", *more]
            launch(Path(name, "store"), "gpu_training.py", arguments, f"--rdzv-id=training-{number}")
            weights.append(result.read_text())
        report = run(["-m", "everstep", "report", f"{name}/store/jobs/training-1", "-o", "json"])
        staged = json.loads(report)["jobs"][0]["staged"]
        killed = Path(name, "killed").exists()
    same = "equal weights" if weights[0] == weights[1] else "the weights differ"
    overlap = "unknown" if staged["overlap"] is None else f"{staged['overlap']:.0%}"
    words = f"{same}; {staged['saves']} saves, {staged['bytes'] / 1e9:.1f} GB staged, {overlap} beside training"
    return words, killed and weights[0] == weights[1] and staged["bytes"] > 0

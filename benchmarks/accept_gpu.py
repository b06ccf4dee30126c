"""`make accept-gpu`: what is promised of GPUs: wanted, measured, holds or not; "no device" where there is none.

    python -m benchmarks.accept_gpu                 # on a machine with a GPU
    python -m benchmarks.accept_gpu staging --gib 2

Needs Python 3.11 or later, torch 2.9 or later, and what `make gpu-bundle` brings along; no network. One GPU is enough;
lines for several say "needs N devices". Each line takes less than 8 minutes. Exit code 1 if a line does not hold.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.acceptance import Line, is_asked, judge, parse_options
from everstep.runtime.agent.device_watch import line_of
from everstep.runtime.agent.preload import is_cuda_initialized
from everstep.runtime.checkpoint.worker.checkpointer import Checkpointer
from everstep.runtime.diagnosis.devices import DeviceError, exercise_devices
from everstep.runtime.job.error_kinds import kind_of
from everstep.runtime.platform.devices import machine_devices, node_devices
from everstep.runtime.store import DirectoryStore
from everstep.runtime.system.gpu_readings import NoReadingsError, open_nvml, read_devices
from tests.fake_agent import Node
from tests.harness import ROOT

SHARED_MEMORY = Path("/dev/shm")
SLOTS = 3
SHARE = 0.7
"""Of the free shared memory that the slots may take."""
PARAMETER_BYTES = 12
"""Of the state: fp32 weights and AdamW's two moments."""
ITERATION_S = 1.0
REPEATS = 7


class Part(NamedTuple):
    """A promise, and what measures it on a machine with so many devices."""

    promise: str
    wanted: str
    devices: int
    measure: Callable[[argparse.Namespace], tuple[str, bool]]
    """Returns what was measured, and whether the promise holds."""


def state_of(gib: float) -> dict[str, Any]:
    """A model and AdamW with about so many GiB of state on the device: large matrices and small vectors."""
    width = 2048
    layers = max(1, int(gib * 2**30 / PARAMETER_BYTES / (width * width + width)))
    model = torch.nn.ModuleList(torch.nn.Linear(width, width, device="cuda") for _ in range(layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def state_bytes(state: Mapping[str, Any]) -> int:
    """Bytes of the state on the device."""
    moments = (value for own in state["optimizer"].state.values() for value in own.values() if value.is_cuda)
    return sum(tensor.nbytes for tensor in [*state["model"].parameters(), *moments])


@contextmanager
def node() -> Iterator[Node]:
    """A node whose slots are in this machine's shared memory."""
    with tempfile.TemporaryDirectory(prefix="everstep-gpu-", dir=SHARED_MEMORY) as name:
        gpu_node = Node(Path(name), DirectoryStore(Path(name) / "store"))
        try:
            yield gpu_node
        finally:
            gpu_node.close()


def fitting_gib(requested_gib: float) -> float:
    """The GiB of state that were requested, or fewer if shared memory or the device has less room."""
    free = os.statvfs(SHARED_MEMORY)
    shared = free.f_bavail * free.f_frsize * SHARE / SLOTS
    return min(requested_gib, shared / 2**30, torch.cuda.mem_get_info()[0] / 3 / 2**30)


def median_s(work: Callable[[], object], times: int = REPEATS) -> float:
    """The median of the seconds that `work` and what it queues take; the first time does not count."""
    seconds = []
    for _ in range(times + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


def pinned_s(size: int) -> float:
    """Seconds of one copy of so many bytes from the device to pinned memory."""
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(size, dtype=torch.uint8, device="cuda")
    return median_s(partial(pinned.copy_, on_device, non_blocking=True))


def measure_staging(options: argparse.Namespace) -> tuple[str, bool]:
    """A save and the wait for its commit, beside one pinned copy."""
    state = state_of(fitting_gib(options.gib))
    size = state_bytes(state)
    with node() as place:
        place.begin(1)
        checkpointer = Checkpointer(state, keeper=place.link())
        place.has_memory()
        numbers = iter(range(1, 1000))

        def save() -> None:
            checkpointer.save(next(numbers), state)
            checkpointer._finish_overlapped()  # pyright: ignore[reportPrivateUsage]

        for _ in range(SLOTS):
            save()  # Registers each slot.
        ours = median_s(save)
        checkpointer.close()
    theirs = pinned_s(size)
    return f"{ours / theirs:.2f} x ({ours:.3f} s and {theirs:.3f} s, {size / 1e9:.1f} GB)", ours <= 1.1 * theirs


def measure_overlap(options: argparse.Namespace) -> tuple[str, bool]:
    """Iterations of about a second, with a save in each and with none."""
    state = state_of(fitting_gib(options.gib))
    factor = torch.randn(8192, 8192, device="cuda")
    product = torch.empty_like(factor)
    product_s = median_s(lambda: torch.mm(factor, factor, out=product))

    def iterate() -> None:
        for _ in range(max(1, int(ITERATION_S / product_s))):
            torch.mm(factor, factor, out=product)
        state["optimizer"].step()

    plain = median_s(iterate)
    with node() as place:
        place.begin(1)
        checkpointer = Checkpointer(state, keeper=place.link())
        place.has_memory()
        numbers = iter(range(1, 1000))

        def iterate_and_save() -> None:
            iterate()
            checkpointer.save(next(numbers), state)

        for _ in range(SLOTS):
            iterate_and_save()
        saving = median_s(iterate_and_save)
        checkpointer.close()
    cost = saving / plain - 1
    size = state_bytes(state) / 1e9
    return f"{cost:+.1%} of iterations of {plain:.2f} s, {size:.1f} GB saved in each", cost <= 0.02


def measure_peers(options: argparse.Namespace) -> tuple[str, bool]:
    """How long torch.save and dcp.async_save stop training for the same state."""
    from torch.distributed.checkpoint.state_dict_saver import async_save

    state = state_of(min(2.0, fitting_gib(options.gib)))
    plain = {"model": state["model"].state_dict(), "optimizer": state["optimizer"].state_dict()}
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as name:
        torch_save_s = median_s(lambda: torch.save(plain, Path(name) / "state.pt"), 2)
        stops = []
        for number in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            path = str(Path(name) / f"dcp-{number}")
            future: Any = async_save({"model": plain["model"]}, checkpoint_id=path, no_dist=True)
            stops.append(time.perf_counter() - began)
            future.result()
    size = state_bytes(state) / 1e9
    summary_text = (
        f"torch.save {torch_save_s:.2f} s; dcp.async_save of the model {min(stops):.2f} s; DLRover: not installed"
    )
    return f"{size:.1f} GB: {summary_text}", True


def measure_restore(options: argparse.Namespace) -> tuple[str, bool]:
    """The first restore of a new process's checkpointer, beside one pinned copy."""
    gib = fitting_gib(options.gib)
    state = state_of(gib)
    size = state_bytes(state)
    with node() as place:
        place.begin(1)
        checkpointer = Checkpointer(state, keeper=place.link())
        place.has_memory()
        checkpointer.save(1, state)
        checkpointer._finish_overlapped()  # pyright: ignore[reportPrivateUsage]
        checkpointer.close()
        place.keeper.worker_died(0)
        began = time.perf_counter()
        place.begin(2, place.newest())
        place.keeper.wait_for_restore(0)  # A new process makes its CUDA context meanwhile.
        checked = time.perf_counter() - began
        began = time.perf_counter()
        again = Checkpointer(state, keeper=place.link(2))
        restored = again.load(state)
        torch.cuda.synchronize()
        ours = time.perf_counter() - began
        again.close()
    theirs = pinned_s(size)
    outcome = (
        f"{ours / theirs:.2f} x ({ours:.2f} s, {size / 1e9:.1f} GB; the agent's check before took {checked:.2f} s)"
    )
    return outcome, restored == 1 and ours <= 1.2 * theirs


def measure_exactness(_: argparse.Namespace) -> tuple[str, bool]:
    """The tests that need a device."""
    folder = ROOT / "tests" / "checkpoint"  # Its own fixtures are enough; those of all tests need more packages.
    options = ["-p", "no:cacheprovider", f"--confcutdir={folder}"]
    command = [sys.executable, "-m", "pytest", *options, str(folder / "test_cuda.py")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return (run.stdout.strip().splitlines() or [run.stderr[-80:]])[-1], run.returncode == 0


def measure_determinism(_: argparse.Namespace) -> tuple[str, bool]:
    """Two runs of one product and backward pass in processes that set what the default script sets."""
    script = (
        "import os, torch\nos.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')\n"
        "torch.use_deterministic_algorithms(True)\ntorch.manual_seed(0)\n"
        "m = torch.nn.Linear(512, 512).cuda()\nm(torch.randn(64, 512, device='cuda')).square().sum().backward()\n"
        "print(m.weight.grad.double().sum().item().hex())\n"
    )
    command = [sys.executable, "-c", script]
    each = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(2)]
    same = len({run.stdout for run in each}) == 1 and not any(run.returncode for run in each)
    return "equal bit for bit" if same else each[0].stderr[-120:], same


def measure_driver(_: argparse.Namespace) -> tuple[str, bool]:
    """What the driver says before and after an initialization that torch's flag does not show."""
    script = (
        "import ctypes\nfrom everstep.runtime.agent.preload import is_cuda_initialized as told\n"
        "driver = ctypes.CDLL('libcuda.so.1')\nbefore = told()\ndriver.cuInit(0)\nprint(before, told())\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    return run.stdout.strip() or run.stderr[-120:], run.stdout.split() == ["False", "True"] and is_cuda_initialized()


def measure_memory_error(_: argparse.Namespace) -> tuple[str, bool]:
    """What a device without room is called."""
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        name = kind_of(f"{type(error).__name__}: {error}", 1).name
        return name, name == "out of GPU memory"
    return "no error", False


def measure_check(_: argparse.Namespace) -> tuple[str, bool]:
    """The node check's work on every device."""
    try:
        done = exercise_devices(torch.cuda.device_count(), short=False)
    except DeviceError as error:
        return str(error), False
    copies = min((min(device.to_host, device.to_device) for device in done.devices), default=0.0)
    matmul, collectives = f"matmul {done.matmul_s:.2f} s", f"collectives {done.collectives_s:.2f} s"
    return f"{matmul}, {collectives}, copies >= {copies / 1e3:.1f} GB/s", True


def measure_driver_facts(_: argparse.Namespace) -> tuple[str, bool]:
    """Memory errors and lowered clocks of each device."""
    done = exercise_devices(torch.cuda.device_count(), short=True)
    each = (f"{of.device}: {of.uncorrected} errors, {', '.join(of.lowered) or 'full clocks'}" for of in done.devices)
    return done.unread or "; ".join(each), True


def measure_telemetry(_: argparse.Namespace) -> tuple[str, bool]:
    """A line of a node's telemetry while the device copies."""
    on_device = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    pinned = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    try:
        nvml = open_nvml()
        for _number in range(50):
            pinned.copy_(on_device, non_blocking=True)
        line = line_of(read_devices(nvml, machine_devices(os.environ)))
    except NoReadingsError as error:
        return str(error), True
    torch.cuda.synchronize()
    used, busy, rate = float(line["used_bytes"]), float(line["busy"]), float(line["from_device"])
    return f"{used / 1e9:.1f} GB used, {busy:.0%} busy, {rate / 1e9:.1f} GB/s to the host", used >= 1 << 30


def measure_sharing(_: argparse.Namespace) -> tuple[str, bool]:
    """What two nodes of this machine see, with one worker each."""
    devices, replies = machine_devices(os.environ), list[str]()
    script = "import torch\nprint(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)"
    for node in range(2):
        own, command = {**os.environ, **node_devices(devices, node, 1)}, [sys.executable, "-c", script]
        run = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
        replies.append(run.stdout.strip() or run.stderr[-120:])
    return "; ".join(replies), len(set(replies)) == 2 and all(reply.startswith("1 ") for reply in replies)


def measure_abort(_: argparse.Namespace) -> tuple[str, bool]:
    """How soon a survivor leaves its collective after its peer's death."""
    with tempfile.TemporaryDirectory(prefix="everstep-gpu-") as name:
        command = [sys.executable, "-m", "everstep", "launch", "--standalone", "--nproc-per-node=2", "--max-restarts=1",
                   f"--store={name}/store", str(ROOT / "benchmarks" / "gpu_survivor.py"), f"{name}/killed"]  # fmt: skip
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    seconds = [float(line.split()[-1]) for line in run.stdout.splitlines() if line.startswith("left ")]
    if not seconds:
        return f"exit code {run.returncode}: {(run.stderr.strip().splitlines() or [''])[-1][:120]}", False
    return f"{max(seconds):.2f} s", run.returncode == 0 and max(seconds) <= 1.0


def measure_training(_: argparse.Namespace) -> tuple[str, bool]:
    """A training that is killed once beside one that is not, and what its report says of its saves."""
    weights = list[str]()
    with tempfile.TemporaryDirectory(prefix="everstep-gpu-") as name:
        for number, more in enumerate(([], [f"{name}/killed"])):
            result = Path(name, f"{number}")
            command = [sys.executable, "-m", "everstep", "launch", "--standalone", "--max-restarts=1",
                       f"--rdzv-id=training-{number}", f"--store={name}/store",
                       str(ROOT / "benchmarks" / "gpu_training.py"), str(result), *more]  # fmt: skip
            run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=420)
            if run.returncode:
                return f"exit code {run.returncode}: {(run.stderr.strip().splitlines() or [''])[-1][:120]}", False
            weights.append(result.read_text())
        command = [sys.executable, "-m", "everstep", "report", f"{name}/store/jobs/training-1", "-o", "json"]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        staged = json.loads(run.stdout)["jobs"][0]["staged"]
        killed = Path(name, "killed").exists()
    same = "equal weights" if weights[0] == weights[1] else "the weights differ"
    overlap = "unknown" if staged["overlap"] is None else f"{staged['overlap']:.0%}"
    outcome = f"{same}; {staged['saves']} saves, {staged['bytes'] / 1e9:.1f} GB staged, {overlap} beside training"
    return outcome, killed and weights[0] == weights[1] and staged["bytes"] > 0


PARTS = (
    Part("6 staging: a blocking save beside one pinned copy", "<= 1.1 x", 1, measure_staging),
    Part("6 overlap: saved in every iteration of 1 s", "<= 2 %", 1, measure_overlap),
    Part("6 peers: how long they stop training", "told", 1, measure_peers),
    Part("7 restore: the first one, registration included", "<= 1.2 x a pinned copy", 1, measure_restore),
    Part("7 a state is saved and restored bit for bit", "tests pass", 1, measure_exactness),
    Part("8 deterministic algorithms", "equal twice", 1, measure_determinism),
    Part("8 an initialized driver is seen before a fork", "False True", 1, measure_driver),
    Part("8 the device's memory error is told apart from the host's", "out of GPU memory", 1, measure_memory_error),
    Part("8 a compiled bf16 training is killed once; 10 its report", "equal weights", 1, measure_training),
    Part("8 nodes of one machine share 2 devices", "each its own", 2, measure_sharing),
    Part("8 a peer's death ends NCCL's collective and the round", "<= 1 s", 2, measure_abort),
    Part("9 check: products, memory and copies of each device", "passes", 1, measure_check),
    Part("9 check: NCCL within a node", "passes", 2, measure_check),
    Part("9 check: ECC and throttle reasons", "told", 1, measure_driver_facts),
    Part("10 telemetry: memory, utilisation and copy bandwidth of a node", "told", 1, measure_telemetry),
)


def lines(options: argparse.Namespace) -> Iterator[Line]:
    """The selected lines."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for part in PARTS:
        if not is_asked(part.promise, options.words):
            continue
        if not count:
            yield Line(part.promise, part.wanted, "no device", None)
        elif count < part.devices:
            yield Line(part.promise, part.wanted, f"needs {part.devices} devices", None)
        else:
            yield _measure_part(part, options)


def _measure_part(part: Part, options: argparse.Namespace) -> Line:
    try:
        outcome, holds = part.measure(options)
    except (RuntimeError, OSError, AssertionError, subprocess.TimeoutExpired) as error:
        outcome, holds = f"{type(error).__name__}: {error}"[:200], False
    torch.cuda.empty_cache()
    return Line(part.promise, part.wanted, outcome, holds)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=12.0, help="state to save, if there is room (default 12: 1 B)")
    options = parse_options(parser, [part.promise for part in PARTS])
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no device"
    print(f"{device}; torch {torch.__version__}; Python {platform.python_version()}", flush=True)
    judge(lines(options))


if __name__ == "__main__":
    main()

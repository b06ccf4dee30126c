"""`make accept-gpu`: what is promised of GPUs: wanted, measured, holds or not; "no device" where there is none.

    python -m benchmarks.accept_gpu                 # on a machine with a GPU
    python -m benchmarks.accept_gpu staging restore --gib 2 --minutes 4

Needs Python 3.11 or later, torch 2.9 or later, and what `make gpu-bundle` brings along; no network. One GPU is enough;
lines for several say "needs N devices", and one "needs transformers". Each line is measured in a process of its own,
which takes less than 8 minutes: what fails there, or never ends, leaves the next line alone. The most valuable lines
come first. None begins in the last minute of --minutes, and one that is cut by their end is not judged. Exit code 1 if
a line does not hold.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from benchmarks import gpu_copies, gpu_runs
from benchmarks.acceptance import Line, is_asked, judge, parse_options
from benchmarks.apart import PartError, PartTimeoutError, run_apart

LIMIT_S = 470.0
"""Of one line."""
LEAST_S = 60.0
"""With less time left no line is begun."""
DRIVER_FILE = Path("/proc/driver/nvidia/version")


class Part(NamedTuple):
    """A promise, and what measures it on a machine with so many devices."""

    promise: str
    wanted: str
    devices: int
    measure: Callable[[argparse.Namespace], tuple[str, bool | None]]
    """Returns what was measured, and whether the promise holds; None: this machine cannot show it."""
    package: str = ""
    """What it needs besides, and the bundle does not bring."""


PARTS = (
    Part("7 a state is saved and restored bit for bit", "tests pass", 1, gpu_runs.measure_exactness),
    Part("6 staging: a blocking save beside one pinned copy", "<= 1.1 x", 1, gpu_copies.measure_staging),
    Part("7 restore: the first one, registration included", "<= 1.2 x a pinned copy", 1, gpu_copies.measure_restore),
    Part("6 overlap: saved in every iteration of 1 s", "<= 2 %", 1, gpu_copies.measure_overlap),
    Part("8 a compiled bf16 training is killed once; 10 its report", "equal weights", 1, gpu_runs.measure_training),
    Part("8 a peer's death ends NCCL's collective and the round", "<= 1 s", 2, gpu_runs.measure_abort),
    Part("8 a collective that exceeds its timeout ends the round", "<= 1 s after it", 2, gpu_runs.measure_timeout),
    Part("8 an initialized driver is seen before a fork", "False True", 1, gpu_runs.measure_driver),
    Part("8 an import that uses CUDA: workers start by exec", "by exec", 1, gpu_runs.measure_import),
    Part("8 the device's memory error is told apart from the host's", "out of GPU memory", 1,
         gpu_runs.measure_memory_error),
    Part("8 deterministic algorithms", "equal twice", 1, gpu_runs.measure_determinism),
    Part("8 nodes of one machine share 2 devices", "each its own", 2, gpu_runs.measure_sharing),
    Part("9 check: products, memory, copies, ECC, clocks of each device", "passes", 1, gpu_runs.measure_check),
    Part("9 everstep check: two nodes of this machine", "healthy", 1, gpu_runs.measure_nodes_check),
    Part("9 check: NCCL within a node", "passes", 2, gpu_runs.measure_check),
    Part("10 telemetry: memory, utilisation and copy bandwidth of a node", "told", 1, gpu_runs.measure_telemetry),
    Part("6 peers: how long they stop training", "told", 1, gpu_copies.measure_peers),
    Part("8 the default script: bf16, compiled, two passes an iteration", "trains", 1, gpu_runs.measure_llama,
         "transformers"),
)  # fmt: skip


class Machine(NamedTuple):
    """What the lines are measured on."""

    devices: int
    words: str


def describe_machine() -> Machine:
    """The devices and the host, for people. Uses CUDA in this process."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return Machine(0, "no device")
    facts = torch.cuda.get_device_properties(0)
    driver = DRIVER_FILE.read_text().splitlines()[0] if DRIVER_FILE.exists() else "its driver is not told"
    return Machine(count, f"{count} x {facts.name}, {facts.total_memory / 1e9:.0f} GB; {driver}")


def describe_host(options: argparse.Namespace) -> str:
    """What matters of it."""
    free, shared_free = psutil.virtual_memory().available, gpu_copies.free_bytes(options.shared_memory)
    size = gpu_copies.host_gib(options) * 2**30
    more = (
        "" if size >= gpu_copies.PROMISED_BYTES else ", too little to judge it (--shared-memory, --memory-gib, --gib)"
    )
    return (
        f"torch {torch.__version__}; Python {platform.python_version()}; {os.cpu_count()} cores, "
        f"{free / 1e9:.0f} GB of memory and {shared_free / 1e9:.1f} GB of shared memory free; "
        f"Linux {platform.release()}; {gpu_runs.missing_compiler() or 'a C compiler'}; "
        f"at most {size / 1e9:.1f} GB of state{more}"
    )


def lines(options: argparse.Namespace, devices: int) -> Iterator[Line]:
    """The selected lines."""
    until = time.monotonic() + 60 * options.minutes
    for part in PARTS:
        left = until - time.monotonic()
        if not is_asked(part.promise, options.words):
            continue
        if not devices:
            yield Line(part.promise, part.wanted, "no device", None)
        elif devices < part.devices:
            yield Line(part.promise, part.wanted, f"needs {part.devices} devices", None)
        elif part.package and find_spec(part.package) is None:
            yield Line(part.promise, part.wanted, f"needs {part.package}", None)
        elif left < LEAST_S:
            yield Line(part.promise, part.wanted, f"not begun within {options.minutes:g} minutes", None)
        else:
            yield measure(part, options, min(LIMIT_S, left))


def measure(part: Part, options: argparse.Namespace, limit_s: float) -> Line:
    """One line, measured in a process of its own, with a folder in shared memory that is removed however it ends."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="everstep-gpu-", dir=options.shared_memory) as name:
        own_options = argparse.Namespace(**vars(options), folder=Path(name))
        try:
            outcome, holds = run_apart(partial(part.measure, own_options), limit_s)
        except PartTimeoutError as error:
            outcome, holds = (f"{error}", False) if limit_s >= LIMIT_S else (f"cut by --minutes: {error}", None)
        except PartError as error:
            outcome, holds = f"{error}", False
    print(f"({time.monotonic() - began:.0f} s)", end=" ", file=sys.stderr, flush=True)
    return Line(part.promise, part.wanted, outcome, holds)


def main() -> None:
    """Measure, print the table, exit 1 if a line does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=12.0, help="state to save, if there is room (default 12: 1 B)")
    parser.add_argument("--minutes", type=float, default=11.5, help="all lines are measured by then (default 11.5)")
    parser.add_argument("--shared-memory", type=Path, default=Path("/dev/shm"), help="a tmpfs (default /dev/shm)")
    parser.add_argument(
        "--memory-gib",
        type=float,
        default=0.0,
        help="memory that may be used, where a virtual machine gets more as it uses it (default: what is free now)",
    )
    options = parse_options(parser, [part.promise for part in PARTS])
    print(describe_host(options), flush=True)
    machine = run_apart(describe_machine, LIMIT_S)
    print(machine.words, flush=True)
    judge(lines(options, machine.devices))


if __name__ == "__main__":
    main()

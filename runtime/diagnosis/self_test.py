"""`python -m everstep.runtime.diagnosis.self_test`: a machine tests itself before a restart, in about a second.

Products on all cores and an all-reduce alone; on a machine with CUDA devices each of them, and NCCL between them. The
last line of its output is JSON: seconds, and the problem, which names the device; empty if there is none. A fork server
runs it with torch already imported.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence

import msgspec

COMMAND = ("-m", "everstep.runtime.diagnosis.self_test")


class Result(msgspec.Struct, frozen=True):
    """What the test found."""

    seconds: float
    problem: str = ""
    untested: str = ""
    """Which devices had too little free memory to be tested, as where processes of the last round live on."""


def result_of(exit_code: int, output: str) -> Result:
    """The result of a test that ended so. A crash is a problem; a test that was killed or could not run is not."""
    lines: Sequence[str] = output.strip().splitlines()
    if exit_code < 0 and exit_code != -signal.SIGKILL:
        return Result(0.0, f"cpu: its test was ended by {signal.Signals(-exit_code).name}")
    try:
        return msgspec.json.decode(lines[-1], type=Result) if lines else Result(0.0)
    except msgspec.DecodeError:
        return Result(0.0)


def main() -> None:
    """Test this machine and print the result."""
    from everstep.runtime.diagnosis.evidence import Measurement
    from everstep.runtime.diagnosis.workload import work_alone
    from everstep.runtime.system.cpus import usable_cpus

    import torch  # isort: skip

    torch.set_num_threads(usable_cpus())
    began = time.monotonic()
    node = os.environ.get("EVERSTEP_NODE", "")
    measurement = work_alone(Measurement(node, node), 0, short=True)
    result = Result(time.monotonic() - began, measurement.error, measurement.untested)
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
    sys.stdout.flush()
    os._exit(0)  # torch's cleanup takes a second.


if __name__ == "__main__":
    main()

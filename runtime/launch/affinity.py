"""--numa-binding: the CPUs of each worker on this node, by torch's own rules (`torch.numa.binding`)."""

import json
import subprocess
import sys

Cpus = tuple[tuple[int, ...], ...]
"""Logical CPUs of each local rank; empty: no worker is bound."""

# A process of its own, because nothing else in a launcher needs torch. torch has no public function for it.
_ASK = """
import json, sys
from torch.numa import binding
options = binding.NumaOptions(affinity_mode=binding.AffinityMode(sys.argv[1]))
print(json.dumps([
    sorted(binding._get_validated_logical_cpus_to_bind_to(device_index=index, numa_options=options))
    for index in range(int(sys.argv[2]))
]))
"""


def cpus_of(mode: str, slots: int) -> Cpus:
    """The CPUs near the device of each of `slots` workers; a device's index is the worker's local rank.

    Raises ValueError with torch's message if torch can bind none: no accelerator, no numactl, no CPU left.
    """
    answer = subprocess.run([sys.executable, "-c", _ASK, mode, str(slots)], capture_output=True, text=True, check=False)
    if answer.returncode:
        why = (answer.stderr.strip().splitlines() or ["torch ended without an error message"])[-1].partition(": ")
        raise ValueError(f"--numa-binding {mode}: {why[2] or why[0]}; leave the flag out to bind no worker")
    return tuple(tuple(cpus) for cpus in json.loads(answer.stdout))

"""What the parts of a restart cost, in seconds: measured here, or published for large jobs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Of one system at one scale."""

    name: str
    source: str
    """Where the figures come from."""
    iteration_s: float
    """One iteration with all nodes."""
    detect_s: float
    """From a process's or a node's death until the master knows."""
    silent_s: float
    """The same for a node that falls silent."""
    stop_s: float
    """From there until a survivor has ended its workers and joins again."""
    init_s: float
    """From a round until all ranks can communicate and the model is built."""
    restore_s: float
    """Reading the state from memory: the node's own, or a peer's."""
    restore_store_s: float
    """Reading it from the store."""
    node_s: float
    """Until the agent of a new node joins, on a machine that is there: the pod's start and the imports."""
    stage_stall_s: float
    """How long a copy to memory stops the training."""
    from_memory: bool = True
    """Is there a copy in memory at all?"""


COSTS = {
    one.name: one
    for one in (
        Costs(
            "local",
            "this project's benchmarks on 2 cores: kill -> next iteration 0.72 s (benchmarks/recovery.py), a fork server's "
            "start 4 s, a save of 1 GiB 0.06 s",
            iteration_s=0.3, detect_s=0.01, silent_s=30.0, stop_s=0.1, init_s=0.25, restore_s=0.05,
            restore_store_s=0.2, node_s=4.0, stage_stall_s=0.005,
        ),
        Costs(
            "16k-gpus",
            "16,384 GPUs on 2,048 nodes: communicators in 30 s (MegaScale, NSDI '24, section 3.5: under 30 s on more than "
            "10,000 GPUs); state from a peer's memory in 10 s (GEMINI, SOSP '23, and ByteRobust, arXiv 2509.16293, report "
            "seconds); from the store in 120 s; an iteration of 5 s; silence and node start as this project's defaults",
            iteration_s=5.0, detect_s=1.0, silent_s=30.0, stop_s=2.0, init_s=30.0, restore_s=10.0,
            restore_store_s=120.0, node_s=60.0, stage_stall_s=0.02,
        ),
        Costs(
            "16k-gpus-dlrover",
            "the same machine with DLRover's rules: dead after 600 s without a heartbeat, state in the agent's memory, "
            "the processes and their imports start anew in 60 s (NVRx reports 60 to 90 s for in-process and full restarts)",
            iteration_s=5.0, detect_s=15.0, silent_s=600.0, stop_s=30.0, init_s=90.0, restore_s=10.0,
            restore_store_s=120.0, node_s=120.0, stage_stall_s=0.5,
        ),
        Costs(
            "16k-gpus-torchrun",
            "the same machine with torchrun and torch.save: a hang is seen when the collective times out (600 s), "
            "the processes start anew in 60 s, and the state comes from the store",
            iteration_s=5.0, detect_s=30.0, silent_s=600.0, stop_s=30.0, init_s=90.0, restore_s=120.0,
            restore_store_s=120.0, node_s=120.0, stage_stall_s=60.0, from_memory=False,
        ),
    )
}  # fmt: skip
"""By name."""

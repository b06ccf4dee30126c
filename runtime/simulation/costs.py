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
    costs.name: costs
    for costs in (
        Costs(
            "local",
            "this project's benchmarks on 2 cores: kill -> next iteration 0.72 s (benchmarks/recovery.py), a node's "
            "start 4 s, a save 5 ms; a node that falls silent is suspected by its neighbours after 3.5 s "
            "(benchmarks/lost_machine.py)",
            iteration_s=0.3, detect_s=0.01, silent_s=3.5, stop_s=0.1, init_s=0.25, restore_s=0.05,
            restore_store_s=0.2, node_s=4.0, stage_stall_s=0.005,
        ),
        Costs(
            "16k-gpus",
            "16,384 GPUs on 2,048 nodes. Communicators in 30 s (MegaScale, NSDI '24, section 3.5: under 30 s on more "
            "than 10,000 GPUs). State from a peer's memory in 10 s (GEMINI, SOSP '23, reports seconds). Neighbours "
            "suspect a silent node 4 s after the others stand still, as here (benchmarks/lost_machine.py). Assumed: "
            "they stand still 5 s later, 120 s from the store, an iteration of 5 s, a pod's start of 60 s, 0.02 s to "
            "copy 0.4 GB a GPU",
            iteration_s=5.0, detect_s=1.0, silent_s=9.0, stop_s=2.0, init_s=30.0, restore_s=10.0,
            restore_store_s=120.0, node_s=60.0, stage_stall_s=0.02,
        ),
        Costs(
            "16k-gpus-dlrover",
            "the same machines by DLRover's rules: a silent node is dead after 600 s, heartbeats each 15 s, state in "
            "the agent's memory. Assumed: processes and imports restart in 60 s, 0.5 s to copy the state (its blog)",
            iteration_s=5.0, detect_s=15.0, silent_s=600.0, stop_s=30.0, init_s=90.0, restore_s=10.0,
            restore_store_s=120.0, node_s=120.0, stage_stall_s=0.5,
        ),
        Costs(
            "16k-gpus-torchrun",
            "the same machines with torchrun and torch.save: a lost rank is seen when a collective times out (600 s), "
            "state comes from the store. Assumed: processes and imports restart in 60 s, 60 s to save",
            iteration_s=5.0, detect_s=30.0, silent_s=600.0, stop_s=30.0, init_s=90.0, restore_s=120.0,
            restore_store_s=120.0, node_s=120.0, stage_stall_s=60.0, from_memory=False,
        ),
    )
}  # fmt: skip
"""By name."""

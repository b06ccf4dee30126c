"""A seat and a local rank -> the environment of that worker: torchrun's variables and ours. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.agent.link import AGENT_VARIABLE
from runtime.job.messages import Seat

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"


@dataclass(frozen=True)
class NodeFacts:
    """What all workers of a node have in common."""

    job: str
    node: str
    slots: int
    """Workers."""
    link: str
    """Path of the agent's socket."""
    store: str
    run_dir: str
    """Empty where the node belongs to no run folder."""
    max_restarts: int
    cores: int
    threads: str = ""
    """OMP_NUM_THREADS as the user set it; empty: an equal share of the cores."""


def worker_environment(facts: NodeFacts, seat: Seat, local_rank: int, error_file: str) -> Mapping[str, str]:
    """What is set over the agent's own environment; names and meanings as torchrun's ("Environment Variables")."""
    told = {
        "RANK": seat.first_rank + local_rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": seat.world_size,
        "LOCAL_WORLD_SIZE": facts.slots,
        "GROUP_RANK": seat.group_rank,
        "GROUP_WORLD_SIZE": seat.group_world_size,
        "ROLE_NAME": seat.role,
        "ROLE_RANK": seat.role_first_rank + local_rank,
        "ROLE_WORLD_SIZE": seat.role_world_size,
        "MASTER_ADDR": seat.master_addr,
        "MASTER_PORT": seat.master_port,
        "TORCHELASTIC_RESTART_COUNT": seat.restart_count,
        "TORCHELASTIC_MAX_RESTARTS": facts.max_restarts,
        "TORCHELASTIC_RUN_ID": facts.job,
        "TORCHELASTIC_USE_AGENT_STORE": False,
        ERROR_FILE_VARIABLE: error_file,
        "OMP_NUM_THREADS": facts.threads or max(1, facts.cores // facts.slots),
        AGENT_VARIABLE: facts.link,
        "EVERSTEP_ROUND": seat.round,
        "EVERSTEP_JOB": facts.job,
        "EVERSTEP_NODE": facts.node,
        "EVERSTEP_STORE": facts.store,
    }
    if facts.run_dir:
        told["EVERSTEP_RUN_DIR"] = facts.run_dir
    return {name: str(value) for name, value in told.items()}

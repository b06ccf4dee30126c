"""The environment of a worker from its seat and local rank: torchrun's variables and our own. Pure functions."""

import string
from collections.abc import Mapping, Sequence

from everstep.runtime.agent.settings import Settings
from everstep.runtime.platform.devices import VARIABLE, VARIABLES, shown_by
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.worker_link import AGENT_VARIABLE, LOCAL_RANK_VARIABLE

ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
_CODE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
_ON_ERRORS = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""3, torch's own default: its watchdog ends the process without aborting the communicator. torchrun's 1 aborts it
first: for a moment the device goes on with wrong gradients, and a save that runs beside training could keep them."""
_CALM = {
    "TORCH_DIST_USE_NCCL2": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "50",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
"""After an error of NCCL or a timeout, torch's watchdog sleeps four times 50 ms, not four times 15 s, before it ends
the process; in a survivor, neither a collective nor the end of its group goes on meanwhile. And no monitor writes down
what was recorded, after which it would sleep for eight minutes, for which the end of the group would wait, and then end
the process (ProcessGroupNCCL.cpp, `runLoop` of Watchdog and of HeartbeatMonitor). Everstep does not need those files:
it asks torch's recorders themselves (`watch/flight_recorder.py`).

All this is so of ProcessGroupNCCL, which torch 2.15 takes only if it is told to (`_register_builtin_nccl_backend`).
ProcessGroupNCCL2 raises a communicator's error where the script waits, before the agent has said that the round ends,
and has no lock between the abort of a group and its release. Never run on a device."""


def worker_environment(
    settings: Settings, seat: Seat, local_rank: int, *, link: str, base: Mapping[str, str]
) -> Mapping[str, str]:
    """The variables set over the agent's own environment, named and defined as torchrun's ("Environment Variables"),
    but for `_ON_ERRORS` and `_CALM`.

    The error file is not among them: the layout of the logs decides it. `link` is the path of the agent's socket;
    `base` is the agent's own environment, which names the node's devices.
    Raises ValueError if `virtual_local_rank` finds no device for this worker.
    """
    address, port = settings.meet or (seat.master_addr, seat.master_port)
    variables = {
        "RANK": seat.first_rank + local_rank,
        "LOCAL_RANK": local_rank,
        "WORLD_SIZE": seat.world_size,
        "LOCAL_WORLD_SIZE": settings.slots,
        "GROUP_RANK": seat.group_rank,
        "GROUP_WORLD_SIZE": seat.group_world_size,
        "ROLE_NAME": settings.role_name or seat.role,
        "ROLE_RANK": seat.role_first_rank + local_rank,
        "ROLE_WORLD_SIZE": seat.role_world_size,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "TORCHELASTIC_RESTART_COUNT": seat.restart_count,
        "TORCHELASTIC_MAX_RESTARTS": settings.max_restarts,
        "TORCHELASTIC_RUN_ID": settings.run_id or settings.job,
        "TORCHELASTIC_USE_AGENT_STORE": False,
        **{name: base.get(name, value) for name, value in ({_ON_ERRORS: "3"} | _CALM).items()},
        **settings.variables,
        AGENT_VARIABLE: link,
        "EVERSTEP_ROUND": seat.round,
        "EVERSTEP_JOB": settings.job,
        "EVERSTEP_NODE": settings.node,
        "EVERSTEP_STORE": settings.store,
    }
    if settings.threads:
        variables["OMP_NUM_THREADS"] = settings.threads
    if settings.run_dir:
        variables["EVERSTEP_RUN_DIR"] = settings.run_dir
        if _CODE_VARIABLE not in base:  # What one rank has compiled is there for a later process of the job.
            variables[_CODE_VARIABLE] = f"{settings.run_dir}/compiled"
    if settings.virtual_local_rank:
        variables |= {"LOCAL_RANK": 0, LOCAL_RANK_VARIABLE: local_rank, **own_device(base, local_rank)}
    return {name: str(value) for name, value in variables.items()}


def worker_command(command: Sequence[str], local_rank: int) -> tuple[str, ...]:
    """The command with `${local_rank}` filled in, as torchrun does."""
    return tuple(string.Template(word).safe_substitute(local_rank=local_rank) for word in command)


def own_device(base: Mapping[str, str], local_rank: int) -> Mapping[str, str]:
    """The one device in `base` that a worker with a virtual local rank sees. Raises ValueError if there is none."""
    name = next((name for name in VARIABLES if base.get(name)), VARIABLE)
    devices = base.get(name)
    if devices is None:
        device_number = str(local_rank)
    else:
        names = [device.strip() for device in devices.split(",")]
        if local_rank >= len(names):
            raise ValueError(f"{name}={devices}: no device for local rank {local_rank} with --virtual-local-rank")
        device_number = names[local_rank]
    return shown_by(device_number, base)

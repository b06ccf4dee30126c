"""The start parameters of a node's workers in a round: environment, command, streams and CPUs."""

import os
from collections.abc import Sequence
from pathlib import Path

from everstep.runtime.agent.dependencies import Leave
from everstep.runtime.agent.environment import ERROR_FILE_VARIABLE, worker_command, worker_environment
from everstep.runtime.agent.frameworks import worker_variables
from everstep.runtime.agent.output import Outputs
from everstep.runtime.agent.script import TRACEBACK_VARIABLE
from everstep.runtime.agent.settings import Settings
from everstep.runtime.agent.workers import WorkerSpec
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.protocol.rounds import Seat
from everstep.runtime.protocol.survivor_link import SPARE_VARIABLE
from everstep.runtime.watch import board


def worker_specs(settings: Settings, seat: Seat, outputs: Outputs, folder: Path) -> list[WorkerSpec]:
    """One per local rank. `folder`: the agent's private folder, which has its socket.

    Raises ValueError or OSError if a worker's device, log folder or log layout is missing, Leave if the files of its
    framework cannot be written.
    """
    ranks = range(settings.slots)
    environments = [
        dict(worker_environment(settings, seat, local_rank, link=str(folder / "link"), base=os.environ))
        for local_rank in ranks
    ]
    try:
        worker_variables.write_files(seat, folder, settings.token, settings.job)
    except OSError as error:
        raise Leave(ExitCode.TRY_AGAIN, str(error)) from None
    outputs.begin(seat.restart_count, environments)
    specs = []
    for old in folder.glob("board-*"):
        old.unlink(missing_ok=True)  # `everstep top --profile` removes its files by itself.
    for local_rank, environment in zip(ranks, environments, strict=True):
        output = outputs.open(local_rank, seat.first_rank + local_rank)
        more = {
            ERROR_FILE_VARIABLE: output.error_file,
            TRACEBACK_VARIABLE: str(folder / f"traceback-{local_rank}"),
            board.VARIABLE: str(board_path(folder, local_rank)),
            **worker_variables.variables(seat, local_rank, folder),
        }
        command = worker_command(settings.command, local_rank)
        specs.append(WorkerSpec({**environment, **more}, command, output, _cpus(settings, local_rank)))
    return specs


def spare_spec(
    settings: Settings, seat: Seat, folder: Path, local_rank: int
) -> tuple[int, dict[str, str], tuple[str, ...], Sequence[int]]:
    """Local rank, environment, command and CPUs of a spare that rehearses this local rank's part.

    They are those of a worker of this round, but it is in no round, and can meet nobody.
    """
    inherited = worker_environment(settings, seat, local_rank, link=str(folder / "link"), base=os.environ)
    own = {name: value for name, value in inherited.items() if name not in ("MASTER_ADDR", "MASTER_PORT")}
    frameworks = worker_variables.variables(seat, local_rank, folder)
    environment = {**own, **frameworks, "EVERSTEP_ROUND": "0", SPARE_VARIABLE: "1"}
    return local_rank, environment, worker_command(settings.command, local_rank), _cpus(settings, local_rank)


def _cpus(settings: Settings, local_rank: int) -> Sequence[int]:
    return settings.cpus[local_rank] if settings.cpus else ()


def board_path(folder: Path, local_rank: int) -> Path:
    """The file of that worker's board."""
    return folder / f"board-{local_rank}"

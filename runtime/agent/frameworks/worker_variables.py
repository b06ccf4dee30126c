"""The variables and files of a job's framework that a worker finds in a round."""

import os
from pathlib import Path

from everstep.runtime.agent.frameworks import horovod, paddle, tensorflow, volcano
from everstep.runtime.protocol.rounds import Framework, Seat


def variables(seat: Seat, local_rank: int, folder: Path) -> dict[str, str]:
    """The variables of one worker; `folder` has the files of `write_files`."""
    match seat.framework:
        case Framework.TENSORFLOW:
            return tensorflow.variables(seat)
        case Framework.PADDLE:
            return paddle.variables(seat, local_rank)
        case Framework.HOROVOD:
            return {"EVERSTEP_DISCOVERY_SCRIPT": str(folder / "discover_hosts.sh"), "EVERSTEP_SSH": str(folder / "ssh")}
        case Framework.VOLCANO:
            return volcano.variables(seat)
        case Framework.PYTORCH:
            return {}


def write_files(seat: Seat, folder: Path, token: str, job: str) -> None:
    """Write the files that those variables name, before the round's workers start. Raises OSError."""
    if seat.framework is not Framework.HOROVOD:
        return
    from everstep.runtime.agent.frameworks import ssh  # Only these jobs need its imports.

    if not (folder / "ssh").exists():
        ssh.write_keys(folder / "ssh", token, job)
    fresh = folder / "discover_hosts.new"
    fresh.write_text(horovod.discovery_script(seat))
    fresh.chmod(0o700)
    os.replace(fresh, folder / "discover_hosts.sh")

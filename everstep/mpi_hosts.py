"""`python -m everstep.mpi_hosts COMMAND...`: runs a command that starts processes by mpirun on the round's hosts.

Open MPI, Intel MPI and MPICH each find a file with the hosts and their slots, and the job's ssh, by variables of their
own; `MPI_HOST` has the hosts with commas, each as often as it has slots. mpirun does not follow a change of
membership: without `everstep.keep_running`, each round starts the command again, with its own hosts.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import psutil

from everstep.runtime.exit_codes import ExitCode

_OF_WORKER = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""The launcher's own: an mpirun that passes its environment on would give them to every process."""

_SEARCHED = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")
"""What starts processes on other hosts, of Open MPI to 4, and from 5 on: the first of a list that is there. Open MPI
hands it on to the hosts, whose daemons refuse to start if none is, and the job's own is in the launcher's pod alone."""
_RUN = ("I_MPI_HYDRA_BOOTSTRAP_EXEC", "HYDRA_LAUNCHER_EXEC")
"""The same of Intel MPI and MPICH: a program."""
_ATTACHED = {"OMPI_MCA_orte_leave_session_attached": "1", "PRTE_MCA_prte_leave_session_attached": "1"}
"""Open MPI's daemons on the hosts end with their connection, and what they complain of is told; by themselves they
leave it at once, and may outlive an mpirun that was lost."""
_INTERFACES = ("I_MPI_HYDRA_IFACE", "HYDRA_IFACE")
"""Of Intel MPI and MPICH: hosts are told the launcher's address there; by default its name, which pods do not know."""


def main(command: list[str]) -> int:
    """Become the command; returns an exit code if that cannot be."""
    if not command:
        return _refuse("no command; write python -m everstep.mpi_hosts COMMAND")
    script = os.environ.get("EVERSTEP_DISCOVERY_SCRIPT", "")
    if not script:
        return _refuse(
            "EVERSTEP_DISCOVERY_SCRIPT is not set; run it in the launcher of a job spec with frameworkType: horovod"
        )
    if shutil.which(command[0]) is None:
        return _refuse(f"{command[0]}: no such program", 127)
    return _become(command, script)


def _become(command: list[str], script: str) -> NoReturn:
    lines = subprocess.run([script], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    hosts = {host: int(slots) for host, _, slots in (line.rpartition(":") for line in lines)}
    kept = {name: value for name, value in os.environ.items() if name not in _OF_WORKER}
    interface = _own_interface()
    of_launcher = dict.fromkeys(_INTERFACES, interface) if interface else {}
    os.execvpe(command[0], command, of_launcher | kept | variables(hosts, Path(script).parent))


def _own_interface() -> str:
    """That of the node's own address; empty if it has none of its own."""
    own = os.environ.get("EVERSTEP_IP", "")
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if own in [entry.address for entry in addresses]), "")


def variables(hosts: dict[str, int], folder: Path) -> dict[str, str]:
    """Those by which each MPI finds the hosts, with their slots; writes their files into the folder.

    The names, and what is in the files, are those of Kubeflow's MPI operator (pkg/controller/mpi_job_controller.go),
    and of the documentation of each MPI for what starts processes."""
    ssh, slots = os.environ.get("EVERSTEP_SSH", ""), str(max(hosts.values(), default=1))
    open_mpi, hydra = folder / "hosts.openmpi", folder / "hosts.hydra"
    open_mpi.write_text("".join(f"{host} slots={count}\n" for host, count in hosts.items()))
    hydra.write_text("".join(f"{host}:{count}\n" for host, count in hosts.items()))
    of_hosts = {
        "OMPI_MCA_orte_default_hostfile": str(open_mpi), "OMPI_MCA_orte_set_default_slots": slots,
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true", "OMPI_MCA_plm_rsh_no_tree_spawn": "true",
        "PRTE_MCA_prte_default_hostfile": str(open_mpi), "PRTE_MCA_plm_ssh_no_tree_spawn": "true",
        "I_MPI_HYDRA_HOST_FILE": str(hydra), "I_MPI_PERHOST": slots, "HYDRA_HOST_FILE": str(hydra),
        "MPI_HOST": ",".join(host for host, count in hosts.items() for _ in range(count)),
    }  # fmt: skip
    if ssh:
        of_hosts |= dict.fromkeys(_SEARCHED, f"{ssh}/ssh:ssh") | dict.fromkeys(_RUN, f"{ssh}/ssh")
    return of_hosts | _ATTACHED


def _refuse(reason: str, code: int = ExitCode.BAD_INPUT) -> int:
    print(f"everstep.mpi_hosts: {reason}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

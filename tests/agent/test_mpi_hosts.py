"""`python -m everstep.mpi_hosts`: what mpirun finds of a round's hosts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


def run(folder: Path, hosts: str, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The program, with a discovery script that prints the hosts; none if there are none."""
    if hosts:
        script = folder / "discover_hosts.sh"
        script.write_text(f"#!/bin/sh\nprintf '{hosts}'\n")
        script.chmod(0o700)
        variables["EVERSTEP_DISCOVERY_SCRIPT"] = str(script)
    words = [sys.executable, "-m", "everstep.mpi_hosts", *command]
    path = {"PATH": "/usr/bin:/bin"}
    return subprocess.run(words, env=path | variables, capture_output=True, text=True, check=False)


def test_each_mpi_finds_the_rounds_hosts_and_the_jobs_ssh_and_no_rank(tmp_path: Path) -> None:
    own = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "here", "OWN": "1", "EVERSTEP_SSH": "/keys"}
    ended = run(tmp_path, "10.0.0.1:2\\n10.0.0.2:1\\n", sys.executable, "-c", SHOW, **own)
    found = json.loads(ended.stdout)
    assert Path(found["OMPI_MCA_orte_default_hostfile"]).read_text() == "10.0.0.1 slots=2\n10.0.0.2 slots=1\n"
    assert found["I_MPI_HYDRA_HOST_FILE"] == found["HYDRA_HOST_FILE"]
    assert Path(found["HYDRA_HOST_FILE"]).read_text() == "10.0.0.1:2\n10.0.0.2:1\n"
    assert found["MPI_HOST"] == "10.0.0.1,10.0.0.1,10.0.0.2"
    assert (found["OMPI_MCA_orte_set_default_slots"], found["I_MPI_PERHOST"]) == ("2", "2")
    assert found["PRTE_MCA_prte_default_hostfile"] == found["OMPI_MCA_orte_default_hostfile"]
    assert found["OMPI_MCA_plm_rsh_agent"] == found["PRTE_MCA_plm_ssh_agent"] == "/keys/ssh:ssh", "what hosts have, too"
    assert found["I_MPI_HYDRA_BOOTSTRAP_EXEC"] == found["HYDRA_LAUNCHER_EXEC"] == "/keys/ssh"
    assert found["OMPI_MCA_orte_leave_session_attached"] == found["PRTE_MCA_prte_leave_session_attached"] == "1"
    assert found["OWN"] == "1"
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & found.keys()


def test_hosts_are_told_an_address_of_the_launcher_unless_an_interface_is_named(tmp_path: Path) -> None:
    names = ("I_MPI_HYDRA_IFACE", "HYDRA_IFACE")

    def interfaces(**own: str) -> list[str | None]:
        ended = run(tmp_path, "a:1\\n", sys.executable, "-c", SHOW, **own)
        return [json.loads(ended.stdout).get(name) for name in names]

    assert interfaces() == [None, None]
    assert interfaces(EVERSTEP_IP="127.0.0.1") == ["lo", "lo"]
    assert interfaces(EVERSTEP_IP="127.0.0.1", HYDRA_IFACE="ib0") == ["lo", "ib0"]


@pytest.mark.parametrize(
    ("hosts", "command", "code", "said"),
    [
        ("a:1\\n", [], 2, "no command; write python -m everstep.mpi_hosts COMMAND"),
        ("", ["true"], 2, "EVERSTEP_DISCOVERY_SCRIPT is not set; run it in the launcher of a job spec"),
        ("a:1\\n", ["no-such-mpirun"], 127, "no-such-mpirun: no such program"),
    ],
)
def test_what_is_missing_is_one_line(hosts: str, command: list[str], code: int, said: str, tmp_path: Path) -> None:
    ended = run(tmp_path, hosts, *command)
    assert ended.returncode == code
    assert ended.stderr.startswith(f"everstep.mpi_hosts: {said}")
    assert ended.stderr.count("\n") == 1

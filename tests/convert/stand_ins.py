"""Jobs of other systems that tests run: made smaller, with stand-ins for what their images have."""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

JOBS = Path(__file__).with_name("jobs")
HEAD = "apiVersion: elastic.iml.github.io/v1alpha1\nkind: ElasticJob\nmetadata: {name: x}\nspec:\n"
POD = "template: {spec: {containers: [{image: i, command: [python, t.py]}]}}"
"""The beginning of a small ElasticJob, and a pod of it."""
SMALL = {
    "ai_training_job": {"replicas: 3": "replicas: 2", "maxReplicas: 5": "maxReplicas: 2", "/usr/sbin/sshd && ": ""},
    "elastic_job": {
        "--network-check --exclude-straggler --nnodes=2:$NODE_NUM --nproc_per_node=2": "--nnodes=1:$NODE_NUM",
        "replicas: 4": "replicas: 2", "cpu: \"8\"": "cpu: \"1\"", "16Gi": "1Gi",
    },
    "mpi_job": {
        "slotsPerWorker: 2": "slotsPerWorker: 1", "replicas: 3": "replicas: 2", "minAvailable: 4": "minAvailable: 3",
        '"6"': '"2"', "command: [/usr/sbin/sshd]": "command: [sleep]", "[-De, -f, /home/mpiuser/.sshd_config]": "[inf]",
        'cpu: "4", memory: 16Gi, nvidia.com/gpu: 2': 'cpu: "1", memory: 1Gi',
    },
    "parameter_servers": {"memory: 8Gi": "memory: 1Gi", "memory: 4Gi": "memory: 1Gi"},
    "pytorch_job": {
        "minReplicas: 5, maxReplicas: 10": "minReplicas: 1, maxReplicas: 2", "nProcPerNode: 4": "nProcPerNode: 1",
        "replicas: 10": "replicas: 2", "workingDir: /workspace": "imagePullPolicy: Always",
    },
    "ray_job": {"maxReplicas: 5": "maxReplicas: 2"},
    "tf_job": {"replicas: 4": "replicas: 2", "replicas: 2\n      restartPolicy: Always": "restartPolicy: Always"},
    "train_job": {
        "numNodes: 3": "numNodes: 2", "numProcPerNode: 2": "numProcPerNode: 1", "/workspace/": "",
        "{cpu: 4, memory: 8Gi}": "{cpu: 1, memory: 1Gi}",
    },
    "volcano_job": {
        "replicas: 4": "replicas: 2", "minAvailable: 2": "minAvailable: 1",
        "{image: nginx, name: nginx}": "{image: nginx, name: nginx, command: [python, train.py]}",
    },
    "volcano_mpi": {"mkdir -p /var/run/sshd; /usr/sbin/sshd -D;": "sleep inf"},
}  # fmt: skip
"""What of each is made smaller, or is not on this machine."""
SCRIPTS = ("train.py", "imagenet.py", "mnist.py", "trainer.py", "bench.py")
SCRIPT = """
import os, socket, sys, time
print("given", sys.argv[1:], flush=True)
role, rank, size = os.environ["ROLE_NAME"], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print("ran", role, "rank", rank, "of", size, flush=True)
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if role == "launcher":
    pass
elif rank == 0:
    with socket.create_server(("", address[1])) as server:
        others = [server.accept()[0] for _ in range(size - 1)]
    for other in others:
        other.sendall(b".")
else:
    while True:
        try:
            with socket.create_connection(address) as first:
                first.recv(1)
            break
        except OSError:
            time.sleep(0.1)
if role == "ps":
    time.sleep(600)
"""
"""The ranks wait for each other, as in a training: a job ends with its chief and workers, however late its ps is."""
PYTHON = f'exec {sys.executable} "$@"'
"""Stands for the python of an image."""
_EACH = """while read host; do
    ROLE_NAME=launcher RANK=$((rank)) WORLD_SIZE=2 MASTER_ADDR=$host MASTER_PORT=0 python bench.py
    rank=$((rank + 1))
done"""
LAUNCHERS = {
    "horovodrun": "exec python bench.py",
    "mpirun": f"sed 's/\\(.*\\) slots=2$/\\1\\n\\1/' \"$OMPI_MCA_orte_default_hostfile\" | {_EACH}",
    "mpiexec": f"echo \"$3\" | tr , '\\n' | {_EACH}",
}
"""Each rank of the last two is told a host: a line of the hosts' file for each slot of its two, or one of `--host`."""
RANKS = {"ai_training_job": 1, "parameter_servers": 4, "tf_job": 4}
"""So many ranks run the script; else 2."""


def smaller(name: str, more: Mapping[str, str] = {}) -> str:
    """That job's YAML with what is in `SMALL`, and `more`."""
    job = (JOBS / f"{name}.yaml").read_text()
    for large, small in {**SMALL[name], **more}.items():
        assert large in job
        job = job.replace(large, small)
    return job


def ranks_in(logs: str) -> int:
    """How many ranks have run the script."""
    return len({line.partition("ran ")[2] for line in logs.splitlines() if "ran " in line and " rank " in line})


def run_converted(folder: Path, programs: Mapping[str, str], scripts: Iterable[str], *more: str) -> str:
    """Convert `job.yaml` of the folder and run it here; returns its logs.

    `programs`: what stands for those of its image, each a line of a shell; `scripts`: of its image; `more`: flags of
    the run."""
    (bin_folder := folder / "bin").mkdir()
    for program, line in programs.items():
        (bin_folder / program).write_text(f"#!/bin/sh\n{line}\n")
        (bin_folder / program).chmod(0o755)
    for script in scripts:
        (folder / script).write_text(SCRIPT)
    everstep = [sys.executable, "-m", "everstep.cli.main"]
    variables = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(folder)}
    with open(folder / "workflow.yaml", "w") as out:
        subprocess.run([*everstep, "convert", "job.yaml"], stdout=out, cwd=folder, check=True)
    command = [*everstep, "workflow", "run", "workflow.yaml", "--name", "converted", *more]
    ended = subprocess.run(
        [*command, "-p", f"store={folder / 'store'}"],
        cwd=folder, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return "".join(path.read_text() for path in (folder / "runs").rglob("*.log"))

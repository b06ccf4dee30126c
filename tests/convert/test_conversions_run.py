"""Each kind of job, converted, runs here, with stand-ins for what its image has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).with_name("jobs")
SMALL = {
    "ai_training_job": {"replicas: 3": "replicas: 2", "maxReplicas: 5": "maxReplicas: 2", "/usr/sbin/sshd && ": ""},
    "elastic_job": {
        "--network-check --exclude-straggler --nnodes=2:$NODE_NUM --nproc_per_node=2": "--nnodes=1:$NODE_NUM",
        "replicas: 4": "replicas: 2", "cpu: \"8\"": "cpu: \"1\"", "16Gi": "1Gi",
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
}  # fmt: skip
"""What of each is made smaller, or is not on this machine."""
SCRIPTS = ("train.py", "imagenet.py", "mnist.py", "trainer.py", "bench.py")
SCRIPT = """
import os, time
print("ran", os.environ["ROLE_NAME"], "rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
if os.environ["ROLE_NAME"] == "ps":
    time.sleep(600)
"""
RANKS = {"ai_training_job": 1, "parameter_servers": 4, "tf_job": 4}
"""So many ranks run the script; else 2."""


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_each_kind_runs_here_with_stand_ins_for_its_image(name: str, tmp_path: Path) -> None:
    job = (JOBS / f"{name}.yaml").read_text()
    for large, small in SMALL[name].items():
        assert large in job
        job = job.replace(large, small)
    (tmp_path / "job.yaml").write_text(job)
    (programs := tmp_path / "bin").mkdir()
    for program, line in {"python": f'exec {sys.executable} "$@"', "horovodrun": "exec python bench.py"}.items():
        (programs / program).write_text(f"#!/bin/sh\n{line}\n")
        (programs / program).chmod(0o755)
    for script in SCRIPTS:
        (tmp_path / script).write_text(SCRIPT)
    everstep = [sys.executable, "-m", "everstep.cli.main"]
    variables = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(tmp_path)}
    with open(tmp_path / "workflow.yaml", "w") as out:
        subprocess.run([*everstep, "convert", "job.yaml"], stdout=out, cwd=tmp_path, check=True)
    command = [*everstep, "workflow", "run", "workflow.yaml", "--name", "converted"]
    ended = subprocess.run(
        [*command, "-p", f"store={tmp_path / 'store'}"],
        cwd=tmp_path, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    logs = "".join(path.read_text() for path in (tmp_path / "runs").rglob("*.log"))
    ran = {line.partition("ran ")[2] for line in logs.splitlines() if "ran " in line and " rank " in line}
    assert len(ran) == RANKS.get(name, 2), logs[-5000:]

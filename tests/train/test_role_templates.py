"""Roles whose templates have commands of their own, as AITrainingJob's roles have, trained by the train step."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

TRAINER = {
    "replicas": 2,
    "restartPolicy": "OnNodeFailWithExitCode",
    "faultTolerantPolicy": [
        {"exceptionalEvent": "nodeNotReady,PodForceDeleted", "restartPolicy": "OnNodeFail", "restartScope": "Pod"}
    ],
}


@pytest.mark.long
def test_each_role_runs_its_command_with_its_variables_and_the_number_of_its_nodes(tmp_path: Path) -> None:
    script = tmp_path / "show.sh"
    script.write_text(f'echo "$ROLE_NAME $NODE_NUM $WORKER_NUM $COLOUR $1" > {tmp_path}/told-$RANK\n')
    own = {"command": ["sh", str(script), "own"], "env": [{"name": "COLOUR", "value": "green"}]}
    launcher = {"replicas": 1, "template": {"spec": {"containers": [own]}}}
    spec = {"replicaSpecs": {"launcher": launcher, "trainer": TRAINER}}
    shared = shlex.quote(json.dumps({"trainer": f"sh {script} shared"}))
    completed = subprocess.run(
        [
            sys.executable, "-m", "everstep.steps.train", "--script", "@command", "--script-args", shared, "--job-spec",
            json.dumps(spec), "--store", str(tmp_path / "store"), "--run", "r", "--outputs", str(tmp_path / "outputs"),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    role_lines = sorted(path.read_text() for path in tmp_path.glob("told-*"))
    assert role_lines == ["launcher 1 1 green own\n", "trainer 2 2  shared\n", "trainer 2 2  shared\n"]
    assert "launcher: of its template only command and env count on this machine" in completed.stderr

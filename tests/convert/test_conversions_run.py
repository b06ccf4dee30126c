"""Each kind of job, converted, runs here, with stand-ins for what its image has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.convert.stand_ins import RANKS, SCRIPT, SCRIPTS, SMALL, ranks_in, smaller


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_each_kind_runs_here_with_stand_ins_for_its_image(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(smaller(name))
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
    assert ranks_in(logs) == RANKS.get(name, 2), logs[-5000:]

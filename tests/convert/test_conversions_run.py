"""Each kind of job, converted, runs here, with stand-ins for what its image has."""

from pathlib import Path

import pytest
import yaml

from tests.convert.stand_ins import LAUNCHERS, PYTHON, RANKS, SCRIPT, SCRIPTS, SMALL, ranks_in, run_converted, smaller


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_each_kind_runs_here_with_stand_ins_for_its_image(name: str, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(smaller(name))
    logs = run_converted(tmp_path, {"python": PYTHON, **LAUNCHERS}, SCRIPTS)
    assert ranks_in(logs) == RANKS.get(name, 2), logs[-5000:]


WRITES = f"""\
echo prepares
program_path=$(mktemp -d -p .)
read -r -d '' SCRIPT << EOM
{SCRIPT}
EOM
printf "%s" "$SCRIPT" > "$program_path/own.py"
torchrun "$program_path/own.py" --from $program_path"""
"""As Kubeflow's SDK writes a training function into a pod's command."""


def test_several_workers_of_a_node_run_one_file_that_their_shell_has_written(tmp_path: Path) -> None:
    job = yaml.safe_load(smaller("train_job", {"numProcPerNode: 1": "numProcPerNode: 3"}))
    job["spec"]["trainer"]["command"] = ["bash", "-c", WRITES]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    logs = run_converted(tmp_path, {"python": PYTHON}, ())
    assert ranks_in(logs) == 6, logs[-5000:]
    assert sum(line.endswith("prepares") for line in logs.splitlines()) == 1, (
        "the nodes of one machine have the same files"
    )
    assert len(list(tmp_path.glob("tmp.*"))) == 1

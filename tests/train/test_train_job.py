"""The train step with real agents and workers: it ends well, also when a worker is killed, and tells a user's error."""

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

from everstep.runtime.checkpoint.shard.layout import read_shard


@dataclass
class StepOutcome:
    code: int
    told: str
    store: Path
    outputs: Path

    def checkpoint(self) -> dict:
        """The state in the checkpoint that the step names."""
        folder = Path((self.outputs / "checkpoint").read_text())
        return read_shard(bytearray((folder / "rank-00000.safetensors").read_bytes()))[0]


def step(folder: Path, *flags: str, fault: str = "") -> StepOutcome:
    marks = folder / "faults"
    marks.mkdir(parents=True)
    environment = {**os.environ, "EVERSTEP_RUN_DIR": f"{folder}/run", "EVERSTEP_FAULT": fault}
    environment["EVERSTEP_FAULT_DIR"] = str(marks)
    command = [
        sys.executable,
        "-m",
        "everstep.steps.train",
        f"--store={folder}/store",
        f"--outputs={folder}/out",
        *flags,
    ]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    if fault:
        assert any(marks.iterdir()), f"the fault did not fire: {completed.stderr}"
    assert not list((folder / "run/nodes").glob("*.json")), "a node was left"
    return StepOutcome(completed.returncode, completed.stderr, folder / "store", folder / "out")


def unique(job: str) -> str:
    """The flag for a job's name: nodes of that name are ended on the whole machine."""
    return f"--job={job}-{uuid.uuid4().hex[:8]}"


@pytest.mark.long
def test_a_killed_worker_changes_no_weight(tmp_path: Path, dataset: Path, model: Path) -> None:
    import torch

    flags = [f"--dataset={dataset}", f"--model={model}", "--iterations=8", "--sequence-length=16", "--warmup=2"]
    calm = step(tmp_path / "calm", *flags, unique("calm"))
    fault = "checkpoint.after_commit,iteration=4,node=worker-1-0=kill"
    killed = step(tmp_path / "killed", *flags, unique("killed"), fault=fault)
    assert (calm.code, killed.code) == (0, 0), calm.told + killed.told
    assert killed.told.splitlines()[-1].endswith("1 restart")
    assert (killed.outputs / "iterations").read_text() == "8"
    expected, recovered = calm.checkpoint()["model"], killed.checkpoint()["model"]
    assert expected.keys() == recovered.keys()
    assert all(torch.equal(expected[name], recovered[name]) for name in expected)


def test_an_error_of_the_script_ends_with_code_1_and_its_traceback(tmp_path: Path, dataset: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text("import everstep\n\neverstep.init()\nraise ValueError('my own mistake')\n")
    outcome = step(tmp_path / "t", f"--dataset={dataset}", f"--script={script}", "--nodes=1", unique("mine"))
    assert outcome.code == 1
    assert "ValueError: my own mistake" in outcome.told.splitlines()[-1]
    assert f'File "{script}", line 4' in outcome.told
    assert not outcome.outputs.exists()


def test_what_the_report_reads_is_in_the_store(tmp_path: Path, dataset: Path, model: Path) -> None:
    flags = [f"--dataset={dataset}", f"--model={model}", "--iterations=4", "--sequence-length=16", "--nodes=1"]
    outcome = step(tmp_path / "t", *flags, "--run=r")
    summary = json.loads((outcome.store / "runs/r/steps/train.json").read_text())
    assert summary["facts"]["iterations"] == 4
    assert summary["facts"]["rounds"] == 1
    assert summary["facts"]["restarts"] == 0
    assert summary["facts"]["parameters"] > 0
    assert summary["facts"]["loss"] > 0


def test_each_role_of_a_job_spec_gets_its_nodes_and_workers(tmp_path: Path, dataset: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        "import os\nfrom pathlib import Path\n\nimport torch\n\nimport everstep\n\njob = everstep.init()\n"
        "state = {'w': torch.zeros(3)}\n"
        "checkpointer = everstep.Checkpointer(state)\n"
        "checkpointer.load(state)\n"
        "checkpointer.save(1, state)\n"
        "told = [os.environ[name] for name in ('ROLE_NAME', 'ROLE_RANK', 'ROLE_WORLD_SIZE', 'WORLD_SIZE')]\n"
        f"(Path({str(tmp_path)!r}) / f'rank-{{job.rank}}').write_text(' '.join(told))\n"
        "checkpointer.finish(state)\n"
    )
    spec = tmp_path / "roles.yaml"
    spec.write_text("replicaSpecs:\n  chief: {replicas: 1}\n  worker: {replicas: 1, slots: 2, waitsFor: chief}\n")
    outcome = step(tmp_path / "t", f"--dataset={dataset}", f"--script={script}", f"--job-spec={spec}", unique("roles"))
    assert outcome.code == 0, outcome.told
    role_lines = sorted(path.read_text() for path in tmp_path.glob("rank-*"))
    assert role_lines == ["chief 0 1 3", "worker 0 2 3", "worker 1 2 3"]

"""Each experiment tracker's own package reads back what a job wrote, also after another worker went on."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.frameworks.environments import environment
from tests.harness import ROOT

WRITES = """
import sys
from everstep.trackers import open_tracker

kind, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
track = open_tracker(kind, sys.argv[4])
for iteration in range(first, last + 1):
    track(iteration, {"loss": 8.0 / iteration, "seconds": 0.5})
"""
READS = {
    "tensorboard": """
import json, sys
from pathlib import Path
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(str(Path(sys.argv[1], "demo")))
events.Reload()
print(json.dumps(sorted((one.step, round(one.value, 4)) for one in events.Scalars("loss"))))
""",
    "mlflow": """
import json, sys
import mlflow
client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{sys.argv[1]}/mlflow.db")
(run,) = client.search_runs([client.get_experiment_by_name("everstep").experiment_id])
assert run.info.run_name == "demo"
history = client.get_metric_history(run.info.run_id, "loss")
print(json.dumps(sorted({(one.step, round(one.value, 4)) for one in history})))
""",
    # Records of protocol buffers in LevelDB's log format (its doc/log_format.md), after a header of 7 bytes.
    "wandb": """
import json, struct, sys
from pathlib import Path
from wandb.proto import wandb_internal_pb2

def records(data):
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""

found = {}
for path in sorted(Path(sys.argv[1]).rglob("*.wandb")):
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {"/".join(one.nested_key) or one.key: json.loads(one.value_json) for one in record.history.item}
        if "loss" in items:
            found[items["iteration"]] = items["loss"]
print(json.dumps(sorted((step, round(value, 4)) for step, value in found.items())))
""",
}


@pytest.fixture(scope="session")
def python() -> Path:
    """One that has the trackers, some 600 MB."""
    return environment("trackers", "tensorboard", "mlflow", "wandb")


def run(python: Path, text: str, *arguments: str, folder: Path) -> str:
    """What that program prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EVERSTEP_JOB": "demo", "WANDB_SILENT": "true"}
    command = [str(python), "-c", text, *arguments]
    completed = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.strip().splitlines()[-1] if completed.stdout.strip() else ""


@pytest.mark.parametrize("kind", READS)
def test_the_trackers_own_package_reads_one_run_of_two_workers(python: Path, kind: str, tmp_path: Path) -> None:
    place = str(tmp_path / "written")
    run(python, WRITES, kind, "1", "4", place, folder=tmp_path)
    run(python, WRITES, kind, "4", "6", place, folder=tmp_path)
    history = json.loads(run(python, READS[kind], place, folder=tmp_path))
    assert history == [[step, round(8.0 / step, 4)] for step in range(1, 7)]

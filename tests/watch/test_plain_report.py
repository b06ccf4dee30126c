"""The report of a plain torchrun script: its iterations are seen from outside, and its advice is a launch's."""

import json
import subprocess
import sys

import pytest

from everstep.cli.main import main
from tests.launch.launchers import EVERSTEP, Launcher, until

SCRIPT = """
import time
import torch
import torch.distributed as dist
from pathlib import Path

dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.AdamW(model.parameters())
for iteration in range(30):
    model(torch.randn(4, 8)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    if iteration == 14:
        model.eval()
        time.sleep(0.5)
        model.train()
    while iteration == 20 and Path("waits").exists():
        time.sleep(0.02)
ERROR
"""


SLOW_IMPORT = """
import time
from pathlib import Path

while not list(Path(__file__).parent.glob("store/jobs/*/journal/*")):
    time.sleep(0.02)
time.sleep(3)
"""
"""A module that takes three seconds of the job, whose ledger begins with its journal."""


def name_of(launcher: Launcher) -> str:
    """Of its job: `top` finds all jobs of this machine."""
    return f"plain-{launcher.tmp.name}"


def report(launcher: Launcher, capsys: pytest.CaptureFixture[str]) -> dict:
    assert main(["report", f"{launcher.folder}/store/jobs/{name_of(launcher)}", "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("error", ["", "raise ValueError('planted')"])
def test_a_plain_scripts_report_has_its_iterations(
    launcher: Launcher, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (launcher.folder / "train.py").write_text(SCRIPT.replace("ERROR", error))
    flags = (
        "--standalone",
        "--store=store",
        f"--rdzv-id={name_of(launcher)}",
        "--nproc-per-node=2",
        "--max-restarts=0",
    )
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, *flags, "train.py"))
    assert outcome.code == bool(error), outcome.err
    summary = report(launcher, capsys)
    (job,) = summary["jobs"]
    assert job["iteration"] == 30
    ledger = {entry["activity"]: entry["seconds"] for entry in job["ledger"]}
    assert ledger["productive iteration"] >= 0.5, ledger
    assert ledger["evaluation"] >= 0.4, ledger
    again = "start the same `everstep launch` again, with its --store and --rdzv-id: it starts at the first iteration"
    failed = f"Read the reason, fix what it names, then {again}."
    assert (summary["phase"], summary["next"]) == (("Failed", failed) if error else ("Succeeded", "The job is done."))
    assert main(["report", f"{launcher.folder}/store/jobs/{name_of(launcher)}", "-o", "html"]) == 0
    page = capsys.readouterr().out
    assert "<h2>Steps</h2>" not in page
    assert "What the steps report" not in page
    assert ("alarm" in page.partition("<header")[2].partition(">")[0]) == bool(error)


def test_imports_before_the_node_joins_are_start_up_and_no_wait_for_nodes(
    launcher: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    (launcher.folder / "slow_import.py").write_text(SLOW_IMPORT)
    (launcher.folder / "train.py").write_text("import slow_import\n" + SCRIPT.replace("ERROR", ""))
    flags = ("--standalone", "--store=store", f"--rdzv-id={name_of(launcher)}")
    outcome = launcher.wait_for_end(launcher.start(EVERSTEP, *flags, "train.py"))
    assert outcome.code == 0, outcome.err
    (job,) = report(launcher, capsys)["jobs"]
    ledger = {entry["activity"]: entry["seconds"] for entry in job["ledger"]}
    assert ledger["start-up and imports"] >= 3.0, ledger
    assert sum(ledger.values()) == pytest.approx(job["seconds"])
    segments = sorted(launcher.folder.glob("store/jobs/*/journal/*"))
    records = [json.loads(line) for segment in segments for line in segment.read_text().splitlines()]
    assert next(record for record in records if record["kind"] == "NodeJoined")["prepared"] >= 3.0


def test_while_it_runs_it_is_running_and_top_shows_its_iteration_and_its_newest_event(
    launcher: Launcher, capsys: pytest.CaptureFixture[str]
) -> None:
    (launcher.folder / "train.py").write_text(SCRIPT.replace("ERROR", ""))
    (launcher.folder / "waits").touch()
    job = name_of(launcher)
    process = launcher.start(EVERSTEP, "--standalone", "--store=store", f"--rdzv-id={job}", "train.py")
    until(lambda: (launcher.folder / f"store/jobs/{job}/telemetry").exists(), lambda: launcher.text("node", "err"))
    until(lambda: report(launcher, capsys)["jobs"][0]["iteration"] == 21, lambda: launcher.text("node", "err"))
    summary = report(launcher, capsys)
    assert summary["phase"] == "Running"
    assert summary["next"].startswith("The job has not ended; the newest that is known of it is of 2")
    command = [sys.executable, "-m", "everstep.cli.main", "top", job, "--times", "1", "--every", "2"]
    shown = subprocess.run(
        command, cwd=launcher.folder, capture_output=True, text=True, check=True, env=launcher.environment({})
    )
    head, _, row, last = shown.stdout.splitlines()
    assert head == f"{job}: iteration 21, 0.00 iterations/s, tokens/s not reported, 1 of 1 ranks here, 1 node here"
    assert row.split()[4:6] == ["21", "0.00"]
    assert " Running: round 1: 1 of 1 worker nodes" in last
    (launcher.folder / "waits").unlink()
    assert launcher.wait_for_end(process).code == 0

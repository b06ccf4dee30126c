"""`everstep scale RUN[/STEP] --nodes N`: change how many nodes of a running job train together."""

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

from everstep.errors import BadInput


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("job", metavar="RUN[/STEP]", help="a run, and its train step if it has several")
    parser.add_argument("--nodes", type=int, required=True, help="between the job's minimum and maximum")
    parser.add_argument("--role", default="worker", help="kind of node (default: worker)")
    parser.add_argument("--runs", default="runs", help="directory of the run folders (default: runs)")
    parser.epilog = "example: everstep scale llama-finetune-x7k2 --nodes 1"


def run(arguments: argparse.Namespace) -> int:
    """Ask the job's master; returns the exit code."""
    try:
        address, token = find_job(Path(arguments.runs), arguments.job)
        _post(address, token, {"nodes": arguments.nodes, "role": arguments.role})
    except BadInput as error:
        print(f"everstep scale: {error}", file=sys.stderr)
        return 2
    print(f"{arguments.job}: {arguments.nodes} nodes wanted", file=sys.stderr)
    return 0


def find_job(runs: Path, name: str) -> tuple[str, str]:
    """(host:port of the master, token) of a running job. Raises BadInput when there is no such job."""
    from runtime.master.journal import find_master
    from runtime.store import open_store

    store, job = locate(runs, name)
    found = find_master(open_store(store), job)
    if found is None:
        raise BadInput(f"{name}: its training has not begun")
    token = runs / name.partition("/")[0] / "jobs" / f"{job}.token"
    return found[1], token.read_text().strip()


def locate(runs: Path, name: str) -> tuple[str, str]:
    """(URI of the store, name of the job) of RUN[/STEP]. Raises BadInput when there is no such job."""
    run_name, _, step = name.partition("/")
    folder = runs / run_name
    try:
        workflow = json.loads((folder / "workflow.json").read_text())
    except FileNotFoundError:
        raise BadInput(f"{folder}: no such run; `ls {runs}` shows them") from None
    jobs = sorted(path.stem for path in (folder / "jobs").glob(f"*-{step}.token" if step else "*.token"))
    if len(jobs) != 1:
        uid = workflow["metadata"].get("uid", "")
        steps = ", ".join(job.removeprefix(f"{uid}-") for job in jobs) or "none"
        raise BadInput(f"{name}: {len(jobs)} jobs there ({steps}); say RUN/STEP")
    parameters = workflow["spec"]["arguments"]["parameters"]
    return next(entry["value"] for entry in parameters if entry["name"] == "store"), jobs[0]


def _post(address: str, token: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"http://{address}/v1/scale",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30):
            return
    except urllib.error.HTTPError as error:
        raise BadInput(f"refused: {error.read().decode(errors='replace').strip()}") from None
    except OSError as error:
        raise BadInput(f"its master does not answer at {address} ({error}); is the training over?") from None

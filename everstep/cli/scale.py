"""`everstep scale RUN[/STEP] --nodes N`: change how many nodes of a running job train together.

On this machine it asks the job's master; on a cluster it edits the ConfigMap that the master reads.
"""

import argparse
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

from everstep.cli.find_job import find, find_on_cluster, newest_master
from everstep.errors import BadInput


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("job", metavar="RUN[/STEP]", help="a run, and its train step if it has several")
    parser.add_argument(
        "--nodes", type=int, required=True, help="number of nodes, between the job's minimum and maximum"
    )
    parser.add_argument("--role", default="worker", help="role of the nodes (default: worker)")
    parser.add_argument(
        "-n", "--namespace", default="", help="namespace of the run, if it is on a cluster (kube context)"
    )
    parser.add_argument("--runs", default="runs", help="directory of the run folders (default: runs)")
    parser.epilog = "examples: everstep scale llama-finetune-x7k2 --nodes 1; everstep scale RUN --nodes 4 -n ml"


def run(arguments: argparse.Namespace) -> int:
    """Resize the job; returns the exit code."""
    name: str = arguments.job
    try:
        if arguments.namespace:
            _edit(name, arguments.namespace, arguments.role, arguments.nodes)
            request = f"{arguments.nodes} {arguments.role} nodes"
            print(f"{name}: {request} requested; the step's log shows what follows", file=sys.stderr)
            return 0
        job = find(Path(arguments.runs), name)
        if ended := job.state.ended:
            raise BadInput(f"{name}: its training is over ({ended.result.value}: {ended.reason})")
        _post(name, newest_master(job, name), job.token, {"nodes": arguments.nodes, "role": arguments.role})
    except BadInput as error:
        print(f"everstep scale: {error}", file=sys.stderr)
        return 2
    print(f"{name}: {arguments.nodes} {arguments.role} nodes wanted", file=sys.stderr)
    return 0


def _edit(name: str, namespace: str, role: str, nodes: int) -> None:
    """Write the size into the ConfigMap that the job's master reads. Raises BadInput."""
    from everstep.runtime.platform.kubernetes.sizes import KEY, format_sizes, parse_sizes
    from everstep.runtime.submission.route import ApiError

    try:
        job = find_on_cluster(namespace, name)
        sizes = parse_sizes(job.sizes)
        if role not in sizes:
            raise BadInput(f"{name}: role: the job has no {role!r}, only {', '.join(sizes)}")
        job.route.edit_config_map(job.sizes["metadata"]["name"], {KEY: format_sizes({**sizes, role: nodes})})
    except (ApiError, ValueError) as error:
        raise BadInput(f"{name}: {error}") from None


def _post(name: str, master: str, token: str, body: dict[str, object]) -> None:
    request = urllib.request.Request(
        f"http://{master}/v1/scale",
        data=json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30):
            return
    except urllib.error.HTTPError as error:
        raise BadInput(f"{name}: refused: {_reason(error.read())}") from None
    except OSError as error:
        why = getattr(error, "reason", error)
        mend = f"`everstep workflow resume {name.partition('/')[0]}` resumes the run; then scale it"
        raise BadInput(
            f"{name}: no master answers at {master} ({why}); its nodes may continue without it; {mend}"
        ) from None


def _reason(answer: bytes) -> str:
    """The error in a master's answer; if there is none, its first words."""
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return " ".join(answer.decode(errors="replace").split())[:200]

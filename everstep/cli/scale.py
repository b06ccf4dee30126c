"""`everstep scale RUN[/STEP] --nodes N`: change how many nodes of a running job train together.

Here its master is asked; on a cluster the ConfigMap is edited that it reads.
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
    parser.add_argument("--nodes", type=int, required=True, help="between the job's minimum and maximum")
    parser.add_argument("--role", default="worker", help="kind of node (default: worker)")
    parser.add_argument("-n", "--namespace", default="", help="where the run is, if it is on a cluster (kube context)")
    parser.add_argument("--runs", default="runs", help="directory of the run folders (default: runs)")
    parser.epilog = "examples: everstep scale llama-finetune-x7k2 --nodes 1; everstep scale RUN --nodes 4 -n ml"


def run(arguments: argparse.Namespace) -> int:
    """Ask the job's master; returns the exit code."""
    name: str = arguments.job
    try:
        if arguments.namespace:
            _edit(name, arguments.namespace, arguments.role, arguments.nodes)
            asked = f"{arguments.nodes} {arguments.role} nodes"
            print(f"{name}: {asked} asked for; the step's log says what follows", file=sys.stderr)
            return 0
        found = find(Path(arguments.runs), name)
        if ended := found.state.ended:
            raise BadInput(f"{name}: its training is over ({ended.result.value}: {ended.reason})")
        _post(name, newest_master(found, name), found.token, {"nodes": arguments.nodes, "role": arguments.role})
    except BadInput as error:
        print(f"everstep scale: {error}", file=sys.stderr)
        return 2
    print(f"{name}: {arguments.nodes} {arguments.role} nodes wanted", file=sys.stderr)
    return 0


def _edit(name: str, namespace: str, role: str, nodes: int) -> None:
    """Write it into the ConfigMap that the job's master reads. Raises BadInput."""
    from everstep.runtime.platform.kubernetes.sizes import KEY, format_sizes, parse_sizes
    from everstep.runtime.submission.route import ApiError

    try:
        there = find_on_cluster(namespace, name)
        sizes = parse_sizes(there.sizes)
        if role not in sizes:
            raise BadInput(f"{name}: role: the job has no {role!r}, only {', '.join(sizes)}")
        there.route.edit_config_map(there.sizes["metadata"]["name"], {KEY: format_sizes({**sizes, role: nodes})})
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
        mend = f"`everstep workflow resume {name.partition('/')[0]}` takes the run up; scale it then"
        raise BadInput(
            f"{name}: no master answers at {master} ({why}); its nodes may train on without; {mend}"
        ) from None


def _reason(answer: bytes) -> str:
    """The error of a master's answer; else its first words."""
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return " ".join(answer.decode(errors="replace").split())[:200]

"""Volcano on the cluster: its own scheduler, and of its controllers those of queues and groups, from its module.

They run on host 0 as the administrator. `preempt` is among the actions: without it nobody gives way to anybody.
"""

from pathlib import Path

from tests.cluster.kubectl import Kubectl
from tests.cluster.layout import ADMIN, HOME
from tests.cluster.processes import start, stop, wait
from tests.golang import build_programs

MODULE = "volcano.sh/volcano"
CONFIGURATION = """actions: "enqueue, allocate, preempt, backfill"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: conformance}]
- plugins: [{name: drf, enablePreemptable: false}, {name: predicates}, {name: proportion}, {name: nodeorder}]
"""
PROGRAMS = ("scheduler", "controller-manager")
QUEUE = "default"


def programs() -> Path:
    """The folder with its programs and kinds; built the first time. Raises NoGoError."""
    program_paths = [f"{MODULE}/cmd/{program}" for program in PROGRAMS]
    return build_programs("volcano", program_paths, files={MODULE: "config/crd/volcano/bases"})


def install(kubectl: Kubectl) -> None:
    """Its queue is open. Raises NoGoError, ClusterError."""
    built_programs = programs()
    kubectl.apply(*(path.read_text() for path in sorted(built_programs.glob("*.yaml"))))
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "volcano-system"}})
    settings = HOME / "volcano.yaml"
    settings.write_text(CONFIGURATION)
    quietly = ["--kubeconfig", ADMIN, "--leader-elect=false", "--scheduler-name", "volcano"]
    scheduler = ["--scheduler-conf", settings, "--schedule-period", "1s", "--cache-dumper=false"]
    start("volcano-scheduler", 0, [built_programs / "scheduler", *quietly, *scheduler])
    controllers = ["--controllers=queue-controller,pg-controller"]
    start("volcano-controllers", 0, [built_programs / "controller-manager", *quietly, *controllers])
    wait(lambda: _open(kubectl), f"Volcano's queue {QUEUE}")


def _open(kubectl: Kubectl) -> bool:
    queue = kubectl.get("queues.scheduling.volcano.sh", QUEUE)
    return bool(queue and queue.get("status", {}).get("state") == "Open")


def remove() -> None:
    """They run no more; what they were told of stays."""
    for name in ("volcano-scheduler", "volcano-controllers"):
        stop(name)

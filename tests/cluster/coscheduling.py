"""Kubernetes' scheduler with the coscheduling plugin of scheduler-plugins, on host 0 beside the cluster's own."""

import json
from pathlib import Path

from tests.cluster.kubectl import Kubectl
from tests.cluster.layout import ADMIN, HOME
from tests.cluster.processes import start, stop
from tests.golang import build_programs

NAME = "scheduler-plugins-scheduler"
PLUGIN = "Coscheduling"
PROFILE = {
    "schedulerName": NAME,
    "plugins": {
        "multiPoint": {"enabled": [{"name": PLUGIN}]},
        "queueSort": {"enabled": [{"name": PLUGIN}], "disabled": [{"name": "*"}]},
    },
    "pluginConfig": [{"name": PLUGIN, "args": {"permitWaitingTimeSeconds": 10}}],
}


REFUSED_S = 20
"""What was refused is tried again after so long at the latest. The plugin asks to hear of new pods and groups only: a
gang whose last refusal was its own is not tried when a machine gets room, but after Kubernetes' usual 5 minutes."""


def programs() -> Path:
    """The folder with the scheduler and the PodGroups' definition; built the first time. Raises NoGoError."""
    return build_programs("coscheduling", ["."], files={"sigs.k8s.io/scheduler-plugins": "manifests/coscheduling"})


def install(kubectl: Kubectl) -> None:
    """It schedules whoever names it. Raises NoGoError, ClusterError."""
    built_programs = programs()
    kubectl.apply((built_programs / "crd.yaml").read_text())
    settings = HOME / "coscheduling.json"
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration", "profiles": [PROFILE],
        "leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": str(ADMIN)},
    }  # fmt: skip
    settings.write_text(json.dumps(configuration))
    flags = ["--config", settings, "--secure-port=10269", f"--pod-max-in-unschedulable-pods-duration={REFUSED_S}s"]
    start("coscheduling", 0, [built_programs / "coscheduling", *flags])


def remove() -> None:
    """It runs no more; what it was told of stays."""
    stop("coscheduling")

"""Argo Workflows on the cluster: its own controller and executor, built from its module.

The controller runs on host 0 as the administrator. What an administrator may give every workflow (`workflowDefaults`)
gives each pod this machine's Python environment, and asks for less CPU than the templates do: two nodes share it.
"""

import json
import urllib.request
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from everstep.runtime.platform.kubernetes.pods import JOB
from tests.cluster import images, node
from tests.cluster.kubectl import Kubectl
from tests.cluster.layout import ADMIN, NODES, PLANE
from tests.cluster.layout import NAMESPACE as JOBS
from tests.cluster.lifecycle import ARGO
from tests.cluster.namespace import STORE_SECRET
from tests.cluster.plane import BUCKET
from tests.cluster.processes import output_of, start, wait
from tests.cluster.trainings import Training
from tests.golang import build_programs

ADDED = "_argo"
"""The folder in the programs' module with what Argo's lacks: the executor parts for Linux and for this Kubernetes, the
server its built user interface."""
NAMESPACE = "argo"
"""The controller's own."""
ENDED = ("Succeeded", "Failed", "Error")
PORT = 2746
SERVER = {"ARGO_SERVER": f"http://{PLANE}:{PORT}"}
"""The variables by which Argo's server is found."""


def programs() -> Path:
    """The folder with `workflow-controller`, `argoexec` and Argo's kinds; built the first time. Raises NoGoError."""
    program_paths = [f"{ARGO}/cmd/workflow-controller", f"{ARGO}/cmd/argoexec"]
    return build_programs("kube", program_paths, files={ARGO: "manifests/base/crds/full"}, added={ARGO: ADDED})


def install(kubectl: Kubectl) -> None:
    """The controller, its kinds with every field, and its executor on every node. Raises NoGoError, ClusterError."""
    built_programs = programs()
    kubectl.apply(*(path.read_text() for path in sorted(built_programs.glob("argoproj.io_*.yaml"))))
    for number in range(1, NODES + 1):
        node.import_images(number, [images.executor(built_programs / "argoexec")])
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    kubectl.apply(_settings(), namespace=NAMESPACE)
    controller = [
        built_programs / "workflow-controller", "--kubeconfig", ADMIN, "--namespace", NAMESPACE, "--executor-image",
        images.EXECUTOR,
    ]  # fmt: skip
    start("argo", 0, controller, {"LEADER_ELECTION_DISABLE": "true", "DEFAULT_REQUEUE_TIME": "1s"})


def command() -> Path:
    """The program `argo`, which is also the server; built the first time. Raises NoGoError."""
    return build_programs("argo", [f"{ARGO}/cmd/argo"], added={ARGO: ADDED}) / "argo"


def run_argo(*words: str) -> str:
    """What `argo` prints that asks the API server, as the administrator. Raises NoGoError, ClusterError."""
    return output_of(command(), "--kubeconfig", ADMIN, "--namespace", JOBS, *words)


def start_server() -> None:
    """Argo's server, for anybody who asks it. Raises NoGoError, ClusterError."""
    server = [
        command(), "server", "--kubeconfig", ADMIN, "--namespace", NAMESPACE, "--auth-mode", "server", "--secure=false",
        "--port", str(PORT),
    ]  # fmt: skip
    start("argo-server", 0, server)
    wait(_server_answers, "Argo's server")


def _server_answers() -> bool:
    try:
        with urllib.request.urlopen(f"{SERVER['ARGO_SERVER']}/api/v1/info", timeout=2):
            return True
    except OSError:
        return False


def _settings() -> dict[str, Any]:
    keys = {"accessKeySecret": "AWS_ACCESS_KEY_ID", "secretKeySecret": "AWS_SECRET_ACCESS_KEY"}
    repository = {
        "bucket": BUCKET, "endpoint": f"{PLANE}:9000", "insecure": True,
        **{key: {"name": STORE_SECRET, "key": value} for key, value in keys.items()},
    }  # fmt: skip
    data = {
        "artifactRepository": {"s3": repository},
        "executor": {"resources": {"requests": {"cpu": "10m", "memory": "64Mi"}}},
        "workflowDefaults": {"spec": {"podSpecPatch": json.dumps(images.patch())}},
    }
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "workflow-controller-configmap"},
        "data": {key: json.dumps(value) for key, value in data.items()},
    }  # fmt: skip


def workflow(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """As it is; its status is {} until the controller has seen it."""
    return {"status": {}, **(kubectl.get("workflow", name) or {})}


def phases(workflow: dict[str, Any]) -> dict[str, str]:
    """Of a workflow's nodes, by their display names."""
    return {node["displayName"]: node["phase"] for node in workflow["status"].get("nodes", {}).values()}


@dataclass
class ByArgo(Training):
    """A train step that Argo starts and tries again."""

    def start(self, host: str = "") -> None:
        """Argo does."""

    def began(self) -> float:
        """When Argo has begun with it (Unix time)."""
        return datetime.fromisoformat(workflow(self.cluster.kubectl, self.name)["status"]["startedAt"]).timestamp()

    def records_of(self, kind: str) -> list[dict[str, Any]]:
        """Those of the job's journal of one kind."""
        return [record for record in self.records() if record["kind"] == kind]

    @property
    def pod(self) -> str:
        """The newest try's."""
        return self.steps()[-1]["metadata"]["name"]

    def steps(self) -> list[dict[str, Any]]:
        """The pods of the step's tries, the newest last."""
        label = f"workflows.argoproj.io/workflow={self.name},!{JOB}"
        return sorted(self.cluster.kubectl.list("pods", label), key=lambda pod: pod["metadata"]["creationTimestamp"])

    def phase(self) -> str:
        """The Workflow's."""
        workflow = self.cluster.kubectl.get("workflow", self.name)
        return workflow.get("status", {}).get("phase", "") if workflow else "gone"

    def over(self) -> bool:
        """It has ended, well or not."""
        return self.phase() in (*ENDED, "gone")

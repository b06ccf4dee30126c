"""A namespace made ready for pipelines, as the README tells an administrator: Argo's kinds, service account, store."""

import base64
from pathlib import Path
from typing import Any

from tests.cluster.kubectl import Kubectl
from tests.cluster.layout import NAMESPACE
from tests.cluster.plane import store_variables
from tests.harness import ROOT

STORE_SECRET = "everstep-store"
SERVICE_ACCOUNT = "everstep"
OF_TRAINING, OF_SPARK, OF_CHAOS = f"{SERVICE_ACCOUNT}-train", f"{SERVICE_ACCOUNT}-spark", f"{SERVICE_ACCOUNT}-chaos"
"""The accounts with more rights: the train step's, that of Spark's driver, and the chaos step's."""
FILES = ROOT / "templates/chart/files"


def made_ready(kubectl: Kubectl, kinds: Path) -> None:
    """`kinds`: the folder with Argo's custom resource definitions."""
    kubectl.apply(*(path.read_text() for path in sorted(kinds.glob("argoproj.io_*.yaml"))))
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    files = ("rbac.yaml", "chaos/rbac.yaml", "network.yaml")
    kubectl.apply(*((FILES / file).read_text() for file in files), _secret())


def _secret() -> dict[str, Any]:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in store_variables().items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": STORE_SECRET}, "data": encoded}

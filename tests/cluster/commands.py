"""Commands of a user of the cluster, whose kube context is the administrator's."""

import os
import subprocess
import sys
from collections.abc import Mapping

from tests.cluster import images
from tests.cluster.layout import ADMIN, NAMESPACE
from tests.cluster.lifecycle import Cluster
from tests.cluster.namespace import SERVICE_ACCOUNT, STORE_SECRET
from tests.cluster.plane import BUCKET
from tests.harness import ROOT

LIMIT_S = 1800.0
"""For a whole pipeline on a busy machine."""


def run_python(
    cluster: Cluster, *words: str, variables: Mapping[str, str] = {}, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """This machine's Python with these words, in the repository; `text`: its stdin."""
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment_of(cluster, variables), input=text, capture_output=True,
        text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip


def environment_of(cluster: Cluster, variables: Mapping[str, str] = {}) -> dict[str, str]:
    """The variables of such a user."""
    environment = {**os.environ, **cluster.store, "KUBECONFIG": str(ADMIN), "COLUMNS": "120", **variables}
    if "ARGO_SERVER" not in variables:
        environment.pop("ARGO_SERVER", None)
    return environment


def argo_flags(name: str) -> list[str]:
    """Of a pipeline that becomes the Workflow of that name, with a store of its own."""
    return [
        "--target", "argo", "--namespace", NAMESPACE, "--name", name, "--image", images.HOST,
        "--service-account", SERVICE_ACCOUNT, "--store-secret", STORE_SECRET, "--store", f"s3://{BUCKET}/{name}",
    ]  # fmt: skip


def everstep(cluster: Cluster, *words: str, variables: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    """The command `everstep`."""
    return run_python(cluster, "-m", "everstep", *words, variables=variables)

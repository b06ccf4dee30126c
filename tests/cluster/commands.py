"""Commands of a user of the cluster, whose kube context is the administrator's."""

import os
import subprocess
import sys
from collections.abc import Mapping

from tests.cluster.layout import ADMIN
from tests.cluster.lifecycle import Cluster
from tests.harness import ROOT

LIMIT_S = 1800.0
"""For a whole pipeline on a busy machine."""


def run_python(
    cluster: Cluster, *words: str, variables: Mapping[str, str] = {}, text: str | None = None
) -> subprocess.CompletedProcess[str]:
    """This machine's Python with these words, in the repository; `text`: its stdin."""
    environment = {**os.environ, **cluster.store, "KUBECONFIG": str(ADMIN), "COLUMNS": "120", **variables}
    if "ARGO_SERVER" not in variables:
        environment.pop("ARGO_SERVER", None)
    return subprocess.run(
        [sys.executable, *words], cwd=ROOT, env=environment, input=text, capture_output=True, text=True, check=False,
        timeout=LIMIT_S,
    )  # fmt: skip


def everstep(cluster: Cluster, *words: str, variables: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    """The command `everstep`."""
    return run_python(cluster, "-m", "everstep", *words, variables=variables)

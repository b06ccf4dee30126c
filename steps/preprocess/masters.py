"""Where Spark runs, by `--spark-master`, and what it is told there. Pure.

local[N]: in this process's JVM. spark://: a standalone cluster. k8s://: executors are pods like the step's own, in
which the driver runs, and end with it. On a cluster executors come as tasks need them and go when idle.
"""

import enum
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.steps.entry import StepError

ATTEMPTS = 3
POD_VARIABLE = "EVERSTEP_POD"
"""Name of the step's own pod."""
EXECUTOR = ("python", "-m", "everstep.steps.preprocess.executor")
LABELS = {"everstep/step": "preprocess"}
"""Of executors' pods, so that the step's own may reach them (templates/chart/files/network.yaml)."""
ENCRYPTED = {"spark.network.crypto.enabled": "true", "spark.network.crypto.cipher": "AES/GCM/NoPadding"}
"""What driver and executors say to each other, blocks of data too, by a key that they agree upon with the secret.
Spark's documentation, "Security", names GCM as the mode that also finds what was changed on the way."""
_SECRET = re.compile(r"^\s*spark\.authenticate(\s*[=:]\s*|\s+)true\s*$", re.MULTILINE | re.IGNORECASE)
_PREFIX = 40
"""Characters that Spark leaves for the beginning of a pod's name, and a few less."""
_OVERHEAD_MB, _WORKER_MB = 400, 600
"""Memory of an executor besides Java's: at all, and for each of its Python workers."""


class Kind(enum.Enum):
    """How it begins."""

    LOCAL = r"local(\[([1-9]\d*|\*)\])?"
    STANDALONE = r"spark://[^/,\s:]+:\d+(,[^/,\s:]+:\d+)*"
    KUBERNETES = r"k8s://(https?://)?[^/\s]*"


def kind_of(master: str) -> Kind:
    """Raises StepError for what is none of them."""
    for kind in Kind:
        if re.fullmatch(kind.value, master):
            return kind
    raise StepError(
        f"--spark-master {master}: give local[N], local[*], spark://HOST:PORT or k8s://API (k8s://: this pod's own)"
    )


def local_cores(master: str) -> int:
    """Python processes that a local master runs at a time."""
    inside = master.removeprefix("local").strip("[]")
    return int(inside) if inside.isdigit() else len(os.sched_getaffinity(0)) if inside else 1


@dataclass(frozen=True)
class Pod:
    """What executors' pods are made from."""

    api: str
    """Its address: https://..."""
    namespace: str
    token_file: str
    ca_file: str
    name: str
    """The step's own pod."""
    address: str
    """Its IP."""
    template: Mapping[str, Any]
    """A pod spec like its own, see everstep.runtime.platform.kubernetes."""


def has_secret(defaults: str) -> bool:
    """Does a cluster's spark-defaults.conf ask for one?"""
    return _SECRET.search(defaults) is not None


def common_settings(scratch: Path) -> dict[str, str]:
    """Settings for every master."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(scratch),
        "spark.python.worker.reuse": "true",
    }


def local_settings(master: str) -> dict[str, str]:
    """A local master that tries each task up to ATTEMPTS times: a Python worker may be killed for memory."""
    threads = master.removeprefix("local").strip("[]") or "1"
    return {
        "spark.master": f"local[{threads},{ATTEMPTS}]",
        # Without a secret given, Spark makes a random one for local masters; on a command line all could read it.
        "spark.authenticate": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def cluster_settings(executors: int, executor_cores: int, address: str) -> dict[str, str]:
    """Executors as tasks need them, at most so many; `address` is where they find this process."""
    return {
        "spark.driver.host": address,
        "spark.driver.bindAddress": address,
        "spark.executor.cores": str(executor_cores),
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": str(executors),
        "spark.dynamicAllocation.executorIdleTimeout": "30s",
        "spark.task.maxFailures": str(ATTEMPTS),
        "spark.speculation": "true",
        "spark.speculation.multiplier": "3",
        "spark.speculation.quantile": "0.9",
    }


def kubernetes_settings(master: str, pod: Pod, executor_cores: int, template_file: Path) -> dict[str, str]:
    """Besides `cluster`: pods in the driver's namespace, owned by its pod, so that they end with it."""
    given, container = master.removeprefix("k8s://"), pod.template["containers"][0]
    memory = _OVERHEAD_MB + _WORKER_MB * executor_cores
    return {
        "spark.master": f"k8s://{given or pod.api}",
        "spark.submit.deployMode": "client",
        # Spark makes a secret for the application and hands it to the executors.
        "spark.authenticate": "true",
        **ENCRYPTED,
        "spark.kubernetes.namespace": pod.namespace,
        "spark.kubernetes.authenticate.caCertFile": pod.ca_file,
        "spark.kubernetes.authenticate.oauthTokenFile": pod.token_file,
        "spark.kubernetes.container.image": container["image"],
        # Spark sets one in any case, over the template's.
        "spark.kubernetes.container.image.pullPolicy": container.get("imagePullPolicy", "IfNotPresent"),
        "spark.kubernetes.driver.pod.name": pod.name,
        "spark.kubernetes.executor.podTemplateFile": str(template_file),
        "spark.kubernetes.executor.podNamePrefix": f"{pod.name.replace('.', '-')[-_PREFIX:].strip('-')}",
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.executor.request.cores": str(executor_cores),
        "spark.executor.memoryOverhead": f"{memory}m",
    }


def pod_template(pod: Pod) -> str:
    """The file of spark.kubernetes.executor.podTemplateFile: the step's pod with another command.

    What Spark sets itself is left out: resources, and the variables of its own.
    """
    spec = json.loads(json.dumps(pod.template))
    main = spec["containers"][0]
    main.pop("resources", None)
    main |= {"name": "executor", "command": list(EXECUTOR)}
    spec |= {"restartPolicy": "Never", "automountServiceAccountToken": False}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": LABELS}, "spec": spec})

"""Spark's settings for each kind of `--spark-master`. Pure.

local[N]: in this process's JVM. spark://: a standalone cluster. k8s://: executors are pods like the step's own, which
is the driver, and end with it. On a cluster executors start as tasks need them and stop when idle.
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
EXECUTOR = ("python", "-m", "everstep.steps.preprocess.executor")
LABELS = {"everstep/step": "preprocess"}
"""Label of the executors' pods, so that the step's own may reach them (templates/chart/files/network.yaml)."""
ENCRYPTED = {"spark.network.crypto.enabled": "true", "spark.network.crypto.cipher": "AES/GCM/NoPadding"}
"""Encrypts the traffic between driver and executors, data blocks too.

The secret authenticates the key exchange. Spark's documentation, "Security", names GCM as the mode that also detects
changes on the way.
"""
_SECRET = re.compile(r"^\s*spark\.authenticate(\s*[=:]\s*|\s+)true\s*$", re.MULTILINE | re.IGNORECASE)
_PREFIX = 40
"""Characters that Spark allows for a pod name's prefix, minus a few."""
_OVERHEAD_MB, _WORKER_MB = 400, 600
"""Memory of an executor besides Java's: a base, and for each of its Python workers."""


class Kind(enum.Enum):
    """The kinds of masters, by how their address begins."""

    LOCAL = r"local(\[([1-9]\d*|\*)\])?"
    STANDALONE = r"spark://[^/,\s:]+:\d+(,[^/,\s:]+:\d+)*"
    KUBERNETES = r"k8s://(https?://)?[^/\s]*"


def kind_of(master: str) -> Kind:
    """The kind of master. Raises StepError for anything else."""
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
    """The API's address: https://..."""
    namespace: str
    token_file: str
    ca_file: str
    name: str
    """The step's own pod."""
    address: str
    """The pod's IP."""
    template: Mapping[str, Any]
    """A pod spec like its own, see everstep.runtime.platform.kubernetes."""


def has_secret(defaults: str) -> bool:
    """Does a cluster's spark-defaults.conf ask for a secret?"""
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
    """A local master that tries each task up to ATTEMPTS times: a Python worker may be killed for lack of memory."""
    threads = master.removeprefix("local").strip("[]") or "1"
    return {
        "spark.master": f"local[{threads},{ATTEMPTS}]",
        # Spark makes a random secret for local masters; one on a command line would be readable by everybody.
        "spark.authenticate": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


def cluster_settings(executors: int, executor_cores: int, address: str) -> dict[str, str]:
    """Executors as tasks need them, at most `executors`; `address` is where they find this process."""
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
    """In addition to the cluster's settings: pods in the driver's namespace that end with its pod, their owner."""
    api, container = master.removeprefix("k8s://"), pod.template["containers"][0]
    memory = _OVERHEAD_MB + _WORKER_MB * executor_cores
    return {
        "spark.master": f"k8s://{api or pod.api}",
        "spark.submit.deployMode": "client",
        # Spark makes a secret for the application and passes it to the executors.
        "spark.authenticate": "true",
        **ENCRYPTED,
        "spark.kubernetes.namespace": pod.namespace,
        "spark.kubernetes.authenticate.caCertFile": pod.ca_file,
        "spark.kubernetes.authenticate.oauthTokenFile": pod.token_file,
        "spark.kubernetes.container.image": container["image"],
        # Spark sets one in any case, and it overrides the template's.
        "spark.kubernetes.container.image.pullPolicy": container.get("imagePullPolicy", "IfNotPresent"),
        "spark.kubernetes.driver.pod.name": pod.name,
        "spark.kubernetes.executor.podTemplateFile": str(template_file),
        "spark.kubernetes.executor.podNamePrefix": f"{pod.name.replace('.', '-')[-_PREFIX:].strip('-')}",
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.executor.request.cores": str(executor_cores),
        "spark.executor.memoryOverhead": f"{memory}m",
    }


def pod_template(pod: Pod) -> str:
    """The file for spark.kubernetes.executor.podTemplateFile: the step's pod with another command.

    What Spark sets itself is left out: resources, and its own variables.
    """
    spec = json.loads(json.dumps(pod.template))
    main = spec["containers"][0]
    main.pop("resources", None)
    main |= {"name": "executor", "command": list(EXECUTOR)}
    spec |= {"restartPolicy": "Never", "automountServiceAccountToken": False}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": LABELS}, "spec": spec})

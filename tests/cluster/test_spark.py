"""--spark-master k8s://: the preprocess step in a pod, its executors in others, on a real API server and real nodes."""

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from everstep.runtime.store import Store, open_store
from everstep.runtime.submission.manifest import OWN_POD
from everstep.steps.preprocess.masters import LABELS
from tests.cluster import images
from tests.cluster.lifecycle import Cluster
from tests.cluster.namespace import OF_SPARK, STORE_SECRET
from tests.cluster.plane import BUCKET
from tests.harness import ROOT, wait_until

DEADLINE_S = 600
NOBODY = 65534
"""A user whom every system's /etc/passwd has: Java wants a name."""
TEXTS = [f"document {number} caf\u00e9 {'x' * (number % 97)}" for number in range(3000)]
EXECUTORS = "spark-role=executor"


def driver(cluster: Cluster, name: str, *arguments: str) -> dict[str, Any]:
    """The step's pod, as Argo would make it."""
    patch = images.patch()
    (container,) = patch["containers"]
    container_variables = [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": STORE_SECRET, "key": key}}} for key in cluster.store
    ]
    container = {
        **container, "image": images.HOST, "workingDir": "/tmp", "env": [OWN_POD, *container_variables],
        "command": ["python", "-m", "everstep.steps.preprocess", *arguments],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }  # fmt: skip
    security = {"runAsNonRoot": True, "runAsUser": NOBODY, "fsGroup": NOBODY}
    spec = {
        **patch, "containers": [container], "restartPolicy": "Never", "serviceAccountName": OF_SPARK,
        "securityContext": {**security, "seccompProfile": {"type": "RuntimeDefault"}},
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": LABELS}, "spec": spec}


def count_of_finished_shards(store: Store) -> int:
    """Shards that are done."""
    return sum(entry.key.endswith(".done") for entry in store.list("out/shards"))


def test_executors_are_pods_one_is_lost_and_the_bytes_are_those_of_local_mode(cluster: Cluster, tmp_path: Path) -> None:
    name, uri = f"spark-{secrets.token_hex(3)}", f"s3://{BUCKET}/spark-{secrets.token_hex(4)}"
    store = open_store(uri, environment=cluster.store)
    store.put("in/a.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode())
    input_flags = ["--input", f"{uri}/in/*.jsonl", "--append-eod", "--tokenizer-type", "CharLevelTokenizer"]
    arguments = [*input_flags, "--output-prefix", f"{uri}/out/result", "--spark-master", "k8s://", "--tasks", "40"]
    arguments += ["--executors", "2", "--executor-cores", "1", "--store", "/tmp/store", "--outputs", "/tmp/outputs"]
    cluster.kubectl.create(driver(cluster, name, *arguments))

    def phase() -> str:
        pod = cluster.kubectl.get("pod", name)
        return pod["status"].get("phase", "") if pod else "gone"

    def over() -> bool:
        return phase() in ("Succeeded", "Failed", "gone")

    try:
        wait_until(lambda: count_of_finished_shards(store) or over(), "a task's end", DEADLINE_S, pause_s=0.2)
        executors = cluster.kubectl.list("pods", EXECUTORS)
        assert executors, cluster.kubectl("logs", name)
        for pod in executors:
            assert [owner["name"] for owner in pod["metadata"]["ownerReferences"]] == [name]
            (container,) = pod["spec"]["containers"]
            assert container["image"] == images.HOST
            assert pod["spec"]["securityContext"]["runAsUser"] == NOBODY
        cluster.kubectl("delete", "pod", executors[0]["metadata"]["name"], "--now", "--wait=false")
        wait_until(over, f"the end of {name}", DEADLINE_S, pause_s=0.5)
        assert phase() == "Succeeded", cluster.kubectl("logs", name)
        wait_until(lambda: not cluster.kubectl.list("pods", EXECUTORS), "the executors' end", DEADLINE_S, pause_s=1)
    finally:
        cluster.kubectl("delete", "pod", name, "--ignore-not-found", "--now", "--wait=false")
    expected_tokens = [token for text in TEXTS for token in (*text.encode(), 0)]
    assert np.frombuffer(store.get("out/result_text_document.bin"), "<u2").tolist() == expected_tokens
    assert not list(store.list("out/shards"))
    here = ["--output-prefix", f"{uri}/here/result", "--spark-master", "local[2]"]
    here += ["--store", str(tmp_path / "store"), "--outputs", str(tmp_path / "outputs")]
    subprocess.run(
        [sys.executable, "-m", "everstep.steps.preprocess", *input_flags, *here],
        cwd=ROOT,
        env={**os.environ, **cluster.store},
        check=True,
    )
    for kind in ("bin", "idx"):
        name = f"result_text_document.{kind}"
        assert store.get(f"out/{name}") == store.get(f"here/{name}")

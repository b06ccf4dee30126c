"""A train step on the cluster, watched by its pods and by what is in the store.

Where only the step is looked at, its Workflow is an object that no controller acts on, and its pod is made here from
the step's template, once for each try, as Argo would.
"""

import json
import os
import re
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hera.workflows import Workflow

from everstep.runtime.data.sampler import Sampler, sample_count
from everstep.runtime.journal import segments
from everstep.runtime.platform.kubernetes.pods import NODE, has_ended, selector
from everstep.runtime.store import Store, open_store
from everstep.runtime.submission.manifest import ClusterOptions, for_argo
from everstep.steps.train.template import template as train_template
from everstep.version import IMAGE
from tests.cluster import images
from tests.cluster.layout import ADMIN, NAMESPACE
from tests.cluster.lifecycle import Cluster
from tests.cluster.namespace import SERVICE_ACCOUNT, STORE_SECRET
from tests.cluster.plane import BUCKET
from tests.cluster.processes import ClusterError
from tests.datasets import write_dataset
from tests.harness import ROOT, wait_until

PACED = Path(__file__).with_name("paced.py")
LENGTH, BATCH, SEED = 16, 12, 3
"""Of the paced script: tokens a sample, samples an iteration over all ranks, and what their order follows from."""
PATIENCE_S = 600.0
"""For anything that a pod has to be started for, on a busy machine."""
OPTIONS = ClusterOptions(images.HOST, SERVICE_ACCOUNT, store_secret=STORE_SECRET)
Pod = dict[str, Any]


def dataset_in(cluster: Cluster, folder: Path) -> str:
    """The URI of a small dataset in the cluster's store."""
    uri = f"s3://{BUCKET}/dataset-{secrets.token_hex(4)}"
    store = open_store(uri, environment=cluster.store)
    files = list(Path(write_dataset(folder / "dataset")).iterdir())
    for path in sorted(files, key=lambda path: path.suffix == ".json"):
        store.put(path.name, path.read_bytes())
    return uri


@dataclass
class Training:
    """One Workflow of one train step, with a store of its own."""

    cluster: Cluster
    dataset: str
    flags: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """More for the step's container, and by it for the nodes'."""
    name: str = field(default_factory=lambda: f"train-{secrets.token_hex(3)}")
    uid: str = ""
    tries: int = 0
    manifest: dict[str, Any] = field(default_factory=dict)
    deadline_s: int | None = None
    """Of the Workflow."""
    _told: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """The lines of the telemetry's objects, by key: none ever changes."""
    _records: list[dict[str, Any]] = field(default_factory=list)
    _segment: int = 0
    """The last segment of the journal that is in `_records`."""

    @property
    def uri(self) -> str:
        """Of its store."""
        return f"s3://{BUCKET}/{self.name}"

    @property
    def job(self) -> str:
        """As the step names it."""
        return f"{self.uid}-train"

    @property
    def selector(self) -> str:
        """Of all that the step makes for its job."""
        return selector(self.job)

    @property
    def pod(self) -> str:
        """The newest try's."""
        return f"{self.name}-{self.tries}"

    def submit(self, host: str = "", **flags: str) -> None:
        """The Workflow, and the first try of its step, on that host."""
        usual = {
            "dataset": self.dataset, "nodes": "2", "min-nodes": "2", "iterations": "60", "sequence-length": "16",
            "global-batch": "8", "persist-interval": "10",
        }  # fmt: skip
        self.flags = {**usual, **{name.replace("_", "-"): value for name, value in flags.items()}}
        arguments = {"store": self.uri, **self.flags}
        how: dict[str, Any] = {"templates": [train_template()], "active_deadline_seconds": self.deadline_s}
        workflow = Workflow(name=self.name, entrypoint="train", arguments=arguments, **how)
        self.manifest = for_argo(workflow.to_dict(), self.name, NAMESPACE, OPTIONS, IMAGE)
        objects_made = self.cluster.kubectl.create(self.manifest)
        self.uid = objects_made[0]["metadata"]["uid"]
        self.start(host)

    def submit_paced(self, host: str, spec: str, pause_s: float = 0.1, more: str = "", **flags: str) -> None:
        """One that trains until `stop`, a few iterations a second; `more`: arguments (see `paced`)."""
        order = f"--length {LENGTH} --batch {BATCH} --seed {SEED}"
        arguments = f"--dataset {{dataset}} --store {self.uri} --pause {pause_s} {order} {more}"
        script = {"script": str(PACED), "script_args": arguments}
        self.submit(host, **script, job_spec=spec, nodes="2", min_nodes="1", global_batch=str(BATCH), **flags)

    def stop(self) -> None:
        """Tell the paced script to end."""
        self.store().put("stop", b"")

    def in_order(self) -> bool:
        """Whether the paced script has applied each sample once, in its iteration, as of its newest report."""
        newest = max(self.reports(), key=lambda line: line["iteration"])
        split_facts = json.loads(open_store(self.dataset, environment=self.cluster.store).get("dataset.json"))["train"]
        sampler = Sampler(sample_count(split_facts["tokens"], LENGTH), BATCH, SEED)
        iterations = range(newest["iteration"])
        expected_sum = sum((number + 1) * int(sampler.indices(number * BATCH).sum()) for number in iterations)
        return abs(newest["total"] - expected_sum) <= 1e-9 * expected_sum

    def start(self, host: str = "") -> None:
        """One more try of the step, on that host."""
        self.tries += 1
        (template,) = self.manifest["spec"]["templates"]
        inputs = {
            parameter["name"]: parameter["default"] for parameter in template["inputs"]["parameters"]
        } | self.flags
        placeholders = {f"inputs.parameters.{name}": value for name, value in inputs.items()}
        placeholders |= {"workflow.parameters.store": self.uri, "workflow.name": self.name, "workflow.uid": self.uid}
        container = {**template["container"], "name": "main", "env": list(template["container"]["env"])}
        container = json.loads(
            re.sub(r"{{([^}]*)}}", lambda match: _escape(placeholders[match[1]]), json.dumps(container))
        )
        container["env"] += [{"name": name, "value": value} for name, value in self.environment.items()]
        owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": self.name, "uid": self.uid}
        spec = {
            "serviceAccountName": template["serviceAccountName"], "restartPolicy": "Never", "containers": [container],
            "securityContext": template["securityContext"], "volumes": template["volumes"],
            **({"nodeName": host} if host else {}),
        }  # fmt: skip
        labels = {**template["metadata"]["labels"], "workflows.argoproj.io/workflow": self.name}
        metadata = {"name": self.pod, "labels": labels, "ownerReferences": [owner]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _patch_spec(spec, images.patch())}
        self.cluster.kubectl.create(pod)

    def phase(self) -> str:
        """Of the newest try's pod."""
        pod = self.cluster.kubectl.get("pod", self.pod)
        return pod["status"].get("phase", "") if pod else "gone"

    def over(self) -> bool:
        """The newest try has ended, well or not."""
        return self.phase() in ("Succeeded", "Failed", "gone")

    def finish(self, seconds: float = PATIENCE_S) -> str:
        """The phase that it ends with."""
        wait_until(self.over, f"the end of {self.pod}", seconds, pause_s=0.5)
        return self.phase()

    def nodes(self) -> dict[str, Pod]:
        """The pods that train or will, by the node's name; those that ended stay for their logs, with the Workflow."""
        pods = [pod for pod in self.cluster.kubectl.list("pods", self.selector) if not has_ended(pod)]
        return {pod["metadata"]["labels"][NODE]: pod for pod in pods}

    def store(self) -> Store:
        """What it keeps."""
        return open_store(self.uri, environment=self.cluster.store)

    def iteration(self) -> int:
        """The newest that was told to the master, and by it to the store."""
        return max((line["iteration"] for line in self.reports()), default=0)

    def not_stored(self) -> int:
        """How many of the iterations that are known to be done the newest committed checkpoint lacks."""
        records = self.records()
        iterations_done = [record["iteration"] for record in records if record["kind"] in ("RoundBroken", "JobEnded")]
        stored = [record["iteration"] for record in records if record["kind"] == "Committed"]
        return max(0, max([self.iteration(), *iterations_done]) - max(stored, default=0))

    def wait_iteration(self, iteration: int, seconds: float = PATIENCE_S) -> None:
        """Until it was reached; fails when the step ends before."""
        wait_until(lambda: self.iteration() >= iteration or self.over(), f"iteration {iteration}", seconds, pause_s=0.5)
        assert self.iteration() >= iteration, self.last_words()

    def world(self) -> int:
        """Nodes of the newest round; 0: it is over, or there was none."""
        rounds = [record for record in self.records() if record["kind"] in ("RoundFormed", "RoundBroken")]
        if not rounds or rounds[-1]["kind"] != "RoundFormed":
            return 0
        return sum(map(len, rounds[-1]["round"]["members"].values()))

    def words(self) -> str:
        """What the newest try of the step has printed."""
        return self.cluster.kubectl("logs", self.pod)

    def status(self) -> str:
        """What `everstep status` says to a user of the cluster."""
        variables = {**os.environ, **self.cluster.store, "KUBECONFIG": str(ADMIN)}
        command = [sys.executable, "-m", "everstep", "status", self.name, "--namespace", NAMESPACE]
        completed = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
        return completed.stdout + completed.stderr

    def reports(self) -> list[dict[str, Any]]:
        """What rank 0 told of each iteration, in the order of its time."""
        store, folder = self.store(), f"jobs/{self.job}/telemetry/"
        for key in {entry.key for entry in store.list(folder)} - self._told.keys():
            self._told[key] = [json.loads(line) for line in store.get(key).splitlines()]
        lines = [
            line
            for report_lines in self._told.values()
            for line in report_lines
            if "loss" in line and line.get("rank", 0) == 0
        ]
        return sorted(lines, key=lambda line: line["time"])

    def records(self) -> list[dict[str, Any]]:
        """The job's journal, from its first record on."""
        for segment in segments.read(self.store(), self.job, self._segment):
            lines = map(json.loads, segment.data.splitlines())
            self._records += [line for line in lines if line["kind"] != "Segment"]
            self._segment = segment.number
        return list(self._records)

    def last_words(self) -> str:
        """What is there, for the message of a failed assertion."""
        words = []
        for pod in self.cluster.kubectl.list("pods"):
            name, status = pod["metadata"]["name"], pod["status"]
            status_fields = {key: status.get(key) for key in ("phase", "reason", "containerStatuses")}
            words.append(f"--- {name} on {pod['spec'].get('nodeName')}: {status_fields}")
            try:
                words.append(self.cluster.kubectl("logs", "--tail=40", name, "--all-containers"))
            except ClusterError as error:
                words.append(str(error))
        return "\n".join(words)

    def delete(self) -> None:
        """The Workflow and all that it owns, as far as it is there."""
        self.cluster.kubectl("delete", "workflow", self.name, "--ignore-not-found", "--wait=false")


def _escape(value: str) -> str:
    """As Argo puts a value into the JSON of a template."""
    return json.dumps(value)[1:-1]


def _patch_spec(spec: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """The pod's spec as Kubernetes' strategic merge would leave it, for one container."""
    (container,), (more,) = spec["containers"], patch["containers"]
    requests = {**container["resources"]["requests"], **more["resources"]["requests"]}
    resources = {**container["resources"], "requests": requests}
    mounts = [*container.get("volumeMounts", ()), *more["volumeMounts"]]
    merged = {**container, "resources": resources, "volumeMounts": mounts}
    return {**spec, "containers": [merged], "volumes": [*spec["volumes"], *patch["volumes"]]}

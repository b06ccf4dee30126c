"""A TrainJob's overrides of its runtime's pods, and a job that leaves its program to the runtime.

After its API (trainer.kubeflow.org/v1alpha1, PodTemplateOverride): `targetJobs` names jobs of the runtime, of which
`node` trains; the override's `spec` has fields of a pod, and `env` and `volumeMounts` of containers by name.
"""

from typing import Any

import pytest

from everstep.convert import Conversion, convert

JOB = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: x}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    image: i
    command: [torchrun, t.py]
    env: [{name: A, value: own}]
    numNodes: 2
    resourcesPerNode: {limits: {memory: 1Gi}}
"""
OVERRIDES = """\
  podTemplateOverrides:
  - targetJobs: [{name: node}]
    spec:
      serviceAccountName: trainer
      nodeSelector: {gpu: a10}
      tolerations: [{key: gpu, operator: Exists}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
      imagePullSecrets: [{name: registry}]
      containers:
      - name: node
        env: [{name: A, value: other}, {name: B, value: b}]
        volumeMounts: [{name: data, mountPath: /data}]
  - targetJobs: [{name: dataset-initializer}]
    spec: {nodeSelector: {disk: large}}
"""


def listed(conversion: Conversion) -> list[str]:
    return [note for note in conversion.notes if "podTemplateOverrides" in note]


def test_overrides_of_the_training_pods_are_the_nodes_and_others_are_listed() -> None:
    conversion = convert(JOB + OVERRIDES, "f")
    template: dict[str, Any] = conversion.arguments["job_spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    assert template == {
        "nodeSelector": {"gpu": "a10"}, "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "imagePullSecrets": [{"name": "registry"}],
        "containers": [
            {
                "env": [{"name": "A", "value": "other"}, {"name": "B", "value": "b"}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
    }  # fmt: skip
    assert listed(conversion) == [
        "f:15: spec.podTemplateOverrides[0].spec.serviceAccountName: no counterpart; nearest: --service-account",
        "f:24: spec.podTemplateOverrides[1]: no counterpart; nearest: template of a role in a job spec",
    ]


def test_arguments_of_an_unknown_program_are_told() -> None:
    text = JOB.replace("    command: [torchrun, t.py]\n", "    args: [dtype=bf16, epochs=1]\n")
    told = "f: worker: it has arguments alone, and what its image, or its runtime, runs with them is not known here"
    assert [note for note in convert(text, "f").notes if note.startswith(told)]
    assert not [note for note in convert(JOB, "f").notes if "arguments alone" in note]


@pytest.mark.parametrize("word", ["torchrun, t.py", "python, t.py"])
def test_arguments_that_name_a_program_are_taken_for_one(word: str) -> None:
    conversion = convert(JOB.replace("command: [torchrun, t.py]", f"args: [{word}]"), "f")
    assert conversion.arguments["script"] == "t.py"
    assert not [note for note in conversion.notes if "arguments alone" in note]


@pytest.mark.parametrize(
    ("resources", "given", "slots"),
    [
        ("limits: {nvidia.com/gpu: 8, memory: 1Gi}", "", 8),
        ("limits: {nvidia.com/gpu: 8, memory: 1Gi}", "auto", 8),
        ("limits: {nvidia.com/gpu: 8, memory: 1Gi}", "2", 2),
        ("limits: {nvidia.com/gpu: 8, cpu: 4, memory: 1Gi}", "cpu", 4),
        ("requests: {cpu: 2500m}, limits: {memory: 1Gi}", "", 3),
        ("limits: {memory: 1Gi}", "", 1),
    ],
)
def test_torchrun_starts_as_many_workers_as_trainers_torch_plugin_tells_it(
    resources: str, given: str, slots: int
) -> None:
    text = JOB.replace("limits: {memory: 1Gi}", resources) + (f"    numProcPerNode: {given}\n" if given else "")
    conversion = convert(text, "f")
    assert conversion.arguments["job_spec"]["replicaSpecs"]["worker"]["slots"] == slots
    assert not [note for note in conversion.notes if "proc" in note.lower()]


def test_workers_that_are_left_to_devices_that_nobody_knows_are_told() -> None:
    without = JOB.replace("    resourcesPerNode: {limits: {memory: 1Gi}}\n", "")
    told = "f: the launcher's --nproc_per_node=auto: no counterpart; nearest: --workers-per-node"
    assert told in convert(without, "f").notes
    assert told not in convert(without.replace("torchrun", "python"), "f").notes


@pytest.mark.parametrize(("given", "is_told"), [("", False), ("auto", False), ("8", True)])
def test_a_program_that_no_launcher_starts_runs_once_a_node(given: str, is_told: bool) -> None:
    text = JOB.replace("torchrun, t.py", "python, t.py").replace("memory: 1Gi", "nvidia.com/gpu: 8, memory: 1Gi")
    conversion = convert(text + (f"    numProcPerNode: {given}\n" if given else ""), "f")
    assert conversion.arguments["job_spec"]["replicaSpecs"]["worker"]["slots"] == 1
    told = "f: worker: it runs once a node: torchrun would start 8; nearest: slots in a job spec"
    assert (told in conversion.notes) == is_told

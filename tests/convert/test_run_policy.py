"""What a job says about its whole run is the Workflow's, and what its pods need of a machine is the nodes' pods'.

The fields' meaning: Kubernetes, "Jobs" (job termination, TTL of finished jobs), RunPolicy of kubeflow/common and RayJob
of KubeRay; for Argo its "Field Reference" (WorkflowSpec, TTLStrategy).
"""

from typing import Any

import pytest

from everstep.convert import ConvertError, convert
from everstep.convert.workflow import workflow_of
from everstep.runtime.submission.manifest import ClusterOptions
from tests.convert.stand_ins import HEAD, JOBS, POD

BOTH = "activeDeadlineSeconds: 3600, ttlSecondsAfterFinished: 0"
WITH = {
    "pytorch_job": ("ttlSecondsAfterFinished: 600", BOTH), "tf_job": ("backoffLimit: 4", BOTH),
    "ray_job": ("spec:\n", f"spec:\n  {BOTH.replace(', ', chr(10) + '  ')}\n"),
    "volcano_job": ("spec:\n", "spec:\n  ttlSecondsAfterFinished: 0\n"),
}  # fmt: skip


def text_of(name: str) -> str:
    before, after = WITH[name]
    text = (JOBS / f"{name}.yaml").read_text()
    assert before in text
    return text.replace(before, after, 1)


@pytest.mark.parametrize("name", WITH)
@pytest.mark.parametrize("cluster", [None, ClusterOptions("i", "", store_secret="")])
def test_a_runs_deadline_and_when_it_is_removed_are_the_workflows(name: str, cluster: ClusterOptions | None) -> None:
    conversion = convert(text_of(name), "f")
    spec = workflow_of(conversion, "s3://ml/x", cluster)["spec"]
    assert spec["ttlStrategy"] == {"secondsAfterCompletion": 0}
    assert spec.get("activeDeadlineSeconds") == (None if name == "volcano_job" else 3600)
    assert not [note for note in conversion.notes if "Seconds" in note]


def test_a_deadline_that_no_run_can_have_is_refused() -> None:
    text = text_of("ray_job").replace("activeDeadlineSeconds: 3600", "activeDeadlineSeconds: 0")
    with pytest.raises(ConvertError, match=r"f:\d+: spec\.activeDeadlineSeconds: 0 must be at least 1"):
        convert(text, "f")


def scheduling(policy: str) -> tuple[dict[str, Any], str]:
    """Arguments and notes of a job of three pods with that policy."""
    pod = POD.replace("image: i,", "image: i, name: pytorch,")
    text = (
        "apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {name: x}\nspec:\n"
        f"  runPolicy: {{schedulingPolicy: {policy}}}\n  pytorchReplicaSpecs: {{Worker: {{replicas: 3, {pod}}}}}\n"
    )
    conversion = convert(text, "f")
    return conversion.arguments, "\n".join(conversion.notes)


def test_a_scheduling_policys_queue_is_volcanos_and_the_rest_is_listed() -> None:
    arguments, notes = scheduling("{minAvailable: 3, queue: research, priorityClass: high}")
    assert (arguments["gang"], arguments["queue"], arguments["priority_class"]) == ("volcano", "research", "high")
    assert "schedulingPolicy" not in notes
    arguments, notes = scheduling("{minAvailable: 2, priorityClass: high, scheduleTimeoutSeconds: 60}")
    assert not arguments.keys() & {"gang", "queue"}
    for name in ("minAvailable", "scheduleTimeoutSeconds"):
        assert f"f:5: spec.runPolicy.schedulingPolicy.{name}: no counterpart; nearest: --gang, --queue and" in notes


def test_what_a_pod_needs_of_its_machine_is_carried() -> None:
    spread = "topologySpreadConstraints: [{maxSkew: 1, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]"
    more = f"hostNetwork: true, hostIPC: true, shareProcessNamespace: true, {spread}, schedulerName: s, "
    text = f"{HEAD}  replicaSpecs: {{worker: {{{POD.replace('spec: {', f'spec: {{{more}priorityClassName: high, ')}}}}}"
    conversion = convert(text, "f")
    spec = conversion.arguments["job_spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    assert spec == {
        "schedulerName": "s", "priorityClassName": "high", "hostNetwork": True, "hostIPC": True,
        "shareProcessNamespace": True, "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"},
        ],
    }  # fmt: skip
    assert "counterpart" not in "\n".join(conversion.notes)
    for wrong in ("hostNetwork: 1", "hostIPC: yes please", "topologySpreadConstraints: {}"):
        name = wrong.partition(":")[0]
        bad = f"{HEAD}  replicaSpecs: {{worker: {{{POD.replace('spec: {', f'spec: {{{wrong}, ')}}}}}"
        with pytest.raises(ConvertError, match=rf"f:5: .*\.{name}: .* is not"):
            convert(bad, "f")

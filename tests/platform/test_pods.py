"""What a node's pod looks like."""

from typing import Any

import pytest

from runtime.agent.settings import Settings
from runtime.job.spec import GIB, Resources
from runtime.platform import NodeRequest
from runtime.platform.kubernetes import Owner, template_of
from runtime.platform.kubernetes.pods import pod_name, pod_of

JOB = "0f9c3a1e-77aa-4b0e-9d6a-2f6f5f1f9a10-train"
OWNER = Owner("llama-finetune-x7k2", "0f9c3a1e-77aa-4b0e-9d6a-2f6f5f1f9a10")
STEP = {
    "metadata": {"name": "step"},
    "spec": {
        "serviceAccountName": "trainer",
        "nodeName": "host-7",
        "imagePullSecrets": [{"name": "pull"}],
        "securityContext": {"runAsNonRoot": True},
        "containers": [
            {"name": "wait", "image": "argoexec:v4"},
            {
                "name": "main",
                "image": "registry.example/everstep:1",
                "command": ["/var/run/argo/argoexec", "emissary"],
                "args": ["--", "python"],
                "env": [{"name": "ARGO_TEMPLATE", "value": "{}"}, {"name": "AWS_REGION", "value": "x"}],
                "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi", "cpu": "2"}},
                "volumeMounts": [
                    {"name": "shared-memory", "mountPath": "/dev/shm"},
                    {"name": "var-run-argo", "mountPath": "/var/run/argo"},
                    {"name": "kube-api-access-1", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
                ],
            },
        ],
        "volumes": [
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
            {"name": "var-run-argo", "emptyDir": {}},
            {"name": "kube-api-access-1", "projected": {}},
        ],
    },
}


def pod(host: str = "", template: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The pod of a node."""
    arguments = ["--node", "worker-0-0", "--host", host, "--", "a.py", "--lr=$(rate)"]
    request = NodeRequest("worker-0-0", "worker", host, {"A": "$x"}, arguments, **more)
    return pod_of(request, JOB, OWNER, template or template_of(STEP))


def test_it_has_what_the_step_has_but_nothing_of_argos_and_no_access_to_the_api() -> None:
    spec = pod()["spec"]
    (agent,) = spec["containers"]
    assert agent["image"] == "registry.example/everstep:1"
    assert agent["command"] == ["python", "-m", "runtime.agent"]
    assert agent["volumeMounts"] == [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    assert [one["name"] for one in spec["volumes"]] == ["shared-memory"]
    assert [one["name"] for one in agent["env"]] == [
        "AWS_REGION", "A", "EVERSTEP_JOB_TOKEN", "EVERSTEP_HOST", "EVERSTEP_IP",
        "EVERSTEP_HOST_IP",
    ]  # fmt: skip
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never"
    assert "nodeName" not in spec


def test_the_workflow_owns_it() -> None:
    (owner,) = pod()["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Workflow", OWNER.uid)
    assert "blockOwnerDeletion" not in owner


def test_arguments_and_variables_arrive_as_they_are_and_the_host_is_the_one_it_gets() -> None:
    agent = pod()["spec"]["containers"][0]
    assert agent["args"] == ["--node", "worker-0-0", "--host", "$(EVERSTEP_HOST)", "--", "a.py", "--lr=$$(rate)"]
    assert {"name": "A", "value": "$$x"} in agent["env"]
    assert pod("host-1")["spec"]["containers"][0]["args"][3] == "host-1"


def test_the_jobs_resources_stand_over_the_steps() -> None:
    assert pod()["spec"]["containers"][0]["resources"] == STEP["spec"]["containers"][1]["resources"]
    want = Resources(cpu=4, memory_bytes=8 * GIB, others={"nvidia.com/gpu": 2})
    assert pod(resources=want)["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "4", "memory": str(8 * GIB), "nvidia.com/gpu": "2"},
        "limits": {"memory": str(8 * GIB), "nvidia.com/gpu": "2"},
    }


def test_shared_memory_grows_with_the_memory_that_it_counts_as() -> None:
    def shared(**more: Any) -> str:
        (volume,) = pod(**more)["spec"]["volumes"]
        return volume["emptyDir"]["sizeLimit"]

    assert shared() == shared(resources=Resources(memory_bytes=2 * GIB)) == "1Gi"
    assert shared(resources=Resources(memory_bytes=8 * GIB)) == str(2 * GIB)


def test_whoever_deletes_it_gives_it_the_time_to_hand_over_that_its_agent_takes() -> None:
    assert pod()["spec"]["terminationGracePeriodSeconds"] > Settings.notice_s


def test_hosts_are_asked_for_and_avoided_besides_what_the_template_demands() -> None:
    def expressions(made: dict[str, Any]) -> list[list[tuple[str, str, list[str]]]]:
        required = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        return [
            [(one["key"], one["operator"], one["values"]) for one in term["matchExpressions"]]
            for term in required["nodeSelectorTerms"]
        ]

    host = "kubernetes.io/hostname"
    assert "affinity" not in pod()["spec"]
    assert expressions(pod("host-1", avoid_hosts=["b", "a"])) == [
        [(host, "In", ["host-1"]), (host, "NotIn", ["a", "b"])]
    ]
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in ("x", "y")]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": zones}}
    template = {**template_of(STEP), "affinity": {"nodeAffinity": required}}
    assert expressions(pod(template=template, avoid_hosts=["a"])) == [
        [("zone", "In", ["x"]), (host, "NotIn", ["a"])],
        [("zone", "In", ["y"]), (host, "NotIn", ["a"])],
    ]
    assert "matchExpressions" in zones[0]
    assert len(zones[0]["matchExpressions"]) == 1


def test_nodes_beyond_the_minimum_cost_less_to_delete() -> None:
    cost = "controller.kubernetes.io/pod-deletion-cost"
    assert int(pod(extra=True)["metadata"]["annotations"][cost]) < int(pod()["metadata"]["annotations"][cost])


def test_names_are_deterministic_and_fit_a_host_name() -> None:
    long = Owner("a-workflow.with-a-name-that-is-as-long-as-argo-allows-it-to-be-x", "u")
    assert pod_name(JOB, OWNER, "worker-0-0") == pod_name(JOB, OWNER, "worker-0-0")
    assert pod_name(JOB, OWNER, "worker-0-0") != pod_name("another", OWNER, "worker-0-0")
    assert len(pod_name(JOB, long, "worker-9999-12")) <= 63
    assert "." not in pod_name(JOB, long, "worker-9999-12")
    with pytest.raises(ValueError, match="cannot be a pod's name"):
        pod_name(JOB, OWNER, "Worker_0")

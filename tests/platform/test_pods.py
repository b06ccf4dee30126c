"""What a node's pod looks like."""

from typing import Any

import pytest

from everstep.runtime.agent.settings import Settings
from everstep.runtime.job.spec import GIB, JobSpec, Resources, RoleSpec
from everstep.runtime.platform import NodeRequest
from everstep.runtime.platform.gang import Gang
from everstep.runtime.platform.kubernetes import Owner, template_of, with_shared_memory
from everstep.runtime.platform.kubernetes.pods import pod_name, pod_of, waiting_reason, was_evicted
from everstep.runtime.platform.kubernetes.scheduling import (
    Scheduling,
    admission_of_extra,
    extras_to_admit,
    groups_of,
    minimum_of,
    with_scheduling,
)

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
    assert agent["command"] == ["python", "-m", "everstep.runtime.agent"]
    assert agent["volumeMounts"] == [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    assert [volume["name"] for volume in spec["volumes"]] == ["shared-memory"]
    assert [variable["name"] for variable in agent["env"]] == [
        "AWS_REGION", "A", "EVERSTEP_JOB_TOKEN", "EVERSTEP_HOST", "EVERSTEP_IP",
        "EVERSTEP_HOST_IP", "EVERSTEP_ZONE", "OMP_NUM_THREADS",
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
    def shared_memory_of(**more: Any) -> str:
        (volume,) = pod(**more)["spec"]["volumes"]
        return volume["emptyDir"]["sizeLimit"]

    assert shared_memory_of() == shared_memory_of(resources=Resources(memory_bytes=2 * GIB)) == "1Gi"
    assert shared_memory_of(resources=Resources(memory_bytes=8 * GIB)) == str(2 * GIB)


def test_a_state_that_needs_more_shared_memory_gets_it_and_the_memory_that_it_counts_as() -> None:
    template = template_of(STEP)
    roomy = with_shared_memory(template, 3 * GIB)
    assert roomy["volumes"][0]["emptyDir"]["sizeLimit"] == str(3 * GIB)
    limits = roomy["containers"][0]["resources"]["limits"]
    assert limits == {"memory": str(6 * GIB), "cpu": "2"}
    assert with_shared_memory(template, GIB // 2) == template
    assert with_shared_memory({"containers": [{}]}, GIB) == {"containers": [{}]}


def test_whoever_deletes_it_gives_it_the_time_to_hand_over_that_its_agent_takes() -> None:
    assert pod()["spec"]["terminationGracePeriodSeconds"] > Settings.notice_s


def test_hosts_are_asked_for_and_avoided_besides_what_the_template_demands() -> None:
    def expressions(pod_made: dict[str, Any]) -> list[list[tuple[str, str, list[str]]]]:
        required = pod_made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        return [
            [
                (expression["key"], expression["operator"], expression["values"])
                for expression in term["matchExpressions"]
            ]
            for term in required["nodeSelectorTerms"]
        ]

    host = "kubernetes.io/hostname"
    assert "nodeAffinity" not in pod()["spec"]["affinity"]
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


def placed_pod(scheduling: Scheduling, extra: bool = False) -> dict[str, Any]:
    """The pod as its scheduler gets it."""
    return with_scheduling(pod(extra=extra), scheduling, JOB, extra)


def test_the_minimum_comes_before_the_extras_where_priority_classes_say_so() -> None:
    classes = Scheduling(priority_class="high", extra_priority_class="low")
    assert placed_pod(classes)["spec"]["priorityClassName"] == "high"
    assert placed_pod(classes, extra=True)["spec"]["priorityClassName"] == "low"
    assert placed_pod(Scheduling(priority_class="high"), extra=True)["spec"]["priorityClassName"] == "high"
    assert "priorityClassName" not in placed_pod(Scheduling())["spec"]
    assert "schedulerName" not in placed_pod(Scheduling())["spec"]


def test_volcano_gets_the_minimum_as_a_group_and_may_take_the_extras_back() -> None:
    gang = Scheduling(Gang.VOLCANO, "research", "high", "low", minimum=3)
    groups = groups_of(gang, JOB, OWNER)
    assert [group["spec"] for group in groups] == [
        {"minMember": 3, "queue": "research", "priorityClassName": "high"},
        {"minMember": 0, "queue": "research", "priorityClassName": "low"},
    ]
    for group, extra in zip(groups, (False, True), strict=True):
        assert (group["apiVersion"], group["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
        assert group["metadata"]["ownerReferences"][0]["uid"] == OWNER.uid
        pod_made = placed_pod(gang, extra)
        assert pod_made["spec"]["schedulerName"] == "volcano"
        assert pod_made["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group["metadata"]["name"]
        assert pod_made["metadata"]["annotations"]["volcano.sh/preemptable"] == str(extra).lower()


def test_koordinator_needs_annotations_only_and_of_the_minimum_only() -> None:
    gang = Scheduling(Gang.KOORDINATOR, "research", minimum=3)
    assert groups_of(gang, JOB, OWNER) == []
    notes = placed_pod(gang)["metadata"]["annotations"]
    assert notes["gang.scheduling.koordinator.sh/min-available"] == "3"
    assert notes["gang.scheduling.koordinator.sh/name"]
    extra = placed_pod(gang, extra=True)
    assert not [key for key in extra["metadata"]["annotations"] if key.startswith("gang.")]
    assert extra["spec"]["schedulerName"] == "koord-scheduler"
    assert extra["metadata"]["labels"]["quota.scheduling.koordinator.sh/name"] == "research"


def test_the_coscheduling_plugin_gets_a_group_of_the_minimum() -> None:
    gang = Scheduling(Gang.COSCHEDULING, minimum=3)
    (group,) = groups_of(gang, JOB, OWNER)
    assert (group["apiVersion"], group["spec"]) == ("scheduling.x-k8s.io/v1alpha1", {"minMember": 3})
    label = "scheduling.x-k8s.io/pod-group"
    assert placed_pod(gang)["metadata"]["labels"][label] == group["metadata"]["name"]
    assert label not in placed_pod(gang, extra=True)["metadata"]["labels"]


def test_kueue_gets_a_group_of_exactly_the_minimum_and_each_extra_alone() -> None:
    gang = Scheduling(Gang.KUEUE, "research", minimum=3, later=("launcher",))
    assert groups_of(gang, JOB, OWNER) == []
    member, extra = placed_pod(gang), placed_pod(gang, extra=True)
    assert member["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert member["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"]
    assert member["metadata"]["annotations"]["kueue.x-k8s.io/pod-group-total-count"] == "3"
    assert "schedulerName" not in member["spec"]
    assert not [key for key in extra["metadata"]["labels"] if key.startswith("kueue.x-k8s.io/")]
    assert extra["spec"]["schedulingGates"] == [{"name": "everstep/minimum"}, {"name": "kueue.x-k8s.io/admission"}]
    opened = admission_of_extra(gang)
    assert opened["metadata"]["labels"] == {
        "kueue.x-k8s.io/queue-name": "research", "kueue.x-k8s.io/managed": "true",
    }  # fmt: skip
    assert opened["spec"]["schedulingGates"] == [{"name": "kueue.x-k8s.io/admission"}]


def test_a_pod_of_a_role_that_waits_for_others_is_queued_outside_of_the_group() -> None:
    labels = placed_pod(Scheduling(Gang.KUEUE, "research", minimum=3, later=("worker",)))["metadata"]["labels"]
    assert labels["kueue.x-k8s.io/queue-name"] == "research"
    assert "kueue.x-k8s.io/pod-group-name" not in labels


def test_a_pod_whose_quota_kueue_takes_back_gave_way() -> None:
    condition = {"type": "TerminationTarget", "status": "True", "reason": "WorkloadEvictedDueToPreempted"}
    assert was_evicted({"metadata": {}, "spec": {}, "status": {"conditions": [condition]}})
    assert not was_evicted({"metadata": {}, "spec": {}, "status": {"conditions": [{**condition, "status": "False"}]}})


@pytest.mark.parametrize("kind", [Gang.VOLCANO, Gang.KOORDINATOR, Gang.COSCHEDULING, Gang.KUEUE])
def test_extras_do_not_take_the_room_of_their_own_gang(kind: Gang) -> None:
    gang = Scheduling(kind, minimum=2)
    members, extra = [placed_pod(gang), placed_pod(gang)], placed_pod(gang, extra=True)
    assert extras_to_admit([*members, extra], gang) == []
    members[0]["spec"]["nodeName"] = "host-1"
    assert extras_to_admit([*members, extra], gang) == []
    members[1]["spec"]["nodeName"] = "host-1"
    assert extras_to_admit([*members, extra], gang) == [extra]
    del extra["spec"]["schedulingGates"]
    assert extras_to_admit([*members, extra], gang) == []


def test_a_gang_is_of_those_that_wait_for_nobody() -> None:
    first, second = RoleSpec(4, 2), RoleSpec(8, 3, waits_for=("chief",))
    assert minimum_of(JobSpec(JOB, {"chief": first, "worker": second})) == 2


@pytest.mark.parametrize(
    ("status", "part"),
    [
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient memory"}]},
            "no machine has room for its pod: 0/2 nodes: Insufficient memory",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such host\nx"}}}]},
            "its container cannot start, ErrImagePull: no such host",
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, ""),
        ({"conditions": [{"type": "PodScheduled", "status": "True"}], "phase": "Running"}, ""),
        ({}, ""),
    ],
)
def test_why_a_pod_does_not_start_is_told(status: dict[str, Any], part: str) -> None:
    assert waiting_reason({"status": status}) == part


def test_the_jobs_pods_prefer_machines_apart_then_zones_apart_and_require_neither() -> None:
    spec = pod()["spec"]
    mine = {"matchLabels": {"everstep/job": pod()["metadata"]["labels"]["everstep/job"]}}
    assert spec["topologySpreadConstraints"] == [
        {
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": mine,
        }
    ]  # fmt: skip
    term = {"labelSelector": mine, "topologyKey": "topology.kubernetes.io/zone"}
    assert spec["affinity"]["podAntiAffinity"] == {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": term}]
    }


def test_machines_that_were_checked_are_preferred() -> None:
    (wish,) = pod(prefer_hosts=["a", "b"])["spec"]["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert wish["preference"]["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a", "b"]}
    ]
    assert "nodeAffinity" not in pod(prefer_hosts=[str(n) for n in range(101)])["spec"]["affinity"]


def test_a_spread_over_machines_that_the_user_wants_stands() -> None:
    spread = [{"maxSkew": 2, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"}]
    template = {**template_of(STEP), "topologySpreadConstraints": spread}
    assert pod(template=template)["spec"]["topologySpreadConstraints"] == spread


def test_a_node_that_moves_away_from_a_machine_prefers_every_other_one() -> None:
    spec = pod(not_on="m1")["spec"]
    (wish,) = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["preference"]["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["m1"]}
    ]
    assert "topologySpreadConstraints" not in spec

"""A role's pods have what its own template says, over what all nodes get from the train step's pod."""

from typing import Any

import pytest

from everstep.runtime.agent.settings import parser
from everstep.runtime.job.spec import GIB
from everstep.runtime.job.spec_reader import SpecError, spec_of
from everstep.runtime.platform import NodeRequest
from everstep.runtime.platform.kubernetes import Owner
from everstep.runtime.platform.kubernetes.own_template import with_own_metadata, with_own_template
from everstep.runtime.platform.kubernetes.pods import pod_of

STEP: dict[str, Any] = {
    "nodeSelector": {"pool": "cpu"},
    "containers": [{
        "name": "agent", "image": "everstep:1", "env": [{"name": "A", "value": "step"}, {"name": "B", "value": "b"}],
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }],
    "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
}  # fmt: skip
TRAINER: dict[str, Any] = {
    "metadata": {"creationTimestamp": None, "labels": {"team": "vision", "everstep/role": "stolen"}},
    "spec": {
        "containers": [{
            "name": "aitj-0", "image": "registry.example/horovod:1", "imagePullPolicy": "Always",
            "command": ["/bin/bash", "-c", "sleep infinity"], "env": [{"name": "A", "value": "own"}],
            "resources": {"limits": {"baidu.com/v100_32g_cgpu": "1", "memory": "8Gi"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "cache", "mountPath": "/dev/shm"}],
        }],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "images"}},
            {"name": "cache", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
        ],
        "tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"pool": "gpu"},
        "terminationGracePeriodSeconds": 300, "restartPolicy": "Never",
    },
}  # fmt: skip


def pod(slots: int = 1, own: dict[str, Any] = TRAINER) -> dict[str, Any]:
    """A trainer's."""
    request = NodeRequest("trainer-0-0", "trainer", "", {}, ["--slots", str(slots), "--", "a.py"])
    pod_made = pod_of(request, "job", Owner("run", "uid"), with_own_template(STEP, own))
    return with_own_metadata(pod_made, own)


def variables(pod_made: dict[str, Any]) -> dict[str, str]:
    """Of its agent, those that are written down."""
    return {
        variable["name"]: variable["value"]
        for variable in pod_made["spec"]["containers"][0]["env"]
        if "value" in variable
    }


def test_its_image_placement_and_volumes_are_its_own() -> None:
    spec = pod()["spec"]
    (agent,) = spec["containers"]
    assert (agent["image"], agent["imagePullPolicy"]) == ("registry.example/horovod:1", "Always")
    assert (spec["nodeSelector"], spec["tolerations"]) == ({"pool": "gpu"}, [{"key": "gpu", "operator": "Exists"}])
    assert {mount["mountPath"]: mount["name"] for mount in agent["volumeMounts"]} == {
        "/dev/shm": "cache", "/data": "data",
    }  # fmt: skip
    assert {volume["name"] for volume in spec["volumes"]} == {"data", "cache"}
    assert agent["resources"]["limits"]["baidu.com/v100_32g_cgpu"] == "1"


def test_the_agent_stays_its_program() -> None:
    (agent,) = pod()["spec"]["containers"]
    assert agent["command"] == ["python", "-m", "everstep.runtime.agent"]


@pytest.mark.parametrize(("seconds", "notice_s"), [(300, 295.0), (30, 25.0), (10, 8.0)])
def test_a_node_trains_on_for_most_of_its_grace_period(seconds: int, notice_s: float) -> None:
    own = {**TRAINER, "spec": {**TRAINER["spec"], "terminationGracePeriodSeconds": seconds}}
    spec = pod(own=own)["spec"]
    assert spec["terminationGracePeriodSeconds"] == seconds
    options = parser().parse_args(["--node", "trainer-0-0", *spec["containers"][0]["args"]])
    assert (options.notice, options.slots) == (notice_s, 1)


@pytest.mark.parametrize("its_spec", [{"containers": []}, {"containers": [], "terminationGracePeriodSeconds": None}])
def test_without_a_grace_period_of_its_own_a_node_has_the_usual_one(its_spec: dict[str, Any]) -> None:
    spec = pod(own={"spec": its_spec})["spec"]
    assert spec["terminationGracePeriodSeconds"] == 25
    assert "--notice" not in spec["containers"][0]["args"]


def test_its_variables_come_over_those_of_the_step() -> None:
    assert {name: variables(pod())[name] for name in "AB"} == {"A": "own", "B": "b"}


def test_its_labels_do_not_replace_those_by_which_the_job_finds_it() -> None:
    labels = pod()["metadata"]["labels"]
    assert (labels["team"], labels["everstep/role"]) == ("vision", "trainer")


def test_a_role_without_one_has_what_the_step_has() -> None:
    assert with_own_template(STEP, {}) == STEP


@pytest.mark.parametrize(("cpu", "slots", "threads"), [("8", 2, "4"), ("1500m", 1, "1"), ("2", 4, "1")])
def test_threads_of_a_worker_are_its_share_of_the_pods_cores(cpu: str, slots: int, threads: str) -> None:
    own = {"spec": {"containers": [{"resources": {"limits": {"cpu": cpu}}}]}}
    assert variables(pod(slots, own))["OMP_NUM_THREADS"] == threads


def test_threads_that_the_user_sets_stay() -> None:
    own = {"spec": {"containers": [{"env": [{"name": "OMP_NUM_THREADS", "value": "3"}]}]}}
    assert variables(pod(1, own))["OMP_NUM_THREADS"] == "3"


def test_what_it_limits_is_what_the_brain_counts_with() -> None:
    role = spec_of({"job": "j", "replicaSpecs": {"trainer": {"replicas": 1, "template": TRAINER}}}).roles["trainer"]
    assert role.resources.memory_bytes == 8 * GIB
    assert role.resources.others == {"baidu.com/v100_32g_cgpu": 1}


@pytest.mark.parametrize(
    ("template", "expected_text"),
    [
        ({"spec": {"container": []}}, "spec.container: unknown"),
        ({"spec": {"containers": [{"image": "a"}, {"image": "b"}]}}, "a node has no sidecars"),
        ({"spec": {"initContainers": [{"name": "barrier"}]}}, "waitsFor"),
        ({"spec": {"containers": [{"imagePullPolicy": "Sometimes"}]}}, "Sometimes is not one of Always"),
        ({"spec": {"containers": [{"command": ["sleep", 5]}]}}, "put numbers in quotes"),
        ({"spec": {"nodeSelector": ["a"]}}, "spec.nodeSelector: a mapping is needed"),
        ({"spec": {"terminationGracePeriodSeconds": "5"}}, "terminationGracePeriodSeconds: a whole number is needed"),
        ({"spec": {"terminationGracePeriodSeconds": True}}, "terminationGracePeriodSeconds: a whole number is needed"),
        ({"spec": {"terminationGracePeriodSeconds": 0}}, "terminationGracePeriodSeconds: 0 is not between 1 and 86400"),
        ({"spec": {"containers": [{"resources": {"limits": {"memory": "much"}}}]}}, "'much' is not an amount"),
    ],
)
def test_what_it_cannot_have_is_told_by_name(template: dict[str, Any], expected_text: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of({"job": "j", "replicaSpecs": {"trainer": {"replicas": 1, "template": template}}})
    assert expected_text in caught.value.problems[0]


def test_with_its_machines_network_it_finds_the_clusters_services() -> None:
    def spec_with(**fields: Any) -> dict[str, Any]:
        return pod(own={"spec": {**TRAINER["spec"], **fields}})["spec"]

    assert spec_with(hostNetwork=True)["dnsPolicy"] == "ClusterFirstWithHostNet"
    assert spec_with(hostNetwork=True, dnsPolicy="None")["dnsPolicy"] == "None"
    assert "dnsPolicy" not in spec_with(hostNetwork=False)
    own = spec_with(hostNetwork=True, hostIPC=True, shareProcessNamespace=True)
    assert [own[name] for name in ("hostNetwork", "hostIPC", "shareProcessNamespace")] == [True] * 3


def test_its_wishes_of_spread_come_before_those_of_all_nodes() -> None:
    zones = {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    constraints = pod(own={"spec": {"topologySpreadConstraints": [zones]}})["spec"]["topologySpreadConstraints"]
    assert constraints[0] == zones
    assert [constraint["topologyKey"] for constraint in constraints[1:]] == ["kubernetes.io/hostname"]

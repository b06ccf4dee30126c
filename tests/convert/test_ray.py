"""A RayJob's nodes: how many each group has, and where its entrypoint runs if none has any.

After KubeRay's API (ray.io/v1, WorkerGroupSpec) and its controller: a group has `replicas` pods, at least `minReplicas`
(0 by default) and at most `maxReplicas`, each of `numOfHosts` hosts; a suspended group has none. The head always runs,
and the entrypoint runs there. With `enableInTreeAutoscaling` a group grows when the program asks for it.
"""

import json
import os
import shlex
import subprocess
from typing import Any

import pytest

from everstep.convert import Conversion, ConvertError, convert
from everstep.runtime.job.spec_reader import spec_of

HEAD = """\
apiVersion: ray.io/v1
kind: RayJob
metadata: {name: x}
spec:
  entrypoint: python train.py
  rayClusterSpec:
    AUTOSCALING
    headGroupSpec:
      rayStartParams: {num-cpus: "0"}
      template: {spec: {containers: [{name: head, image: h, resources: {limits: {cpu: 2, memory: 1Gi}}}]}}
"""
POD = "{spec: {containers: [{name: w, image: w, resources: {limits: {cpu: 4, memory: 2Gi}}}]}}"


def ray(*groups: str, autoscaling: str = "rayVersion: 2.46.0") -> Conversion:
    text = HEAD.replace("AUTOSCALING", autoscaling)
    if groups:
        text += "    workerGroupSpecs:\n"
    for number, group in enumerate(groups):
        sizes = f"{group}, " if group else ""
        text += f"    - {{groupName: g{number}, {sizes}rayStartParams: {{}}, template: {POD}}}\n"
    return convert(text, "f")


def roles(conversion: Conversion) -> dict[str, tuple[int, int, int]]:
    """(replicas, minReplicas, maxReplicas or 0) of each."""
    each = conversion.arguments["job_spec"]["replicaSpecs"]
    spec_of({"job": "j", "replicaSpecs": json.loads(json.dumps(each))})
    return {name: (role["replicas"], role["minReplicas"], role.get("maxReplicas", 0)) for name, role in each.items()}


def of_groups(conversion: Conversion) -> list[str]:
    return [note for note in conversion.notes if "workerGroupSpecs" in note]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ("replicas: 2", (2, 2, 0)),
        ("replicas: 2, minReplicas: 1, maxReplicas: 5", (2, 1, 5)),
        ("replicas: 2, minReplicas: 0, maxReplicas: 2", (2, 1, 0)),
        ("replicas: 0, minReplicas: 3", (3, 3, 0)),
        ("minReplicas: 3, maxReplicas: 4", (3, 3, 4)),
        ("replicas: 9, maxReplicas: 4", (4, 4, 0)),
        ("replicas: 2, maxReplicas: 2147483647", (2, 2, 0)),
        ("replicas: 2, minReplicas: 1, maxReplicas: 3, numOfHosts: 4", (8, 4, 12)),
    ],
)
def test_a_group_has_as_many_nodes_as_pods_in_kuberay(sizes: str, expected: tuple[int, int, int]) -> None:
    conversion = ray(sizes)
    assert roles(conversion) == {"worker": expected}
    assert of_groups(conversion) == []


def test_what_ray_is_started_with_is_not_needed() -> None:
    place = "f:9: spec.rayClusterSpec.headGroupSpec.rayStartParams"
    told = f"{place}: no counterpart; nearest: not needed: no Ray is started"
    assert [note for note in ray("replicas: 0").notes if "rayStartParams" in note] == [told]


def test_the_hosts_of_a_multi_host_group_come_and_go_together() -> None:
    arguments = ray("replicas: 2, minReplicas: 1, numOfHosts: 4").arguments
    assert arguments["job_spec"]["replicaSpecs"]["worker"]["nodeUnit"] == 4


@pytest.mark.parametrize(
    "groups",
    [(), ("",), ("replicas: 0",), ("replicas: 0, minReplicas: 0, maxReplicas: 5",), ("replicas: 2, suspend: true",),
     ("replicas: 0", "replicas: 0, minReplicas: 0")],
)  # fmt: skip
def test_without_workers_the_heads_pod_trains_alone(groups: tuple[str, ...]) -> None:
    conversion = ray(*groups)
    assert roles(conversion) == {"worker": (1, 1, 0)}
    assert conversion.pod.image == "h"
    worker: dict[str, Any] = conversion.arguments["job_spec"]["replicaSpecs"]["worker"]
    assert worker["resources"] == {"cpu": 2, "memory": "1Gi"}
    assert conversion.arguments["script"] == "train.py"
    for number, note in enumerate(of_groups(conversion)):
        assert note.startswith(f"f:{12 + number}: spec.rayClusterSpec.workerGroupSpecs[{number}]: it has no pods, and ")
        assert note.endswith("trains the pod of the head alone; nearest: replicas of 1 or more")
    assert len(of_groups(conversion)) == len(groups)
    assert not [note for note in conversion.notes if "headGroupSpec.template" in note]


def test_a_group_without_pods_beside_others_is_left_out_and_told() -> None:
    conversion = ray("replicas: 0, maxReplicas: 5", "replicas: 2")
    assert roles(conversion) == {"worker": (2, 2, 0)}
    told = "f:12: spec.rayClusterSpec.workerGroupSpecs[0]: it has no pods: left out; nearest: replicas of 1 or more"
    assert told in conversion.notes


def test_a_group_that_ray_would_scale_from_none_begins_with_one_node() -> None:
    conversion = ray("replicas: 0, minReplicas: 0, maxReplicas: 5", autoscaling="enableInTreeAutoscaling: true")
    assert roles(conversion) == {"worker": (1, 1, 5)}
    assert conversion.pod.image == "w"
    assert roles(ray("replicas: 0", autoscaling="enableInTreeAutoscaling: true")) == {"worker": (1, 1, 0)}
    told = (
        "f:12: spec.rayClusterSpec.workerGroupSpecs[0]: Ray's autoscaler would begin it when asked; here it begins "
        "with one node; nearest: everstep scale RUN --nodes N"
    )
    assert told in conversion.notes
    none = ray("replicas: 0, minReplicas: 0, maxReplicas: 0", autoscaling="enableInTreeAutoscaling: true")
    assert none.pod.image == "h"


ENVIRONMENT = """\
  runtimeEnvYAML: |
    pip: [datasets, transformers]
    working_dir: https://git.example/main.zip
    env_vars: {RUN: sst2, LEVEL: "2"}
"""


def with_environment(text: str, env: str = "") -> Conversion:
    job = HEAD.replace("AUTOSCALING", "rayVersion: 2.46.0").replace("  rayClusterSpec:\n", f"{text}  rayClusterSpec:\n")
    pod = POD.replace("image: w,", f"image: w, env: {env},") if env else POD
    return convert(f"{job}    workerGroupSpecs:\n    - {{replicas: 2, template: {pod}}}\n", "f")


def env_of(conversion: Conversion) -> list[dict[str, Any]]:
    return conversion.arguments["job_spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"][0]["env"]


def test_the_variables_of_a_runtime_environment_are_the_pods_and_its_packages_are_listed() -> None:
    conversion = with_environment(ENVIRONMENT)
    assert env_of(conversion) == [{"name": "RUN", "value": "sst2"}, {"name": "LEVEL", "value": "2"}]
    place = "f:6: spec.runtimeEnvYAML"
    assert [note for note in conversion.notes if "runtimeEnv" in note] == [
        f"{place}: pip, working_dir: no counterpart; nearest: packages and code in the image"
    ]


def test_a_runtime_environments_variable_goes_before_the_pods() -> None:
    env = env_of(with_environment(ENVIRONMENT, "[{name: RUN, value: old}, {name: OTHER, value: o}]"))
    assert env == [{"name": "OTHER", "value": "o"}, {"name": "RUN", "value": "sst2"}, {"name": "LEVEL", "value": "2"}]


def with_variables(variables: dict[str, str], env: str = "") -> Conversion:
    return with_environment(f"  runtimeEnvYAML: {json.dumps(json.dumps({'env_vars': variables}))}\n", env)


def test_a_variable_of_the_pod_in_one_of_a_runtime_environment_is_filled_in_there_and_nothing_else() -> None:
    own = {"LIBRARIES": '${LIBRARIES}:/x "y" $z `w` \\', "COST": "5$ $(date) $$"}
    conversion = with_variables(own, "[{name: OTHER, value: o}]")
    kept = [{"name": "OTHER", "value": "o"}, {"name": "COST", "value": "5$$ $$(date) $$$$"}]
    assert env_of(conversion) == kept, "Kubernetes takes $$ for $"
    (command,) = json.loads(*shlex.split(conversion.arguments["script_args"])).values()
    *shell, text = shlex.split(command)
    shell.append(text.replace("python train.py", "printenv LIBRARIES"))
    for found, expected in (({"LIBRARIES": "/lib"}, "/lib"), ({}, "")):
        variables = {"PATH": os.environ["PATH"], **found}
        ended = subprocess.run(shell, env=variables, capture_output=True, text=True, check=True)
        assert ended.stdout == f'{expected}:/x "y" $z `w` \\\n'


def test_a_variable_that_the_job_itself_gives_is_filled_in_in_the_manifest() -> None:
    conversion = with_variables({"FOLDER": "${BASE}/data"}, "[{name: BASE, value: /b}]")
    assert env_of(conversion) == [{"name": "BASE", "value": "/b"}, {"name": "FOLDER", "value": "/b/data"}]
    assert conversion.arguments["script"] == "train.py"


@pytest.mark.parametrize("text", ["'[a'", "'- a'", '"env_vars: 3"', '"env_vars: {A: 1}"', '"env_vars: {A: {b: c}}"'])
def test_a_runtime_environment_that_ray_refuses_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ConvertError, match=r"f:6: spec\.runtimeEnvYAML: .*env_vars"):
        with_environment(f"  runtimeEnvYAML: {text}\n")

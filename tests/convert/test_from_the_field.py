"""Jobs as people write them: names that a cluster gives, sidecars, merged YAML, large machines, lists of objects."""

import json
import shlex
from typing import Any

import pytest

from everstep.convert import ConvertError, convert
from tests.convert.stand_ins import HEAD, POD

KUBEFLOW = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: x}
spec:
  pytorchReplicaSpecs:
    Worker: {replicas: 2, template: {spec: {containers: [CONTAINERS]}}}
"""
TRAINS = "{name: pytorch, image: i, command: [python, t.py], resources: {limits: {memory: 1Gi}}}"
VOLCANO = (
    "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: x}\nspec:\n  plugins: {PLUGINS}\n  tasks:\n"
)


def kubeflow(containers: str = TRAINS) -> str:
    return KUBEFLOW.replace("CONTAINERS", containers)


def volcano(plugins: str, *tasks: tuple[str, str]) -> str:
    """A job with these tasks, each a name and a command; the first has one pod, the others two."""
    text = VOLCANO.replace("PLUGINS", plugins)
    for number, (name, command) in enumerate(tasks):
        pod = f"{{spec: {{containers: [{{image: i, command: {command}, resources: {{limits: {{memory: 1Gi}}}}}}]}}}}"
        text += f"  - {{name: {name}, replicas: {min(number, 1) + 1}, template: {pod}}}\n"
    return text


def test_a_job_whose_name_a_cluster_gives_is_called_by_its_beginning() -> None:
    assert convert(kubeflow().replace("{name: x}", "{generateName: resnet-}"), "f").name == "resnet"
    both = kubeflow().replace("{name: x}", "{generateName: resnet-, name: resnet-x7}")
    assert convert(both, "f").name == "resnet-x7"
    assert not [note for note in convert(both, "f").notes if "generateName" in note]
    with pytest.raises(ConvertError, match=r"f:3: metadata\.name: missing"):
        convert(kubeflow().replace("{name: x}", "{labels: {a: b}}"), "f")
    with pytest.raises(ConvertError, match=r"f:3: metadata\.generateName: 'A' is not a name for Kubernetes"):
        convert(kubeflow().replace("{name: x}", "{generateName: A-}"), "f")


@pytest.mark.parametrize("sidecar_first", [True, False])
def test_the_container_that_its_operator_looks_after_trains_and_others_are_listed(sidecar_first: bool) -> None:
    containers = ["{name: proxy, image: envoy, command: [envoy]}", TRAINS]
    text = kubeflow(", ".join(containers if sidecar_first else containers[::-1]))
    conversion = convert(text, "f")
    assert (conversion.pod.image, conversion.arguments["script"]) == ("i", "t.py")
    place = "spec.pytorchReplicaSpecs.Worker.template.spec.containers"
    (note,) = (note for note in conversion.notes if place in note)
    assert note.startswith(
        f"f:6: {place}[{1 - sidecar_first}]: no counterpart; nearest: none: a node has one container"
    )


def test_a_merged_mapping_may_have_a_key_of_its_own_instead() -> None:
    text = kubeflow().replace("Worker: {", "Master: &first {").replace("replicas: 2", "replicas: 1")
    job_spec = convert(f"{text}    Worker: {{<<: *first, replicas: 3}}\n", "f").arguments["job_spec"]
    assert job_spec["replicaSpecs"]["worker"]["replicas"] == 4
    with pytest.raises(ConvertError, match=r"f:7: spec\.pytorchReplicaSpecs\.Worker\.replicas: appears twice"):
        convert(f"{text}    Worker: {{<<: *first, replicas: 3, replicas: 4}}\n", "f")


@pytest.mark.parametrize("memory", ["2Ti", "1e12", "1500000000k"])
def test_a_machine_may_have_more_memory_than_nodes_are_usually_given(memory: str) -> None:
    role = convert(kubeflow(TRAINS.replace("1Gi", memory)), "f").arguments["job_spec"]["replicaSpecs"]["worker"]
    assert str(role["resources"]["memory"]) in (memory, "1000000000000.0")


def test_the_only_job_of_a_list_is_converted() -> None:
    text = kubeflow(TRAINS.replace("image: i", "image: 3"))
    items = "".join(f"  {line}\n" for line in text.splitlines())
    listed = f"apiVersion: v1\nkind: List\nitems:\n- {items[2:]}"
    assert convert(listed.replace("image: 3", "image: i"), "f").arguments == convert(kubeflow(), "f").arguments
    with pytest.raises(
        ConvertError, match=r"f:9: spec\.pytorchReplicaSpecs\..*\.containers\[0\]\.image: 3 is not a text"
    ):
        convert(listed, "f")
    with pytest.raises(ConvertError, match="f:1: 2 documents, of which 2 are jobs; give a file with one"):
        convert(f"{listed}- {items[2:]}", "f")


@pytest.mark.parametrize(
    ("of_job", "sizes", "expected"),
    [
        (2, ["replicas: 4, minAvailable: 4"], [2]),
        (3, ["replicas: 4", "replicas: 1"], [2, 1]),
        (3, ["replicas: 4, minAvailable: 4", "replicas: 1, minAvailable: 1"], [2, 1]),
        (3, ["replicas: 4, minAvailable: 2", "replicas: 3, minAvailable: 1"], [2, 1]),
        (4, ["replicas: 4, minAvailable: 2", "replicas: 3, minAvailable: 1"], [3, 1]),
        (0, ["replicas: 4, minAvailable: 2", "replicas: 3"], [2, 3]),
    ],
)
def test_a_volcano_job_begins_with_as_many_nodes_as_volcano_admits(
    of_job: int, sizes: list[str], expected: list[int]
) -> None:
    text = volcano("").replace("spec:\n", f"spec:\n  minAvailable: {of_job}\n")
    pod = "{spec: {containers: [{image: i, command: [python, a.py]}]}}"
    for number, size in enumerate(sizes):
        text += f"  - {{name: t{number}, {size}, template: {pod}}}\n"
    conversion = convert(text, "f")
    roles = conversion.arguments["job_spec"]["replicaSpecs"].values()
    assert [role["minReplicas"] for role in roles] == expected
    assert not [note for note in conversion.notes if "minAvailable" in note]


def test_a_volcano_job_that_begins_with_fewer_nodes_than_tasks_is_told_with_how_many_it_begins() -> None:
    text = volcano("", ("main", "[python, a.py]"), ("worker", "[python, b.py]"))
    conversion = convert(text.replace("spec:\n", "spec:\n  minAvailable: 1\n", 1), "f")
    told = "f:5: spec.minAvailable: 1: here each task begins with a node, all with 2"
    assert [note for note in conversion.notes if "minAvailable" in note] == [told]


def test_a_field_that_is_null_needs_no_mention() -> None:
    assert not [
        note for note in convert(kubeflow(TRAINS.replace("{name", "{args: null, name")), "f").notes if "args" in note
    ]


def test_a_role_that_a_job_spec_cannot_name_so_is_called_otherwise_and_told() -> None:
    text = volcano("", ("ps-server", "[python, a.py]"), ("tf-worker", "[python, b.py]"))
    text = text.replace("tf-worker,", "tf-worker, dependsOn: {name: [ps-server]},")
    conversion = convert(text, "f")
    roles = conversion.arguments["job_spec"]["replicaSpecs"]
    assert list(roles) == ["psserver", "tfworker"]
    assert roles["tfworker"]["waitsFor"] == ["psserver"]
    assert "f: ps-server: this role is called psserver here" in conversion.notes
    with pytest.raises(ConvertError, match="f:4: spec: two of its roles are called psserver"):
        convert(text.replace("tf-worker", "psserver"), "f")
    with pytest.raises(ConvertError, match="'1' is not a valid role name"):
        convert(text.replace("ps-server", '"1"'), "f")


def test_braces_that_argo_would_fill_in_are_told() -> None:
    braces = "f: {{...}} in its texts is filled in by Argo where it knows the name"
    assert not [note for note in convert(kubeflow(), "f").notes if note.startswith(braces)]
    text = kubeflow(TRAINS.replace("t.py]", 't.py, "--run={{workflow.name}}"]'))
    assert [note for note in convert(text, "f").notes if note.startswith(braces)]


def test_what_volcanos_plugins_set_the_workers_find_and_a_launchers_flags_are_filled_in() -> None:
    own = '[python, a.py, "--part=$(VC_TASK_INDEX)", "$(VC_MAIN_HOSTS)"]'
    launched = '[torchrun, "--nproc-per-node=$(VC_WORKER_NUM)", "--node-rank=$(VC_TASK_INDEX)", b.py]'
    arguments = convert(volcano("env: [], svc: []", ("main", own), ("worker", launched)), "f").arguments
    assert arguments["job_spec"]["frameworkType"] == "volcano"
    commands = json.loads(*shlex.split(arguments["script_args"]))
    assert shlex.split(commands["main"]) == ["sh", "-c", 'exec python a.py --part="$VC_TASK_INDEX" "$VC_MAIN_HOSTS"']
    assert commands["worker"] == "python b.py"
    assert arguments["job_spec"]["replicaSpecs"]["worker"]["slots"] == 2


@pytest.mark.parametrize(("plugins", "sets"), [("", False), ("ssh: []", False), ("env: []", True), ("svc: [-x]", True)])
def test_only_volcanos_env_and_svc_set_variables(plugins: str, sets: bool) -> None:
    conversion = convert(volcano(plugins, ("main", '[python, a.py, "$(VC_TASK_INDEX)"]')), "f")
    assert ("frameworkType" in conversion.arguments["job_spec"]) == sets
    assert ("'$(VC_TASK_INDEX)'" in conversion.arguments["script_args"]) != sets
    told = "f:5: spec.plugins.svc: VC_<ROLE>_NUM and VC_<ROLE>_HOSTS are those of the round"
    assert bool([note for note in conversion.notes if note.startswith(told)]) == ("svc" in plugins)


def test_a_role_that_is_called_otherwise_has_its_variables_under_that_name_and_they_are_told() -> None:
    own = '[python, a.py, "$(VC_PS_SERVER_HOSTS)"]'
    conversion = convert(volcano("svc: []", ("main", own), ("ps-server", "[python, b.py]")), "f")
    commands = json.loads(*shlex.split(conversion.arguments["script_args"]))
    assert shlex.split(commands["main"]) == ["sh", "-c", 'exec python a.py "$VC_PSSERVER_HOSTS"']
    told = "VC_PS_SERVER_HOSTS and VC_PS_SERVER_NUM are VC_PSSERVER_HOSTS and VC_PSSERVER_NUM here"
    assert [note for note in conversion.notes if told in note]


def test_an_elastic_jobs_first_container_trains() -> None:
    pod = POD.replace("[{image: i,", "[{name: main, image: i,").replace("t.py]}]", "t.py]}, {name: pytorch, image: j}]")
    assert convert(f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}", "f").pod.image == "i"


@pytest.mark.parametrize("word", ["data/*.txt", "part-?", "[ab].txt", "~/x", "{1..4}", "a{b,c}"])
def test_what_a_shell_would_expand_each_workers_shell_does(word: str) -> None:
    def of(text: str) -> dict[str, Any]:
        return convert(kubeflow(TRAINS.replace("[python, t.py]", json.dumps(["bash", "-c", text]))), "f").arguments

    commands = json.loads(*shlex.split(of(f"torchrun t.py {word}")["script_args"]))
    assert shlex.split(commands["worker"]) == ["bash", "-c", f"exec python t.py {word}"]
    assert of(f"torchrun t.py '{word}'")["script_args"] == shlex.quote(word)
    assert of(f"python t.py {word}")["script"] == "@command"
    assert of(f"python t.py '{word}'")["script"] == "t.py"

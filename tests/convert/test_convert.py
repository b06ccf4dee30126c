"""Other systems' jobs as Workflows with our train step: what is carried, what is listed, what is refused."""

import ast
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.cli.main import main
from everstep.convert import ConvertError, convert
from everstep.convert.workflow import pipeline_of, workflow_of
from everstep.steps.train.config import Config
from everstep.steps.train.script import COMMAND
from tests.convert.stand_ins import HEAD, JOBS, POD
from tests.harness import ROOT

EACH = sorted(JOBS.glob("*.yaml"))


def arguments_of(name: str) -> dict[str, Any]:
    path = JOBS / f"{name}.yaml"
    return convert(path.read_text(), str(path)).arguments


def train_template(name: str) -> dict[str, Any]:
    path = JOBS / f"{name}.yaml"
    return workflow_of(convert(path.read_text(), str(path)), "store")["spec"]["templates"][1]


@pytest.mark.parametrize("path", EACH, ids=lambda path: path.stem)
def test_each_kind_converts_and_is_linted_clean(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(path)]) == 0
    (workflow := tmp_path / "workflow.yaml").write_text(capsys.readouterr().out)
    assert main(["workflow", "lint", str(workflow)]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().err


@pytest.mark.parametrize("path", EACH, ids=lambda path: path.stem)
def test_the_python_pipeline_has_the_same_task(path: Path) -> None:
    conversion = convert(path.read_text(), str(path))
    names: dict[str, Any] = {"__name__": "pipeline"}
    exec(compile(pipeline_of(conversion), "pipeline.py", "exec"), names)
    manifest = names["build"](names["Config"]()).to_dict()
    main_template = next(template for template in manifest["spec"]["templates"] if template["name"] == "main")
    arguments_written = {
        parameter["name"]: parameter["value"]
        for parameter in main_template["dag"]["tasks"][0]["arguments"]["parameters"]
    }
    del arguments_written["seed"]
    (task,) = workflow_of(conversion, "store")["spec"]["templates"][0]["dag"]["tasks"]
    arguments_expected = {
        parameter["name"]: parameter["value"]
        for parameter in task["arguments"]["parameters"]
        if parameter["name"] not in ("store", "task")
    }
    assert {name: value.lower() for name, value in arguments_written.items()} == {
        k: v.lower() for k, v in arguments_expected.items()
    }


def test_an_image_for_the_python_pipeline_without_a_cluster_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text(pipeline_of(convert((JOBS / "elastic_job.yaml").read_text(), "f")))
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "pipeline.py", "--image", "registry.example/train:1"]
    ended = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        "python pipeline.py: --image: only for Argo, and the target is local (no ARGO_SERVER, no kube config): "
        "run without, or set ARGO_SERVER, or KUBECONFIG to a cluster with Argo\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.py"]


def test_nothing_in_a_strangers_file_becomes_code_of_the_pipeline() -> None:
    planted = json.dumps('"""\nimport os; os.abort()  #')
    text = (JOBS / "elastic_job.yaml").read_text()
    image = re.sub(r"image: .*", lambda _: f"image: {planted}", text)
    assert image != text
    tree = ast.parse(pipeline_of(convert(image, "f")))
    imported = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    assert imported == ["json", "everstep"]
    with pytest.raises(ConvertError, match=r"metadata\.name: .* is not a name for Kubernetes"):
        convert(text.replace("name: fine-tuning", f"name: {planted}", 1), "f")


GROUP = """\
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata: {name: gang}
spec: {minMember: MANY}
---
"""


def test_of_several_documents_the_only_job_is_converted_and_the_others_are_listed() -> None:
    job = (JOBS / "elastic_job.yaml").read_text()
    conversion = convert(f"{GROUP}{job}---\nkind: ConfigMap\n", "f")
    assert conversion.arguments == convert(job, "f").arguments
    line = (GROUP + job).count("\n") + 2
    made = "f:1: PodGroup gang: left out; --gang makes one for the job, of --min-nodes nodes"
    assert f"{made}; not carried: minMember" in conversion.notes
    assert f"f:{line}: ConfigMap: left out; create it as before" in conversion.notes
    for text, said in ((f"{job}---\n{job}", "f:1: 2 documents, of which 2 are jobs; give a file with one"),
                       (f"{GROUP}kind: ConfigMap", "f:1: 2 documents, of which 0 are jobs")):  # fmt: skip
        with pytest.raises(ConvertError, match=said):
            convert(text, "f")


@pytest.mark.parametrize(("many", "least"), [("3", 3), ("9", 4), ("0", 4), ("many", 4)])
def test_a_group_in_the_same_file_says_how_many_nodes_begin(many: str, least: int) -> None:
    job = (JOBS / "elastic_job.yaml").read_text().replace("--nnodes=2:$NODE_NUM ", "")
    roles = convert(GROUP.replace("MANY", many) + job, "f").arguments["job_spec"]["replicaSpecs"]
    assert (roles["worker"]["replicas"], roles["worker"]["minReplicas"]) == (4, least)


def test_a_launchers_flags_become_the_steps_arguments() -> None:
    assert arguments_of("elastic_job") == {
        "gang": "koordinator", "max_relaunches": 3, "network_check": True, "exclude_straggler": True, "max_restarts": 1,
        "script": "./train.py", "script_args": "data.json --epochs 5", "script_settings": False,
        "job_spec": {"replicaSpecs": {"worker": {
            "replicas": 4, "minReplicas": 2, "slots": 2,
            "resources": {"cpu": "8", "memory": "16Gi", "metax-tech.com/gpu": 8},
            "template": {
                "spec": {"schedulerName": "koord-scheduler", "containers": [{"imagePullPolicy": "Always"}]}
            },
        }}},
    }  # fmt: skip


def test_the_checks_of_a_switch_box_are_the_steps() -> None:
    flags = (
        "--network-check --switchbox-check --box-pairs 0:1 2:4 --min-bandwidth=900 --min-channels 1 --max_restarts=2"
    )
    text = (JOBS / "elastic_job.yaml").read_text().replace("--network-check", flags)
    arguments = convert(text, "f").arguments
    assert (arguments["switchbox_check"], arguments["box_pairs"]) == (True, "0:1 2:4")
    assert (arguments["min_bandwidth"], arguments["min_channels"], arguments["script"]) == (900, 1, "./train.py")


@pytest.mark.parametrize(("minimum", "least"), [("3", 3), ("9", 4), ("many", 2)])
def test_a_gangs_marks_are_the_steps_flags_and_its_own_pod_is_in_no_gang(minimum: str, least: int) -> None:
    mark, more = "gang.scheduling.koordinator.sh/min-available", "quota.scheduling.koordinator.sh/name: mine"
    name = "gang.scheduling.koordinator.sh/name: fine-tuning-gang"
    text = (JOBS / "elastic_job.yaml").read_text().replace(name, f'{name}\n            {mark}: "{minimum}"', 1)
    text = text.replace("          annotations:", f"          labels: {{{more}, team: a}}\n          annotations:")
    text = text.replace("--nnodes=2:$NODE_NUM ", "") if minimum != "many" else text
    conversion = convert(text, "f")
    assert (conversion.arguments["gang"], conversion.arguments["queue"]) == ("koordinator", "mine")
    assert f"f: {mark}={minimum}: no counterpart; nearest: the gang is of --min-nodes nodes" in conversion.notes
    (worker,) = conversion.arguments["job_spec"]["replicaSpecs"].values()
    assert worker["minReplicas"] == least
    assert worker["template"]["metadata"]["labels"] == {"team": "a"}
    assert "koordinator" not in str(worker["template"]["metadata"])
    assert "koordinator" not in str(workflow_of(conversion, "store")["spec"]["templates"][1].get("metadata"))


def test_nodes_have_the_labels_and_annotations_of_the_jobs_pods() -> None:
    plain = convert(HEAD + f"  replicaSpecs: {{worker: {{{POD}}}}}", "f")
    assert "job_spec" not in plain.arguments
    metadata = "template: {metadata: {labels: {team: a}}, spec:"
    roles = convert(HEAD + f"  replicaSpecs: {{worker: {{{POD.replace('template: {spec:', metadata)}}}}}", "f")
    assert roles.arguments["job_spec"]["replicaSpecs"]["worker"]["template"] == {"metadata": {"labels": {"team": "a"}}}


def test_roles_keep_their_commands_resources_and_policies() -> None:
    servers = arguments_of("parameter_servers")
    assert servers["script"] == COMMAND
    commands = json.loads(*shlex.split(servers["script_args"]))
    assert commands == {
        "chief": "python -m trainer --chief",
        "worker": "python -m trainer",
        "ps": "python -m trainer --ps",
    }
    assert servers["job_spec"]["replicaSpecs"]["ps"]["resources"] == {"memory": "8Gi"}
    assert servers["job_spec"]["frameworkType"] == "tensorflow"
    assert servers["job_spec"]["replicaSpecs"]["ps"]["completePolicy"] == "None"
    horovod = arguments_of("ai_training_job")["job_spec"]
    assert (horovod["completePolicy"], horovod["cleanPodPolicy"]) == ("Any", "None")
    assert horovod["frameworkType"] == "horovod"
    (commands,) = shlex.split(arguments_of("ai_training_job")["script_args"])
    assert "--host-discovery-script ${EVERSTEP_DISCOVERY_SCRIPT} " in json.loads(commands)["launcher"]
    launcher, trainer = horovod["replicaSpecs"]["launcher"], horovod["replicaSpecs"]["trainer"]
    assert launcher["faultTolerantPolicy"][0]["exitCodes"] == [129, 101]
    assert trainer["faultTolerantPolicy"][0]["exceptionalEvent"] == ["nodeNotReady", "PodForceDeleted"]
    assert (trainer["replicas"], trainer["minReplicas"], trainer["maxReplicas"]) == (3, 1, 5)
    assert (launcher["restartPolicy"], trainer["restartPolicy"]) == ("OnNodeFailWithExitCode",) * 2


def test_what_other_roles_pods_have_otherwise_is_their_template() -> None:
    text = (JOBS / "parameter_servers.yaml").read_text()
    one = 'containers: [{image: "registry.example/tf:1", command: [python, -m, trainer]}]'
    other = (
        'containers: [{image: "registry.example/tf:2", command: [python, -m, trainer], env: [{name: A, value: "1"}]}]'
    )
    assert one in text
    roles = convert(text.replace(one, other), "j.yaml").arguments["job_spec"]["replicaSpecs"]
    container = {"image": "registry.example/tf:2", "env": [{"name": "A", "value": "1"}]}
    assert roles["worker"]["template"] == {"spec": {"containers": [container]}}
    assert "template" not in roles["ps"]


def test_what_the_first_roles_pod_has_is_its_own() -> None:
    roles = arguments_of("ai_training_job")["job_spec"]["replicaSpecs"]
    own_spec = {
        "schedulerName": "volcano",
        "dnsPolicy": "ClusterFirstWithHostNet",
        "terminationGracePeriodSeconds": 30,
        "containers": [{"imagePullPolicy": "Always"}],
    }
    assert roles["launcher"]["template"] == {"spec": own_spec}
    variable = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
    assert roles["trainer"]["template"] == {"spec": {"containers": [{"env": [variable]}]}}


def test_a_job_that_tolerates_no_fault_restarts_nothing_and_keeps_its_priority() -> None:
    text = (JOBS / "ai_training_job.yaml").read_text()
    text = text.replace("faultTolerant: true", "faultTolerant: false").replace("priority: normal", "priority: high")
    conversion = convert(text.replace("      restartPolicy: OnNodeFailWithExitCode\n", ""), "j.yaml").arguments
    assert conversion["priority_class"] == "high"
    assert {role["restartPolicy"] for role in conversion["job_spec"]["replicaSpecs"].values()} == {"Never"}


def test_a_policy_of_exit_codes_that_names_none_restarts_nothing_and_that_is_said() -> None:
    text = (JOBS / "ai_training_job.yaml").read_text()
    lines = [line for line in text.splitlines() if "exitCodes" not in line]
    line = lines.index("      restartPolicy: OnNodeFailWithExitCode") + 1
    conversion = convert("\n".join(lines).replace("OnNodeFailWithExitCode", "ExitCode", 1), "j.yaml")
    assert f"j.yaml:{line}: spec.replicaSpecs.launcher.restartPolicy: ExitCode without a rule" in "\n".join(
        conversion.notes
    )
    assert conversion.arguments["job_spec"]["replicaSpecs"]["launcher"]["restartPolicy"] == "Never"


def test_a_time_limit_and_a_scheduler_are_the_job_specs() -> None:
    text = (JOBS / "ai_training_job.yaml").read_text()
    text = text.replace("  priority: normal", "  timeLimit: 3600\n  schedulerName: mine")
    spec = convert(text, "j.yaml").arguments["job_spec"]
    assert (spec["timeLimit"], spec["schedulerName"]) == (3600, "mine")


def test_sizes_of_each_kind() -> None:
    volcano = arguments_of("volcano_job")
    assert (volcano["gang"], volcano["queue"]) == ("volcano", "default")
    assert volcano["job_spec"]["replicaSpecs"]["nginx"] == {"replicas": 4, "minReplicas": 2, "slots": 1}
    pytorch = arguments_of("pytorch_job")
    worker = pytorch["job_spec"]["replicaSpecs"]["worker"]
    assert {name: value for name, value in worker.items() if name != "template"} == {
        "replicas": 10, "minReplicas": 5, "slots": 4,
    }  # fmt: skip
    assert (pytorch["max_restarts"], pytorch["max_relaunches"], pytorch["global_batch"]) == (7, 6, 40)
    train = arguments_of("train_job")["job_spec"]["replicaSpecs"]["worker"]
    assert train == {"replicas": 3, "minReplicas": 3, "slots": 2, "resources": {"cpu": 4, "memory": "8Gi"}}
    ray = arguments_of("ray_job")
    assert ray["job_spec"]["replicaSpecs"]["worker"] == {"replicas": 2, "minReplicas": 1, "slots": 1, "maxReplicas": 5}


def test_a_tfjobs_roles_are_tensorflows_tasks_and_its_chiefs_end_is_its_own() -> None:
    job = arguments_of("tf_job")
    assert (job["script"], job["max_relaunches"], job["job_spec"]["frameworkType"]) == ("mnist.py", 4, "tensorflow")
    roles = job["job_spec"]["replicaSpecs"]
    assert {name: (role["replicas"], role["completePolicy"]) for name, role in roles.items()} == {
        "ps": (2, "None"), "chief": (1, "All"), "worker": (4, "None"),
    }  # fmt: skip
    assert [role.get("restartPolicy") for role in roles.values()] == [None, None, "OnNodeFailWithExitCode"]
    assert roles["worker"]["faultTolerantPolicy"] == [{"exitCodes": "128-255", "restartPolicy": "Always"}]
    text = re.sub(r"\n +restartPolicy: \w+", "", (JOBS / "tf_job.yaml").read_text())
    roles = convert(text, "f").arguments["job_spec"]["replicaSpecs"]
    assert {role["restartPolicy"] for role in roles.values()} == {"Never"}, "the default of a TFJob"
    text = (JOBS / "tf_job.yaml").read_text().replace("spec:\n", "spec:\n  successPolicy: AllWorkers\n", 1)
    assert convert(text, "f").arguments["job_spec"]["replicaSpecs"]["worker"]["completePolicy"] == "All"


def test_the_pod_is_the_roles_and_the_step_has_its_image_and_variables() -> None:
    (role,) = arguments_of("pytorch_job")["job_spec"]["replicaSpecs"].values()
    variables = [{"name": "LOGLEVEL", "value": "DEBUG"}]
    mounts = [{"name": "data", "mountPath": "/data"}]
    assert role["template"]["spec"] == {
        "nodeSelector": {"gpu": "a100"},
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "imagenet"}}],
        "containers": [{"env": variables, "workingDir": "/workspace", "volumeMounts": mounts}],
    }
    step = train_template("pytorch_job")
    assert (step["container"]["image"], step["container"]["env"]) == ("registry.example/imagenet:1", variables)
    assert "nodeSelector" not in step


def test_a_script_is_named_from_its_pods_folder() -> None:
    assert arguments_of("pytorch_job")["script"] == "/workspace/imagenet.py"
    assert arguments_of("train_job")["script"] == "/workspace/mnist.py"
    assert arguments_of("elastic_job")["script"] == "./train.py"


def test_the_step_has_no_device() -> None:
    assert "gpu" not in json.dumps(train_template("elastic_job")["container"]["resources"])
    assert "gpu" in json.dumps(arguments_of("elastic_job")["job_spec"])


def test_the_jobs_shared_memory_sizes_the_steps_own() -> None:
    template = train_template("ai_training_job")
    assert [volume["name"] for volume in template["volumes"]] == ["shared-memory"]
    assert template["volumes"][0]["emptyDir"]["sizeLimit"] == "1Gi"
    assert [mount["mountPath"] for mount in template["container"]["volumeMounts"]] == ["/dev/shm"]


def test_what_has_no_counterpart_is_listed_with_its_line_and_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    path = JOBS / "elastic_job.yaml"
    assert main(["convert", str(path)]) == 0
    error_text = capsys.readouterr().err
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "autoScale" in text)
    assert (
        f"{path}:{line}: spec.replicaSpecs.worker.autoScale: no counterpart; nearest: everstep scale RUN" in error_text
    )
    assert "the launcher's --rdzv_conf pend_timeout=600: no counterpart" in error_text
    assert "optimizeMode" not in error_text


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("a: [1}", "f:1: not YAML"),
        ("- 1", "f:1: not a mapping"),
        ("", "f:1: 0 documents, of which 0 are jobs"),
        ("kind: Deployment\napiVersion: apps/v1", "f:1: kind: Deployment is not known; known are ElasticJob"),
        ("kind: Job\napiVersion: batch/v1", "f:2: apiVersion: batch/v1 is not known for Job; known is batch.v"),
        ("kind: PyTorchJob\napiVersion: kubeflow.org/v9", "f:2: apiVersion: kubeflow.org/v9 is not known"),
        ("apiVersion: kubeflow.org/v1", "kind: missing"),
        ('kind: Job\napiVersion: "\\n"', "f:2: apiVersion: \\n is not known for Job"),
        (f"{HEAD}  distributionStrategy: Custom", "f:5: spec.distributionStrategy: Custom is not supported"),
        (f"{HEAD}  replicaSpecs: {{worker: {{replicas: many, {POD}}}}}", "f:5: spec.replicaSpecs.worker.replicas: 'm"),
        (f"{HEAD}  replicaSpecs: {{worker: {{replicas: 0, {POD}}}}}", "worker.replicas: 0 must be at least 1"),
        (f"{HEAD}  replicaSpecs: {{worker: {{replicas: true, {POD}}}}}", "worker.replicas: True is not a whole number"),
        (f"{HEAD}  replicaSpecs: {{worker: {{replicas: 1.5, {POD}}}}}", "worker.replicas: 1.5 is not a whole number"),
        (f"{HEAD}  replicaSpecs: {{worker: 3}}", "spec.replicaSpecs.worker: 3 is not a mapping"),
        (f"{HEAD}  replicaSpecs: {{worker: {{}}}}", "worker.template.spec.containers: missing"),
        (f"{HEAD}  replicaSpecs: []", "f:5: spec.replicaSpecs: [] is not a mapping"),
        (f"{HEAD}  optimizeMode: a\n  optimizeMode: b", "f:6: spec.optimizeMode: appears twice"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_with_file_line_and_field(text: str, expected_text: str) -> None:
    with pytest.raises(ConvertError) as raised:
        convert(text, "f")
    assert expected_text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_policy_that_the_job_spec_refuses_is_named_by_the_line_of_the_source() -> None:
    text = (
        (JOBS / "ai_training_job.yaml")
        .read_text()
        .replace("restartScope: Pod\n      restartTimeLimit", "restartScope: Rack\n      restartTimeLimit", 1)
    )
    line = text[: text.index("Rack")].count("\n") + 1
    with pytest.raises(ConvertError, match=rf"f:{line}: spec\.replicaSpecs\.launcher\.restartScope: 'Rack' is not"):
        convert(text, "f")


LIVE = """\
metadata:
  name: fine-tuning
  labels: {team: a, kueue.x-k8s.io/queue-name: research}
  annotations: {kubectl.kubernetes.io/last-applied-configuration: "{}", note: "it's ours"}
  creationTimestamp: "2026-01-01T00:00:00Z"
  generation: 2
  managedFields: [{manager: kubectl, operation: Update}]
  resourceVersion: "7"
  uid: 0f9c
"""


def test_a_job_as_a_cluster_shows_it_has_its_labels_and_nothing_of_the_clusters(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = (JOBS / "pytorch_job.yaml").read_text().replace("metadata: {name: elastic-imagenet}\n", LIVE)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{job}status: {{conditions: []}}\n"))
    assert main(["convert", "-"]) == 0
    said = capsys.readouterr()
    assert "metadata" not in said.err
    metadata = {"labels": {"team": "a"}, "annotations": {"note": "it's ours"}}
    assert yaml.safe_load(said.out)["metadata"] == {"generateName": "fine-tuning-", **metadata}
    conversion = convert(job, "f")
    assert (conversion.arguments["gang"], conversion.arguments["queue"]) == ("kueue", "research")
    names: dict[str, Any] = {"__name__": "pipeline"}
    exec(compile(pipeline_of(conversion), "pipeline.py", "exec"), names)
    manifest = names["build"](names["Config"]()).to_dict()["metadata"]
    assert {name: manifest[name] for name in metadata} == metadata


def test_nothing_in_a_strangers_file_acts_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = (JOBS / "elastic_job.yaml").read_text()
    planted = job.replace('"dlrover-run', r""" "echo '\e]0;planted\a' && dlrover-run""")
    assert planted != job
    (file := tmp_path / "job.yaml").write_text(planted)
    assert main(["convert", str(file)]) == 0
    said = capsys.readouterr().err
    assert r"the command's `echo '\x1b]0;planted\x07'` is left out" in said
    assert "\x1b" not in said


def test_bad_input_ends_the_command_with_2_and_prints_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file := tmp_path / "x.yaml").write_text("kind: Nothing")
    assert main(["convert", str(file)]) == 2
    assert main(["convert", str(tmp_path / "none.yaml")]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert [line.startswith("everstep convert: ") for line in output.err.splitlines()] == [True, True]


def test_a_role_runs_its_own_command(tmp_path: Path) -> None:
    script = Config(script=COMMAND).script_path()
    commands = json.dumps({"chief": "echo a chief", "worker": "sh -c 'echo $RANK of workers'"})

    def run(role: str, text: str = commands) -> subprocess.CompletedProcess[str]:
        variables = {
            "ROLE_NAME": role,
            "RANK": "3",
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        return subprocess.run(
            [sys.executable, str(script), text], env=variables, capture_output=True, text=True, check=False
        )

    assert run("chief").stdout == "a chief\n"
    assert run("worker").stdout == "3 of workers\n"
    assert "no-such-command: No such file" in run("worker", '{"worker": "no-such-command"}').stderr
    assert run("worker", "nonsense").returncode == 2

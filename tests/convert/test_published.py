"""Jobs in the shapes in which these systems' projects publish them: each converts, both ways, and what is listed is
exactly what has no counterpart."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from everstep.cli.main import main
from everstep.convert import Conversion, convert
from everstep.convert.workflow import pipeline_of, workflow_of
from everstep.steps.train.script import COMMAND
from tests.convert.stand_ins import PYTHON, ranks_in, run_converted

PUBLISHED = Path(__file__).with_name("published")
EACH = sorted(PUBLISHED.glob("*.yaml"))
SECRETS = Path(__file__).with_name("secrets.yaml")
"""What a cluster has of those that the jobs name."""
IMAGE = {"train_llm_initializers": "registry.example/own:1"}
"""Of a job that leaves it to its runtime."""
LISTED: dict[str, set[str]] = {
    "aitraining_pytorch": {
        "metadata.namespace",
        "spec.plugin",
        "spec.replicaSpecs.trainer.template.spec.restartPolicy",
    },
    "dlrover_deepctr": {
        "metadata.namespace",
        "spec.brainService",
        "spec.enableElasticScheduling",
        "spec.enableDynamicSharding",
        "spec.resourceLimits",
        "spec.replicaSpecs.ps.autoScale",
        "spec.replicaSpecs.ps.priority",
        "spec.optimizeMode",
        "spec.replicaSpecs.ps.template.spec.restartPolicy",
        "spec.replicaSpecs.chief.template.spec.restartPolicy",
        "spec.replicaSpecs.worker.template.spec.restartPolicy",
    },
    "dlrover_torch_mnist": {
        "metadata.namespace",
        "spec.envs",
        "spec.replicaSpecs.dlrover-master",
        "spec.replicaSpecs.worker.template.spec.containers[0].resources.requests.cpu",
        "spec.replicaSpecs.worker.template.spec.containers[0].resources.requests.memory",
    },
    "pytorch_elastic_c10d": {
        "spec.pytorchReplicaSpecs.Worker.template.spec.initContainers",
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].ports",
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].resources",
        "spec.elasticPolicy.rdzvConf[3]",
        "spec.elasticPolicy.rdzvConf[4]",
    },
    "pytorch_elastic_etcd": {
        "spec.elasticPolicy.metrics",
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].resources",
        "spec.elasticPolicy.rdzvConf[2]",
    },
    "pytorch_fsdp_llm": {
        "spec.pytorchReplicaSpecs.Worker.template.spec.serviceAccountName",
        "spec.pytorchReplicaSpecs.Master.template.spec.serviceAccountName",
    },
    "pytorch_mnist_gloo": {
        "spec.pytorchReplicaSpecs.Master.template.spec.containers[0].resources",
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].resources",
    },
    "pytorch_simple": {
        "metadata.namespace",
        "spec.runPolicy.schedulingPolicy.scheduleTimeoutSeconds",
        "spec.pytorchReplicaSpecs.Master.template.spec.containers[0].ports",
        "spec.pytorchReplicaSpecs.Worker.template.spec.containers[0].ports",
    },
    "ray_head_only": {
        "spec.jobId",
        "spec.submitterPodTemplate",
        "spec.rayClusterSpec.rayVersion",
        "spec.rayClusterSpec.workerGroupSpecs[0]",
        "spec.rayClusterSpec.headGroupSpec.template.spec.containers[0].resources.requests.cpu",
        "spec.runtimeEnvYAML",
    },
    "ray_text_classifier": {
        "spec.submissionMode",
        "spec.shutdownAfterJobFinishes",
        "spec.rayClusterSpec.rayVersion",
        "spec.rayClusterSpec.headGroupSpec",
        "spec.rayClusterSpec.workerGroupSpecs[0].template.spec.containers[0].lifecycle",
        "spec.runtimeEnvYAML",
    },
    "train_llm_initializers": {
        "metadata.namespace",
        "spec.runtimeRef",
        "spec.initializer",
    },
    "train_overrides": {
        "spec.managedBy",
        "spec.runtimeRef",
        "spec.podTemplateOverrides[0].spec.serviceAccountName",
        "spec.trainer.resourcesPerNode.requests.memory",
    },
    "volcano_mpi": {
        "spec.plugins.ssh",
        "spec.tasks[0].template.spec.containers[0].ports",
        "spec.tasks[0].template.spec.restartPolicy",
        "spec.tasks[1].template.spec.containers[0].ports",
        "spec.tasks[1].template.spec.restartPolicy",
        "spec.plugins.svc",
        "spec.tasks[0].template.spec.containers[0].resources",
        "spec.tasks[1].template.spec.containers[0].resources",
    },
    "volcano_pytorch_plugin": {
        "spec.minAvailable",
        "spec.policies",
        "spec.tasks[0].template.spec.restartPolicy",
        "spec.tasks[1].template.spec.restartPolicy",
        "spec.tasks[0].template.spec.containers[0].resources",
        "spec.tasks[1].template.spec.containers[0].resources",
        "spec.volumes[1].volumeClaim",
    },
    "volcano_tensorflow": {
        "spec.policies",
        "spec.tasks[0].template.spec.containers[0].ports",
        "spec.tasks[0].template.spec.restartPolicy",
        "spec.tasks[1].template.spec.restartPolicy",
        "spec.plugins.svc",
        "spec.tasks[0].template.spec.containers[0].resources",
        "spec.tasks[1].template.spec.containers[0].resources",
    },
}
"""The fields of each that are listed; everything else is carried."""
FIELD = re.compile(r"f:\d+: ([\w.\[\]-]+): ")


def converted(path: Path) -> Conversion:
    return convert(path.read_text(), "f", IMAGE.get(path.stem, ""))


def commands_of(name: str) -> dict[str, list[str]]:
    """Each role's, of a job whose workers run commands."""
    arguments = converted(PUBLISHED / f"{name}.yaml").arguments
    assert arguments["script"] == COMMAND
    commands: dict[str, str] = json.loads(*shlex.split(arguments["script_args"]))
    return {role: shlex.split(command) for role, command in commands.items()}


def roles_of(name: str) -> dict[str, Any]:
    return converted(PUBLISHED / f"{name}.yaml").arguments["job_spec"]["replicaSpecs"]


@pytest.mark.parametrize("path", EACH, ids=lambda path: path.stem)
def test_what_is_listed_is_what_has_no_counterpart_and_each_has_a_nearest(path: Path) -> None:
    notes = converted(path).notes
    assert {match[1] for note in notes if (match := FIELD.match(note))} == LISTED[path.stem]
    assert not [note for note in notes if "edit the Workflow" in note]


@pytest.mark.parametrize("path", EACH, ids=lambda path: path.stem)
def test_the_workflow_is_linted_clean_for_here_and_for_a_cluster(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = ["--image", IMAGE[path.stem]] if path.stem in IMAGE else []
    file = tmp_path / "workflow.yaml"
    for store, target in ((["--store", "s3://ml/x"], ["--target", "argo"]), ([], [])):
        assert main(["convert", str(path), *image, *store]) == 0
        file.write_text(capsys.readouterr().out)
        assert main(["workflow", "lint", str(file), *target, "--with", str(SECRETS)]) == 0
        said = capsys.readouterr().err
    assert "0 errors, 0 warnings" in said


@pytest.mark.parametrize("path", EACH, ids=lambda path: path.stem)
def test_the_pipeline_is_the_same_workflow(path: Path) -> None:
    conversion = converted(path)
    names: dict[str, Any] = {"__name__": "pipeline"}
    exec(compile(pipeline_of(conversion), "pipeline.py", "exec"), names)
    pipeline = names["build"](names["Config"]()).to_dict()
    workflow = workflow_of(conversion, "store")

    def task(manifest: dict[str, Any]) -> dict[str, str]:
        templates = {template["name"]: template for template in manifest["spec"]["templates"]}
        parameters = templates["main"]["dag"]["tasks"][0]["arguments"]["parameters"]
        return {entry["name"]: entry["value"].lower() for entry in parameters if entry["name"] not in ("seed", "store")}

    assert task(pipeline) == task(workflow)
    for name in ("imagePullSecrets", "volumeClaimTemplates", "activeDeadlineSeconds", "ttlStrategy"):
        assert pipeline["spec"].get(name) == workflow["spec"].get(name)
    for name in ("labels", "annotations"):
        assert pipeline["metadata"].get(name) == workflow["metadata"].get(name)


def test_what_a_pods_own_variables_say_is_filled_in_by_its_workers() -> None:
    (llm,) = commands_of("pytorch_fsdp_llm").values()
    assert llm[:2] == ["bash", "-c"]
    assert llm[2].startswith("exec python finetune.py --model /models/llama-3-8b ")
    assert '--hf_token "${HF_TOKEN}" --run-name "$(hostname)-${NODE_NAME}"' in llm[2]
    (node,) = roles_of("pytorch_fsdp_llm").values()
    assert (node["replicas"], node["slots"]) == (4, 8)
    assert node["template"]["spec"]["containers"][0]["workingDir"] == "/workspace/llm"
    (simple,) = commands_of("pytorch_simple").values()
    assert simple[2].endswith('mnist.py --epochs=1 --run="$POD_NAME"')
    (mnist,) = commands_of("dlrover_torch_mnist").values()
    assert mnist[2].endswith("--save_model --log_dir /nas/$POD_NAME")


def test_patience_is_that_of_the_rendezvous() -> None:
    each = {name: converted(PUBLISHED / f"{name}.yaml").arguments["job_spec"]["patience"] for name in
            ("pytorch_elastic_c10d", "pytorch_elastic_etcd", "dlrover_torch_mnist")}  # fmt: skip
    assert each == {
        "pytorch_elastic_c10d": {"joinTimeout": 900, "silence": 30},
        "pytorch_elastic_etcd": {"joinTimeout": 1200, "joinWindow": 60},
        "dlrover_torch_mnist": {"joinTimeout": 300},
    }


def test_a_runtimes_program_that_is_not_known_is_told_and_not_guessed() -> None:
    for name in ("pytorch_mnist_gloo", "train_llm_initializers"):
        notes = converted(PUBLISHED / f"{name}.yaml").notes
        assert [note for note in notes if note.startswith("f: worker: it has arguments alone")]


def test_a_training_function_in_a_shells_text_trains_with_the_others() -> None:
    (command,) = commands_of("train_overrides").values()
    prepares, text, *runs = command[:3], *command[3:]
    assert prepares == ["python", "-m", "everstep.prepare_once"]
    assert text.startswith("pip install --no-cache-dir torchvision==0.22\nread -r -d '' SCRIPT << EOM\n")
    assert runs == ["bash", "-c", 'exec python "train.py"']


def test_a_launcher_that_stays_in_a_shells_text_is_told() -> None:
    notes = converted(PUBLISHED / "volcano_mpi.yaml").notes
    assert [note for note in notes if "starts processes of its own, each alone" in note]


RANKS = {
    "aitraining_pytorch": 2, "dlrover_torch_mnist": 2, "pytorch_elastic_c10d": 4, "pytorch_elastic_etcd": 2,
    "pytorch_fsdp_llm": 3, "pytorch_simple": 3, "ray_head_only": 1, "ray_text_classifier": 2,
    "volcano_pytorch_plugin": 3,
}  # fmt: skip
"""Of jobs whose programs are scripts, once they are smaller."""
NOT_HERE = {
    r"(/|examples/)\S+/(?=\w+\.py)": "", r"cd \S+( &&|\n)": "", "--network-check --exclude-straggler": "",
    "--nnodes=3:": "--nnodes=1:", "--nproc_per_node=2": "--nproc_per_node=1",
}  # fmt: skip
"""Folders of its image, and more processes than two cores take."""
FILLED_IN = {"pytorch_fsdp_llm": "'--hf_token', 'a token', ", "pytorch_simple": "'--run=converted-train-"}
"""What a script is given of what only the pod knows."""
OF_THE_IMAGE = ("resources", "resourcesPerNode", "workingDir", "nprocPerNode")
COUNTS = ("replicas", "maxReplicas", "minAvailable")


def smaller(value: Any) -> Any:
    """At most two nodes of each kind, which ask for nothing."""
    if isinstance(value, list):
        return [smaller(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    kept = {name: inner for name, inner in value.items() if name not in OF_THE_IMAGE}
    return {name: min(inner, 2) if name in COUNTS else smaller(inner) for name, inner in kept.items()}


@pytest.mark.long
@pytest.mark.parametrize("name", RANKS)
def test_it_runs_here_with_a_stand_in_for_its_script(name: str, tmp_path: Path) -> None:
    text = (PUBLISHED / f"{name}.yaml").read_text()
    for pattern, instead in NOT_HERE.items():
        text = re.sub(pattern, instead, text)
    job = next(iter(yaml.safe_load_all(text)))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(smaller(job)))
    logs = run_converted(tmp_path, {"python": PYTHON}, re.findall(r"\w+\.py", text), "--with", str(SECRETS))
    assert ranks_in(logs) == RANKS[name], logs[-5000:]
    assert FILLED_IN.get(name, "") in logs

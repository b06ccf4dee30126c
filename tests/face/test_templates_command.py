"""`everstep templates`, what is committed of it, and a workflow of somebody else's that calls the steps."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from everstep.cli.main import main
from everstep.runtime.submission.manifest import NEEDED_KEYS

ROOT = Path(__file__).parents[2]
FILES = ROOT / "templates" / "chart" / "files"
SPARKS = "{{=inputs.parameters['spark-master'] startsWith 'k8s://' ? '-spark' : ''}}"
STEPS = {"model", "corpus", "preprocess", "check", "train", "evaluate", "report"}


def rendered_templates(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    """What the command prints."""
    assert main(["templates", *flags]) == 0
    return capsys.readouterr().out


def test_the_chart_has_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """To mend: everstep templates > templates/chart/files/steps.yaml."""
    assert (FILES / "steps.yaml").read_text() == rendered_templates(capsys)


def test_the_train_step_exports_its_gauges_where_they_are_not_empty(capsys: pytest.CaptureFixture[str]) -> None:
    templates = [document["spec"]["templates"][0] for document in yaml.safe_load_all(rendered_templates(capsys))]
    (train,) = [template for template in templates if template["name"] == "train"]
    gauges = {metric["name"]: metric["gauge"]["value"] for metric in train["metrics"]["prometheus"]}
    outputs = {parameter["name"] for parameter in train["outputs"]["parameters"]}
    for name in ("loss", "restarts", "goodput", "tokens_per_second"):
        flag = name.replace("_", "-")
        assert gauges.pop(f"everstep_train_{name}") == f"{{{{outputs.parameters.{flag}}}}}"
        assert flag in outputs
    assert gauges == {}


def test_image_account_and_secret_are_the_ones_given(capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered_templates(
        capsys, "--image", "r.example/e:2", "--service-account", "trainer", "--store-secret", "keys"
    )
    for manifest in yaml.safe_load_all(text):
        (template,) = manifest["spec"]["templates"]
        assert template["container"]["image"] == "r.example/e:2"
        account = {"train": "trainer-train", "check": "trainer-train", "preprocess": f"trainer{SPARKS}"}
        assert template["serviceAccountName"] == account.get(template["name"], "trainer")
        assert "everstep/account" not in str(manifest)
    assert "everstep:0.1.0" not in text
    assert "everstep-store" not in text


def test_the_pull_policy_is_the_one_given(capsys: pytest.CaptureFixture[str]) -> None:
    for manifest in yaml.safe_load_all(rendered_templates(capsys, "--image-pull-policy", "Always")):
        (template,) = manifest["spec"]["templates"]
        assert template["container"]["imagePullPolicy"] == "Always"
    with pytest.raises(SystemExit) as ended:
        main(["templates", "--image-pull-policy", "Sometimes"])
    assert ended.value.code == 2


def test_each_needs_of_its_caller_only_what_it_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    """A variable `workflow.parameters.*` or `workflow.status` would be refused in a workflow that has it not."""
    for manifest in yaml.safe_load_all(rendered_templates(capsys, "--store-secret", "")):
        text = json.dumps(manifest)
        (template,) = manifest["spec"]["templates"]
        for variable in ("{{workflow.parameters", "{{workflow.status", "{{workflow.failures", "{{workflow.duration"):
            assert variable not in text
        assert text.count("secretKeyRef") == (template["name"] == "train"), "its job's token"
        assert manifest["spec"]["entrypoint"] == template["name"]
        parameter_names = {parameter["name"] for parameter in manifest["spec"]["arguments"]["parameters"]}
        assert parameter_names == {parameter["name"] for parameter in template["inputs"]["parameters"]} >= {"store"}


CALLERS = {"store", "status", "failures", "duration"}
"""Parameters that only a caller knows."""


def test_each_can_be_submitted_alone_because_its_arguments_have_values(capsys: pytest.CaptureFixture[str]) -> None:
    for manifest in yaml.safe_load_all(rendered_templates(capsys)):
        (template,) = manifest["spec"]["templates"]
        arguments = {parameter["name"]: parameter for parameter in manifest["spec"]["arguments"]["parameters"]}
        usual = {
            parameter["name"]: parameter["default"]
            for parameter in template["inputs"]["parameters"]
            if "default" in parameter
        }
        named = {"task": "train"} if template["name"] == "train" else {}  # By a call of it: its job is called so.
        values = {name: argument["value"] for name, argument in arguments.items() if "value" in argument}
        assert values == usual | named
        assert named.keys() <= arguments.keys() - usual.keys() <= CALLERS | named.keys()
        assert not any("default" in argument for argument in arguments.values())


def test_the_lint_lets_anybodys_workflow_call_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks, parameter_names = [], set()
    for manifest in yaml.safe_load_all((FILES / "steps.yaml").read_text()):
        name = manifest["spec"]["entrypoint"]
        parameter_names.add(name)
        inputs = manifest["spec"]["templates"][0]["inputs"]["parameters"]
        parameters = [{"name": input_["name"], "value": "x"} for input_ in inputs if "default" not in input_]
        reference = {"name": manifest["metadata"]["name"], "template": name}
        tasks.append({"name": name, "templateRef": reference, "arguments": {"parameters": parameters}})
    assert parameter_names == STEPS
    spec = {"entrypoint": "main", "templates": [{"name": "main", "dag": {"tasks": tasks}}]}
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "theirs"}, "spec": spec}
    (tmp_path / "theirs.yaml").write_text(json.dumps(workflow))
    (tmp_path / "with").mkdir()
    shutil.copy(FILES / "steps.yaml", tmp_path / "with")
    keys = dict.fromkeys(NEEDED_KEYS, "eA==")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "everstep-store"}, "data": keys}
    (tmp_path / "with/secret.yaml").write_text(json.dumps(secret))
    words = ["workflow", "lint", str(tmp_path / "theirs.yaml"), "--with", str(tmp_path / "with")]
    assert main(words) == 0, capsys.readouterr()


def test_a_call_of_the_train_step_without_the_name_of_its_task_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two such calls in one workflow would share one job."""
    reference = {"name": "everstep-train", "template": "train"}
    call = {"templateRef": reference, "arguments": {"parameters": [{"name": "store", "value": "s"}]}}
    tasks = [{"name": name, **call} for name in ("first", "second")]
    spec = {"entrypoint": "main", "templates": [{"name": "main", "dag": {"tasks": tasks}}]}
    workflow = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": {"name": "theirs"}, "spec": spec}
    (tmp_path / "theirs.yaml").write_text(json.dumps(workflow))
    (tmp_path / "with").mkdir()
    (tmp_path / "with" / "steps.yaml").write_text(rendered_templates(capsys, "--store-secret", ""))
    assert main(["workflow", "lint", str(tmp_path / "theirs.yaml"), "--with", str(tmp_path / "with")]) != 0
    assert "inputs.parameters.task was not supplied" in capsys.readouterr().err


def test_anybodys_workflow_calls_them(tmp_path: Path) -> None:
    """The example beside the chart, as its first lines say."""
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(f"Water runs downhill, {number} days of the week. " * 40)
    command = [sys.executable, "-m", "everstep"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    printed = run("templates", "--store-secret=")
    (tmp_path / "with").mkdir()
    (tmp_path / "with" / "steps.yaml").write_text(printed.stdout)
    completed = run(
        "workflow", "run", str(ROOT / "templates" / "reuse.yaml"), "--name", "reuse", "--with", "with",
        "-p", f"store={tmp_path}/store", "-p", f"text={tmp_path}/*.txt",
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr + "".join(
        p.read_text() for p in (tmp_path / "runs").rglob("*.log")
    )
    nodes = json.loads((tmp_path / "runs" / "reuse" / "workflow.json").read_text())["status"]["nodes"].values()
    assert {n["displayName"]: n["phase"] for n in nodes}["tokenize"] == "Succeeded"

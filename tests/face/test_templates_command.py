"""`everstep templates`, and what lies rendered in templates/."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from everstep.cli import main
from runtime.submission.manifest import NEEDED_KEYS

FILES = Path(__file__).parents[2] / "templates/chart/files"
NEEDED = {
    "corpus": [],
    "model": [],
    "preprocess": ["input"],
    "check": [],
    "train": ["dataset"],
    "evaluate": [],
    "report": [],
}


def rendered(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    assert main(["templates", *flags]) == 0
    return capsys.readouterr().out


def test_the_chart_has_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert (FILES / "steps.yaml").read_text() == rendered(capsys)


def test_image_account_and_secret_are_the_ones_given(capsys: pytest.CaptureFixture[str]) -> None:
    text = rendered(capsys, "--image", "r.example/e:2", "--service-account", "trainer", "--store-secret", "keys")
    for document in yaml.safe_load_all(text):
        (template,) = document["spec"]["templates"]
        assert template["container"]["image"] == "r.example/e:2"
        assert template["serviceAccountName"] == "trainer"
    assert "everstep:0.1.0" not in text
    assert "everstep-store" not in text


def test_each_step_can_be_used_alone_by_anybodys_workflow(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = []
    for document in yaml.safe_load_all((FILES / "steps.yaml").read_text()):
        name = document["spec"]["entrypoint"]
        given = {"store": "s3://b/p", **dict.fromkeys(NEEDED[name], "s3://b/p/x")}
        reference = {"name": document["metadata"]["name"], "template": name}
        parameters = [{"name": key, "value": value} for key, value in given.items()]
        tasks.append({"name": name, "templateRef": reference, "arguments": {"parameters": parameters}})
    assert {task["name"] for task in tasks} == set(NEEDED)
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

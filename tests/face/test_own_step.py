"""`everstep.step`: a dataclass and a function in a user's own package become a step."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hera.workflows import DAG, Workflow

import everstep
from everstep.errors import BadInput
from everstep.runtime.submission import ClusterOptions, for_argo
from everstep.runtime.workflow.lint.lint import findings
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.yaml_source import Document
from everstep.version import IMAGE
from tests.harness import ROOT

SCORE = '''
from dataclasses import dataclass
from pathlib import Path

import everstep
from everstep.errors import BadInput


@dataclass(frozen=True)
class Config:
    """Count the words of a text."""

    text: str = ""
    """The text."""
    least: int = 1
    """Fewer words are an error."""

    def check(self) -> None:
        if self.least < 0:
            raise BadInput(f"--least {self.least}: must be at least 0")


@everstep.step(outputs=("words",), artifacts=("list.txt",), cpu=0.5, memory="256Mi", image="mine:1")
def count_words(config: Config) -> dict[str, object]:
    """Counts words.

    One artifact has them all.
    """
    words = config.text.split()
    if len(words) < config.least:
        raise BadInput(f"--text {config.text!r}: has {len(words)} words")
    everstep.progress(len(words), len(words), "all counted")
    listed = Path(config.outputs, "list.txt")
    listed.parent.mkdir(parents=True, exist_ok=True)
    listed.write_text("\\n".join(words))
    return {"words": len(words), "list.txt": listed}


if __name__ == "__main__":
    count_words.main()
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The user's module `mine.counting`."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "counting.py").write_text(SCORE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("mine.counting")
    for name in ("mine", "mine.counting"):
        sys.modules.pop(name, None)


def call(
    folder: Path, *flags: str, module: str = "mine.counting", **variables: str
) -> subprocess.CompletedProcess[str]:
    """The step as its pod runs it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT))), **variables}
    words = [sys.executable, "-m", module, *flags, "--store", "store", "--outputs", "out"]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_the_fields_are_inputs_of_the_template_and_its_outputs_attributes_of_the_task(package: Any) -> None:
    arguments = {"store": "runs/store"}
    with Workflow(generate_name="own-", entrypoint="main", arguments=arguments) as workflow, DAG(name="main"):
        task = package.count_words.task("count", text="a b")
    assert task.words == "{{tasks.count.outputs.parameters.words}}"
    with pytest.raises(AttributeError, match="has no output letters"):
        _ = task.letters
    built = workflow.to_dict()
    assert [finding.text for finding in findings(Document(built, ""), Library())] == []
    (template,) = [template for template in built["spec"]["templates"] if template["name"] == "count-words"]
    inputs = {parameter["name"]: parameter.get("description") for parameter in template["inputs"]["parameters"]}
    assert inputs == {
        "text": "The text.",
        "least": "Fewer words are an error.",
        "task": "Name of the task in that run.",
    }
    assert template["container"]["image"] == "mine:1"
    assert template["container"]["command"] == ["python", "-m", "mine.counting"]
    assert [parameter["name"] for parameter in template["outputs"]["parameters"]] == ["words"]
    assert [artifact["path"] for artifact in template["outputs"]["artifacts"]] == ["/tmp/outputs/list.txt"]
    assert template["metadata"]["annotations"]["workflows.argoproj.io/description"] == (
        "Counts words. One artifact has them all."
    )


def test_on_a_cluster_it_keeps_its_image_and_gets_the_stores_keys_as_the_other_steps_do(package: Any) -> None:
    arguments = {"store": "s3://b/p"}
    with Workflow(generate_name="own-", entrypoint="main", arguments=arguments) as workflow, DAG(name="main"):
        package.count_words.task("count", text="a b")
    options = ClusterOptions("registry/everstep:1", "runner", store_secret="keys")
    spec = for_argo(workflow.to_dict(), "own-1", "ml", options, IMAGE)["spec"]
    (template,) = [template for template in spec["templates"] if template["name"] == "count-words"]
    container = template["container"]
    secrets = {entry["name"]: entry["valueFrom"].get("secretKeyRef", {}).get("name") for entry in container["env"]}
    assert container["image"] == "mine:1"
    assert (secrets["AWS_SECRET_ACCESS_KEY"], secrets["MINIO_ENDPOINT"]) == ("keys", "keys")
    assert template["serviceAccountName"] == "runner"


def test_two_tasks_of_a_step_share_its_template(package: Any) -> None:
    with Workflow(generate_name="own-", entrypoint="main", arguments={"store": "s"}) as workflow, DAG(name="main"):
        count = package.count_words.task(text="a b")
        count >> package.count_words.task("again", text=count.words)
    built = workflow.to_dict()
    assert [finding.text for finding in findings(Document(built, ""), Library())] == []
    assert [template["name"] for template in built["spec"]["templates"]] == ["main", "count-words"]


def test_the_decorator_needs_no_parentheses(package: Any) -> None:
    def say_nothing(config: Any) -> None: ...

    say_nothing.__annotations__["config"] = package.Config
    bare, called = everstep.step(say_nothing), everstep.step()(say_nothing)
    assert (bare.name, bare.settings) == (called.name, called.settings)
    assert bare._run(bare.config()).outputs == {}


def test_it_runs_as_a_process_with_flags_outputs_and_progress(package: Any, tmp_path: Path) -> None:
    completed = call(tmp_path, "--text", "one two", ARGO_PROGRESS_FILE=str(tmp_path / "progress"))
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr.splitlines()[-2:] == ["all counted", "words 2"]
    assert (tmp_path / "out" / "words").read_text() == "2"
    assert (tmp_path / "out" / "list.txt").read_text() == "one\ntwo"
    assert (tmp_path / "progress").read_text() == "2/2"
    summary = json.loads((tmp_path / "store/runs/by-hand/steps/count-words.json").read_text())
    assert (summary["step"], summary["facts"], summary["settings"]["text"]) == (
        "count-words",
        {"words": "2"},
        "one two",
    )


def test_the_step_of_the_documentation_runs_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/own-steps.md").read_text()
    block = page.partition("Save it as `mine/score.py`:\n```python\n")[2].partition("```")[0]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "score.py").write_text(block)
    completed = call(tmp_path, "--limit", "0.95", module="mine.score")
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "out" / "verdict").read_text() == "bad"


@pytest.mark.parametrize(
    ("flags", "expected_text"),
    [
        (("--least=-1",), "count-words: --least -1: must be at least 0"),
        (("--text", "one", "--least", "2"), "count-words: --text 'one': has 1 words"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    package: Any, tmp_path: Path, flags: tuple[str, ...], expected_text: str
) -> None:
    completed = call(tmp_path, *flags)
    assert (completed.returncode, completed.stderr.strip()) == (2, expected_text)
    assert not (tmp_path / "out" / "words").exists()


@dataclass(frozen=True)
class TakenName:
    """Has a name that every step has."""

    store: str = ""


@dataclass(frozen=True)
class Bare:
    """Has a field without a default."""

    model: str


@dataclass(frozen=True)
class ListConfig:
    """Has a field whose default is made anew."""

    models: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("config", "expected_text"),
    [
        (TakenName, "step one: every step has the field store; rename TakenName.store"),
        (Bare, "step one: Bare.model has no default, which its template needs"),
        (ListConfig, "step one: ListConfig.models has no default, which its template needs"),
        (int, "step one: its function must have one argument, annotated with a dataclass"),
    ],
)
def test_a_dataclass_that_cannot_be_flags_is_refused(config: type[Any], expected_text: str) -> None:
    def one(config: Any) -> None: ...

    one.__annotations__["config"] = config
    with pytest.raises(BadInput, match=expected_text):
        everstep.step()(one)


def test_a_step_of_the_file_that_is_run_is_refused(package: Any) -> None:
    def one(config: Any) -> None: ...

    one.__annotations__["config"] = package.Config
    one.__module__ = "__main__"
    with pytest.raises(BadInput, match="step one: its function is in the file that is run"):
        everstep.step()(one).template()


def test_outputs_that_were_not_named_are_an_error(package: Any) -> None:
    def one(config: Any) -> dict[str, int]:
        return {"letters": 3}

    one.__annotations__["config"] = package.Config
    step_class = everstep.step(outputs=("words",))(one)
    with pytest.raises(TypeError, match=r"step one returned \['letters'\], its outputs are \['words'\]"):
        step_class._run(step_class.config())

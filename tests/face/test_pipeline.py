"""What `python pipelines/llama_finetune.py` says before it starts anything."""

import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import everstep
from everstep.errors import BadInput
from everstep.runtime.exit_codes import ExitCode
from everstep.runtime.store import StoreError, Unavailable
from everstep.steps.entry import StepError

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "pipelines" / "llama_finetune.py"


def pipeline(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The pipeline as a user calls it, in an empty folder."""
    return subprocess.run(
        [sys.executable, str(PIPELINE), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_the_printed_manifest_is_a_workflow_with_every_step(tmp_path: Path) -> None:
    manifest_run = pipeline("-o", "yaml", "--nodes", "3", cwd=tmp_path)
    manifest = yaml.safe_load(manifest_run.stdout)
    templates = {template["name"]: template for template in manifest["spec"]["templates"]}
    tasks = {task["name"]: task for task in templates["main"]["dag"]["tasks"]}
    assert manifest_run.returncode == 0
    assert set(tasks) == {"corpus", "model", "tokenize", "check", "train", "evaluate"}
    assert tasks["train"]["depends"] == "tokenize && check"
    assert manifest["spec"]["onExit"] == "report"
    assert {"name": "nodes", "value": "3"} in manifest["spec"]["arguments"]["parameters"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--corpus", "nothing-*.jsonl"], "nothing-*.jsonl"),
        (["--nodes", "0"], "nodes"),
        (["--nodes", "1", "--min-nodes", "2"], "min"),
        (["--nonsense", "1"], "--nonsense"),
        (["--target", "argo"], "argo"),
        (["--model", "no/such/model"], "no/such/model"),
        (["--tokenizer", "no/such/tokenizer.json"], "no/such/tokenizer.json"),
        (["--script", "no/such/script.py"], "no/such/script.py"),
        (["--iterations", "0"], "iterations"),
        (["--work-dir", "nowhere"], "--work-dir nowhere: not a folder"),
        (["--name", "../up"], "../up"),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_nothing_written(
    arguments: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: to import Hera anew takes a second each time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(PIPELINE), *arguments])
    with pytest.raises(SystemExit) as raised:
        runpy.run_path(str(PIPELINE), run_name="__main__")
    output = capsys.readouterr().err
    assert raised.value.code == 2, output
    assert part in output
    assert output.strip().count("\n") == 0, output
    assert not list(tmp_path.iterdir())


def test_a_model_folder_without_weights_is_refused_by_name(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    run = pipeline("--model", str(model), cwd=tmp_path)
    assert run.returncode == 2
    assert "no weights in it (*.safetensors)" in run.stderr
    assert run.stderr.strip().count("\n") == 0


def test_parameters_that_were_set_come_first() -> None:
    @dataclass(frozen=True)
    class Config:
        corpus: str = ""
        nodes: int = 2
        model: str = "tiny"

    assert list(everstep.parameters(Config(model="smollm2"))) == ["model", "corpus", "nodes", "store"]


@pytest.mark.parametrize(
    ("error", "expected_type"),
    [
        (Unavailable("--source s3://b: no answer"), Unavailable),
        (StepError("--source s3://b: no answer", ExitCode.TRY_AGAIN), Unavailable),
        (StoreError("--source s3://b: no answer"), BadInput),
        (StepError("--source s3://b: no answer"), BadInput),
    ],
)
def test_what_another_try_may_mend_is_not_taken_for_bad_input(error: Exception, expected_type: type[Exception]) -> None:
    class Step:
        def check(self) -> None:
            raise error

    with pytest.raises(expected_type, match=r"^--corpus s3://b: no answer$"):
        everstep.check_step(Step(), source="corpus")


def test_a_store_that_does_not_answer_is_one_line_and_exit_code_75(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @dataclass(frozen=True)
    class Config:
        corpus: str = ""

        def check(self) -> None:
            raise Unavailable("--corpus s3://b: no answer")

    monkeypatch.setattr(sys, "argv", ["mine.py"])
    with pytest.raises(SystemExit) as raised:
        everstep.submit(lambda _: None, Config)  # type: ignore[arg-type, return-value]
    assert raised.value.code == ExitCode.TRY_AGAIN
    assert capsys.readouterr().err == "python mine.py: --corpus s3://b: no answer\n"


MISTAKEN = """
from dataclasses import dataclass
from hera.workflows import Container, Workflow
import everstep

@dataclass(frozen=True)
class Config:
    words: str = "hello"

def build(config):
    with Workflow(generate_name="w-", entrypoint="main", arguments=everstep.parameters(config)) as workflow:
        Container(name="main", image="i", command=["touch here"])
    return workflow

if __name__ == "__main__":
    everstep.submit(build, Config)
"""


def test_a_pipeline_is_linted_before_anything_is_submitted(tmp_path: Path) -> None:
    (tmp_path / "mistaken.py").write_text(MISTAKEN)
    run = subprocess.run([sys.executable, "mistaken.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 2, run.stderr
    assert run.stderr == (
        "python mistaken.py: command: spec.templates[0].container.command: 'touch here' is a single word; "
        "list each word separately, or use [sh, -c, ...]\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mistaken.py"]


@pytest.mark.parametrize("arguments", ["", ', arguments=RawArtifact(name="a", data="b")'])
def test_a_workflow_needs_no_parameters(arguments: str, tmp_path: Path) -> None:
    text = MISTAKEN.replace("touch here", "true").replace(", arguments=everstep.parameters(config)", arguments)
    text = text.replace("import Container, Workflow", "import Container, RawArtifact, Workflow")
    (tmp_path / "plain.py").write_text(text)
    words = [sys.executable, "plain.py", "-o", "yaml"]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert yaml.safe_load(run.stdout)["spec"]["templates"][0]["name"] == "main"

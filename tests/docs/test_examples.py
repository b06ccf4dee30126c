"""The examples: each pipeline's manifest is valid, and each of them runs."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hera.workflows import models as argo

from everstep.errors import BadInput
from everstep.pipeline import manifest_of
from everstep.runtime.workflow.lint.lint import findings
from everstep.runtime.workflow.manifest.library import Library
from everstep.runtime.workflow.manifest.yaml_source import Document
from everstep.steps.entry import StepError
from examples import drilled, own_steps, sweep
from tests.docs.pages import PAGES
from tests.harness import PATIENCE_S, ROOT
from tests.once import made_once
from tests.tokenized import fill_store

EXAMPLES = ROOT / "examples"


def call(cwd: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """A command in a user's folder. An exit code other than 0 fails the test."""
    completed = subprocess.run(
        [sys.executable, *words], cwd=cwd, input=stdin, capture_output=True, text=True, check=False,
        timeout=3 * PATIENCE_S,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-5000:]
    return completed


def manifest(module: Any, **values: str) -> dict[str, Any]:
    """What the pipeline prints with these flags. It has no finding of the lint."""
    config = module.Config(**values)
    config.check()
    built = manifest_of(module.build(config), "runs/store")
    assert [finding.text for finding in findings(Document(built, ""), Library())] == []
    return built


def depends(workflow: dict[str, Any]) -> dict[str, str]:
    """The tasks of the DAG, and what each waits for."""
    (dag,) = (template["dag"] for template in workflow["spec"]["templates"] if "dag" in template)
    return {task["name"]: task.get("depends", "") for task in dag["tasks"]}


def test_a_sweep_tries_each_rate_and_trains_the_kept_ones() -> None:
    workflow = manifest(sweep, rates="1e-3,1e-2")
    assert depends(workflow) == {
        "corpus": "", "tokenize": "corpus", "try": "tokenize", "keep": "try", "train": "keep", "best": "train",
        "evaluate": "best",
    }  # fmt: skip
    (dag,) = (template["dag"] for template in workflow["spec"]["templates"] if "dag" in template)
    tasks = {task["name"]: task for task in dag["tasks"]}
    assert tasks["try"]["withItems"] == ["1e-3", "1e-2"]
    assert tasks["train"]["withParam"] == "{{tasks.keep.outputs.result}}"


@pytest.mark.parametrize(
    ("rates", "losses", "expected"), [("1e-3, 1e-2", [2, 1], ["1e-2", "1e-3"]), ("0.001", [1], ["0.001"])]
)
def test_a_sweep_keeps_rates_with_spaces_between_them_and_a_single_one(
    rates: str, losses: list[float], expected: list[str], tmp_path: Path
) -> None:
    workflow = manifest(sweep, rates=rates)
    (dag,) = (template["dag"] for template in workflow["spec"]["templates"] if "dag" in template)
    (items,) = (task["withItems"] for task in dag["tasks"] if task["name"] == "try")
    assert items == [rate.strip() for rate in rates.split(",")]
    (source,) = (t["script"]["source"] for t in workflow["spec"]["templates"] if t["name"] == "keep-best")
    for name, value in {"rates": rates, "losses": json.dumps(losses), "keep": "2"}.items():
        source = source.replace(f"{{{{inputs.parameters.{name}}}}}", value)
    (tmp_path / "keep.py").write_text(source)
    assert json.loads(call(tmp_path, "keep.py").stdout) == expected


@pytest.mark.parametrize(("rates", "what"), [("fast", "give numbers"), ("1e-3,0.001", "give each rate once")])
def test_rates_that_cannot_be_compared_are_refused(rates: str, what: str) -> None:
    with pytest.raises(BadInput, match=f"^--rates {rates}: {what}"):
        sweep.Config(rates=rates).check()


def test_own_steps_stand_between_ours() -> None:
    tasks = depends(manifest(own_steps))
    assert tasks["train"] == "tokenize && plan"
    assert tasks["publish"] == "judge"


def test_an_own_step_waits_for_the_drill_before_it() -> None:
    tasks = depends(manifest(drilled, only="process-crash"))
    assert tasks["release"] == "verdict"
    assert tasks["train-reference"] == "tokenize"
    assert "chaos-process-crash" in tasks["verdict"]


def test_a_drill_without_such_an_experiment_is_refused() -> None:
    with pytest.raises(StepError, match=r"^--only meteor: no such experiment"):
        drilled.Config(only="meteor").check()


def test_a_manifest_without_training_runs_on_a_laptop(tmp_path: Path) -> None:
    path = str(EXAMPLES / "fan_out.yaml")
    call(tmp_path, "-m", "everstep", "workflow", "run", path, "--name", "first", "-p", "top=4")
    logs = call(tmp_path, "-m", "everstep", "workflow", "logs", "first").stdout
    assert "the sum is 30" in logs
    assert "ended: Succeeded" in logs


def test_a_pipeline_becomes_a_nightly_cron_workflow(tmp_path: Path) -> None:
    workflow = manifest(own_steps)
    printed = call(tmp_path, str(EXAMPLES / "nightly.py"), "0 2 * * *", stdin=yaml.safe_dump(workflow)).stdout
    cron = argo.CronWorkflow.model_validate(yaml.safe_load(printed))
    assert cron.spec.schedules == ["0 2 * * *"]
    assert cron.spec.workflow_spec.on_exit == "report"
    assert cron.spec.workflow_metadata is not None
    assert cron.spec.workflow_metadata.annotations == workflow["metadata"]["annotations"]
    assert yaml.safe_load(printed)["spec"]["workflowSpec"] == workflow["spec"]
    found = [finding.text for finding in findings(Document(yaml.safe_load(printed), ""), Library())]
    assert found == ["here: kind: a CronWorkflow needs a scheduler; a Workflow of its workflowSpec can run here"]


def test_what_a_nightly_cron_workflow_runs_runs_to_its_end(tmp_path: Path) -> None:
    printed = call(tmp_path, str(EXAMPLES / "nightly.py"), "0 2 * * *", stdin=(EXAMPLES / "fan_out.yaml").read_text())
    cron = yaml.safe_load(printed.stdout)
    night = {"apiVersion": cron["apiVersion"], "kind": "Workflow", "metadata": {"generateName": "night-"}}
    (tmp_path / "night.yaml").write_text(yaml.safe_dump({**night, "spec": cron["spec"]["workflowSpec"]}))
    call(tmp_path, "-m", "everstep", "workflow", "run", "night.yaml", "--name", "n")
    assert "ended: Succeeded" in call(tmp_path, "-m", "everstep", "workflow", "logs", "n").stdout


@pytest.fixture
def text(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small corpus, which the store of the runs has with its tokens: each line of this repository's own words."""

    def make(folder: Path) -> None:
        texts = (line for page in PAGES for line in page.read_text().splitlines() if len(line) > 60)
        (folder / "text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))

    corpus = f"{made_once(tmp_path_factory, 'pages', make)}/text.jsonl"
    fill_store(tmp_path_factory, "pages", corpus, tmp_path / "runs" / "store")
    return corpus


@pytest.mark.long
def test_a_sweep_stops_bad_rates_early_and_evaluates_the_best_checkpoint(tmp_path: Path, text: str) -> None:
    flags = ("--rates", "1e-9,1e-2,1e-8", "--keep", "1", "--try-iterations", "6", "--iterations", "10")
    call(tmp_path, str(EXAMPLES / "sweep.py"), *flags, "--corpus", text, "--target", "local", "--name", "s")
    logs = call(tmp_path, "-m", "everstep", "workflow", "logs", "s").stdout
    assert '["1e-2"]' in logs
    jobs = [path.name.partition("-")[2] for path in (tmp_path / "runs/store/jobs").iterdir()]
    assert [name.rpartition("-rate-")[2] for name in jobs if "-rate-" in name] == ["1e-2"]
    assert sum("try-" in name for name in jobs) == 3
    nodes = json.loads((tmp_path / "runs/s/workflow.json").read_text())["status"]["nodes"].values()
    (score,) = [node for node in nodes if node["displayName"] == "evaluate"]
    values_by_name = {parameter["name"]: parameter["value"] for parameter in score["inputs"]["parameters"]}
    assert "rate-1e-2/checkpoints/" in values_by_name["checkpoint"]
    assert values_by_name["checkpoint"].endswith("000000010")


@pytest.mark.long
@pytest.mark.parametrize(("limit", "is_published"), [("1e9", True), ("1", False)])
def test_only_a_good_model_is_published(tmp_path: Path, text: str, limit: str, is_published: bool) -> None:
    flags = ("--most-iterations", "5", "--limit", limit, "--corpus", text, "--target", "local", "--name", "o")
    call(tmp_path, str(EXAMPLES / "own_steps.py"), *flags)
    assert ("published" in call(tmp_path, "-m", "everstep", "workflow", "logs", "o").stdout) == is_published


@pytest.mark.long
def test_a_step_behind_a_drill_runs_once_the_drill_holds(tmp_path: Path, text: str) -> None:
    flags = ("--only", "process-crash", "--iterations", "40", "--corpus", text, "--target", "local", "--name", "d")
    call(tmp_path, str(EXAMPLES / "drilled.py"), *flags)
    logs = call(tmp_path, "-m", "everstep", "workflow", "logs", "d").stdout
    assert "released: 1 of 1 experiments hold" in logs
    assert re.search(r"process-crash: holds: .*SIGKILL", logs), "the fault fired"


def launch(tmp_path: Path, name: str, fault: str, *more: str) -> str:
    """That script on two ranks, with a fault; what it printed. The fault fired."""
    (tmp_path / "faults").mkdir()
    variables = f"EVERSTEP_FAULT={fault}=kill", f"EVERSTEP_FAULT_DIR={tmp_path / 'faults'}"
    flags = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1")
    words = ["env", *variables, sys.executable, "-m", "everstep", "launch", *flags, str(EXAMPLES / name), *more]
    completed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert completed.returncode == 0, (completed.stdout + completed.stderr)[-5000:]
    assert [path.name for path in (tmp_path / "faults").iterdir()] == [fault.partition(",")[0]]
    return completed.stdout + completed.stderr


@pytest.mark.long
def test_a_trainer_resumes_after_a_kill(tmp_path: Path) -> None:
    output = launch(tmp_path, "trainer.py", "checkpoint.after_commit,iteration=12,rank=0", "--iterations", "20")
    assert output.count("done after 20 steps") == 2


@pytest.mark.long
def test_fsdp2_resumes_after_a_kill(tmp_path: Path) -> None:
    told = launch(tmp_path, "fsdp2.py", "checkpoint.after_commit,iteration=12,rank=1", "--iterations", "20")
    assert len(re.findall(r"rank \d of 2 starts after iteration 1[12]", told)) == 2
    assert told.count("done after 20 iterations") == 2


@pytest.mark.long
def test_the_script_for_those_who_come_from_ray_train_runs_as_it_stands(tmp_path: Path) -> None:
    page = (ROOT / "docs/how-to/from-ray-train.md").read_text()
    (tmp_path / "train.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    words = page.partition("```sh\n")[2].partition("```")[0].split()
    assert words[0] == "everstep"
    completed = call(tmp_path, "-m", *words)
    assert (completed.stdout + completed.stderr).count("done after 32 iterations") == 2

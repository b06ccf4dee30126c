"""The step: flags, the page in both places, the exit handler in the manifest."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hera.workflows import DAG, Workflow

from everstep.runtime.report import read_job
from everstep.runtime.report.summary import summary
from everstep.runtime.store import open_store
from everstep.steps import corpus, model, preprocess, report
from everstep.steps.report.__main__ import parse_failures, parse_graph
from everstep.steps.train.run import goodput_of
from tests.harness import PATIENCE_S


def step(*flags: str, run_dir: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "EVERSTEP_RUN_DIR"}
    if run_dir is not None:
        environment["EVERSTEP_RUN_DIR"] = str(run_dir)
    command = [sys.executable, "-m", "everstep.steps.report", *flags]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_the_page_is_an_artifact_and_in_the_run_folder(maker: ModuleType, tmp_path: Path) -> None:
    maker_run = maker.full_run(tmp_path)
    out = tmp_path / "out"
    completed = step(
        f"--store={maker_run.store}", f"--run={maker_run.name}", f"--outputs={out}", f"--uid={maker_run.uid}",
        "--status=Succeeded",
        '--failures="null"', "--duration=151.2", run_dir=maker_run.folder,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    assert completed.stderr.splitlines()[-1].startswith("report.html  2 restarts, ")
    assert "goodput" in completed.stderr
    assert (out / "report.html").read_bytes() == (maker_run.folder / "report.html").read_bytes()


def test_a_duration_that_is_no_number_is_refused(tmp_path: Path) -> None:
    completed = step(f"--store={tmp_path}", "--duration=long")
    assert completed.returncode == 2
    assert "not a number of seconds" in completed.stderr


@pytest.mark.parametrize("text", ['"[{\\"displayName\\": \\"a\\"}]"', '[{"displayName": "a"}]'])
def test_failures_are_read_quoted_or_not(text: str) -> None:
    assert parse_failures(text) == ({"displayName": "a"},)


@pytest.mark.parametrize("text", ["", '"null"', "null", "{{workflow.failures}}", "[1]"])
def test_no_failures_are_none(text: str) -> None:
    assert parse_failures(text) == ()


def test_the_trainings_gauge_of_goodput_is_the_reports(maker: ModuleType, tmp_path: Path) -> None:
    maker_run = maker.full_run(tmp_path)
    store, job = open_store(str(maker_run.store)), f"{maker_run.uid}-train"
    good = goodput_of(store, job)
    assert good == summary(read_job(store, job), 0.0)["jobs"][0]["goodput"]
    assert good is not None
    assert 0 < good < 1
    assert goodput_of(store, "nobody") is None


def test_the_handler_is_told_which_task_follows_which() -> None:
    with Workflow(generate_name="x-", entrypoint="main") as workflow:
        with DAG(name="main"):
            first, second = corpus.task(source=""), model.task(model="tiny")
            third = preprocess.task("tokenize", input=first.uri, tokenizer=second.tokenizer)
            first >> third  # pyright: ignore[reportUnusedExpression]
            second >> third  # pyright: ignore[reportUnusedExpression]
        report.on_exit(workflow)
    templates = workflow.to_dict()["spec"]["templates"]
    (handler,) = [template for template in templates if template["name"] == "report"]
    (graph,) = [word.partition("=")[2] for word in handler["container"]["args"] if word.startswith("--graph=")]
    assert parse_graph(graph) == {"corpus": (), "model": (), "tokenize": ("corpus", "model")}


@pytest.mark.parametrize("text", ["", "[1]", "no JSON", '{"a": 1}'])
def test_a_graph_that_cannot_be_read_has_no_edges(text: str) -> None:
    assert not any(parse_graph(text).values())


def test_the_handler_takes_argos_variables_and_no_inputs() -> None:
    with Workflow(generate_name="x-", entrypoint="main") as workflow:
        with DAG(name="main"):
            pass
        report.on_exit(workflow)
    spec = workflow.to_dict()["spec"]
    (handler,) = [template for template in spec["templates"] if template["name"] == spec["onExit"]]
    assert "--failures={{workflow.failures}}" in handler["container"]["args"]
    assert "--uid={{workflow.uid}}" in handler["container"]["args"]
    assert not handler.get("inputs", {}).get("parameters")
    assert handler["outputs"]["artifacts"][0]["name"] == "report"

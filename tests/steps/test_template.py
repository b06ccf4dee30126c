"""The Hera templates of the steps."""

from typing import Any

from hera.workflows import DAG, Workflow

from everstep.steps import train


def two_trainings() -> dict[str, Any]:
    with Workflow(generate_name="two-", entrypoint="main") as workflow, DAG(name="main"):
        first = train.task("pretrain", dataset="a")
        first >> train.task("finetune", dataset="b")  # pyright: ignore[reportUnusedExpression]
    return workflow.to_dict()["spec"]


def test_two_tasks_of_one_step_share_a_template_and_have_jobs_of_their_own() -> None:
    templates = two_trainings()["templates"]
    assert sorted(template["name"] for template in templates) == ["main", "train"]
    dag, template = sorted(templates, key=lambda template: template["name"])
    assert "--job={{workflow.uid}}-{{inputs.parameters.task}}" in template["container"]["args"]
    arguments_of_tasks = [
        {p["name"]: p["value"] for p in task["arguments"]["parameters"]} for task in dag["dag"]["tasks"]
    ]
    assert arguments_of_tasks == [{"task": "pretrain", "dataset": "a"}, {"task": "finetune", "dataset": "b"}]


def test_a_pipeline_built_twice_gives_the_same_manifest() -> None:
    assert two_trainings() == two_trainings()

"""A Workflow that `everstep convert` prints for a cluster has what the train step needs there."""

from pathlib import Path

import pytest
import yaml

from everstep.cli.main import main
from everstep.convert import convert
from everstep.runtime.net.token import TOKEN_VARIABLE
from tests.convert.stand_ins import HEAD, JOBS, POD

EACH = sorted(JOBS.glob("*.yaml"))


@pytest.mark.parametrize("path", EACH, ids=lambda path: path.stem)
def test_each_kind_is_a_workflow_for_a_cluster_with_a_store_there(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(path)]) == 0
    assert f"{path}: for everstep workflow run; a Workflow for a cluster needs --store s3://" in capsys.readouterr().err
    assert main(["convert", str(path), "--store", "s3://ml/x", "--service-account", "team"]) == 0
    captured = capsys.readouterr()
    assert "everstep workflow run" not in captured.err
    (file := tmp_path / "workflow.yaml").write_text(captured.out)
    assert main(["workflow", "lint", str(file), "--target", "argo"]) == 0
    workflow = yaml.safe_load(captured.out)
    template = workflow["spec"]["templates"][1]
    variables = {entry["name"]: entry["valueFrom"] for entry in template["container"]["env"] if "valueFrom" in entry}
    assert variables["EVERSTEP_POD"] == {"fieldRef": {"fieldPath": "metadata.name"}}, "its nodes are pods"
    assert variables["AWS_ACCESS_KEY_ID"]["secretKeyRef"]["name"] == "everstep-store"
    assert TOKEN_VARIABLE in variables
    assert (workflow["spec"]["serviceAccountName"], template["serviceAccountName"]) == ("team", "team-train")
    assert workflow["spec"]["arguments"]["parameters"] == [{"name": "store", "value": "s3://ml/x"}]
    assert not [name for name in template["metadata"]["annotations"] if name.startswith("everstep/")]


@pytest.mark.parametrize(
    ("flags", "expected_text"),
    [
        (["--service-account", "team"], "--service-account: only for a cluster; give --store s3://bucket/prefix, too"),
        (["--to", "python", "--store", "s3://ml/x"], "--to python: the pipeline has the flags of store, account and"),
    ],
)
def test_flags_without_effect_are_refused(
    flags: list[str], expected_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(EACH[0]), *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert expected_text in captured.err


def test_another_user_than_the_images_is_told_unless_the_job_says_one() -> None:
    told = "f: worker: a cluster's pods run as user 1000 without capabilities, not as the image's user"
    job = f"{HEAD}  replicaSpecs: {{worker: {{{POD}}}}}"
    assert [note for note in convert(job, "f").notes if note.startswith(told)]
    for place in ("spec: {", "image: i, "):
        own = job.replace(place, f"{place}securityContext: {{runAsUser: 0}}, ")
        assert own != job
        conversion = convert(own, "f")
        assert "user 1000" not in "".join(conversion.notes)
        spec = conversion.arguments["job_spec"]["replicaSpecs"]["worker"]["template"]["spec"]
        assert spec["securityContext"] == {"runAsUser": 0}, "that of the step's pod refuses root"


def test_the_jobs_own_keys_of_a_store_are_told() -> None:
    pod = POD.replace("image: i,", "image: i, env: [{name: AWS_ACCESS_KEY_ID, value: data}],")
    (told,) = (note for note in convert(f"{HEAD}  replicaSpecs: {{worker: {{{pod}}}}}", "f").notes if "store" in note)
    assert told.startswith("f: worker: AWS_ACCESS_KEY_ID: on a cluster its nodes reach Everstep's store by them")


def test_each_image_that_must_have_everstep_is_named() -> None:
    ps = POD.replace("image: i,", "image: j,")
    job = f"{HEAD}  replicaSpecs: {{worker: {{{POD}}}, chief: {{{POD}}}, ps: {{{ps}}}}}"

    def named(image: str) -> list[str]:
        notes = convert(job, "f", image).notes
        return [note.partition(": it must have Everstep")[0] for note in notes if "must have Everstep" in note]

    assert (named(""), named("mine:1")) == (["f: image i", "f: image j"], ["f: image j"])
